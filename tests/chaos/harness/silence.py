"""Strangers that open connections to one port and send nothing, in a process of their own.

They use other addresses than the clients, so that a limit per address does not affect these. A
connection that the server ends is opened again, at most `AGAIN_PER_SECOND`: an attacker retries.

Does not depend on what is served on the port.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import resource
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
AGAIN_PER_SECOND = 500
FILES_SPARE = 100
_UNDER_WAY_MAX = 256
"""Maximum number of connections being opened at a time."""
_POLL_SECONDS = 0.02
_BUSY = frozenset({errno.EINPROGRESS, errno.EAGAIN})


@dataclass(slots=True)
class Told:
    """Strangers' operations so far."""

    opened: int
    ended: int
    """Connections that the server ended."""
    open_now: int


class Crowd:
    """Strangers at one port, from `silent` to the end of its block."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def told(self) -> Told:
        """Return their operations so far."""
        self._pipe.send(None)
        found: Told = self._pipe.recv()
        return found


@contextlib.contextmanager
def silent(port: int, count: int) -> Iterator[Crowd]:
    """Keep `count` connections open during the block; they are established when it begins."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_stand, args=(theirs, port, count), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield Crowd(ours)
    finally:
        ours.close()
        process.join()


@dataclass(slots=True)
class _Strangers:
    port: int
    poll: select.epoll = field(default_factory=select.epoll)
    under_way: dict[int, socket.socket] = field(default_factory=dict)
    standing: dict[int, socket.socket] = field(default_factory=dict)
    opened: int = 0
    ended: int = 0

    def begin(self) -> None:
        """Open one more connection."""
        one = socket.socket()
        one.setblocking(False)
        # The local port is chosen on connect: it may be used for many destinations.
        one.setsockopt(socket.SOL_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
        one.bind((HOSTS[(self.opened + len(self.under_way)) % len(HOSTS)], 0))
        code = one.connect_ex(("127.0.0.1", self.port))
        if code and code not in _BUSY:
            one.close()
            self.ended += 1
            return
        self.under_way[one.fileno()] = one
        self.poll.register(one, select.EPOLLOUT)

    def turn(self) -> None:
        """Process the events of all connections."""
        for file, events in self.poll.poll(_POLL_SECONDS):
            one = self.under_way.pop(file, None)
            if one is not None and events == select.EPOLLOUT:
                self.opened += 1
                self.standing[file] = one
                self.poll.modify(file, select.EPOLLIN | select.EPOLLRDHUP)
                continue
            gone = one or self.standing.pop(file)
            self.poll.unregister(file)
            gone.close()
            self.ended += 1


def _stand(pipe: Pipe, port: int, count: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + FILES_SPARE), hard))
    strangers = _Strangers(port)
    while strangers.opened < count:
        room = min(count - strangers.opened, _UNDER_WAY_MAX) - len(strangers.under_way)
        for _ in range(room):
            strangers.begin()
        strangers.turn()
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send(None)
        due, before = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            due = min(due + (now - before) * AGAIN_PER_SECOND, AGAIN_PER_SECOND)
            before = now
            while due >= 1 and len(strangers.standing) + len(strangers.under_way) < count:
                due -= 1
                strangers.begin()
            strangers.turn()
            if pipe.poll():
                pipe.recv()
                open_now = len(strangers.standing)
                pipe.send(Told(strangers.opened, strangers.ended, open_now))
