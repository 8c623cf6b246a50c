"""Strangers who open connections to one port and say nothing, in a process of their own.

They come from addresses of their own, so that a bound of one address is not that of the clients
beside them. A connection that the server ends is opened again, `AGAIN_PER_SECOND` at the most: who
wants to fill a port does not give up.

Must not know: what is served on the port.
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
"""Connections that are being opened at a time."""
_POLL_SECONDS = 0.02
_BUSY = frozenset({errno.EINPROGRESS, errno.EAGAIN})


@dataclass(slots=True)
class Told:
    """What the strangers did so far."""

    opened: int
    ended: int
    """By the server."""
    open_now: int


class Crowd:
    """Strangers at one port, from `silent` to the end of its block."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def told(self) -> Told:
        """What they did until now."""
        self._pipe.send(None)
        found: Told = self._pipe.recv()
        return found


@contextlib.contextmanager
def silent(port: int, count: int) -> Iterator[Crowd]:
    """So many connections have been opened when the block begins, and are kept up until it ends."""
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
        """Open one more."""
        one = socket.socket()
        one.setblocking(False)
        # The port is chosen when the connection is made: one may be used to many destinations.
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
        """See to what has become of them."""
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
