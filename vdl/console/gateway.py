"""The server's side of its console: hands connections over to a process of its own.

The console runs in a child process, so that its work, its memory and its defects are not those of
the server. The process is started by the first request of a browser and ends after it was unused
for a while. The server sends it messages over a pair of sockets, each with the kind as its first
byte, and never waits: a message that finds no room is dropped.

    S    settings of the console, as JSON; the first message
    C    address of a browser, a line feed, the bytes read so far; the connection is attached
    P    points for plots, as a list in JSON

The only message of the child is `I`: it is idle. The server then closes its end, so that no
connection is lost in between, and the child ends once it has handled what was sent before.

Does not depend on what the console does.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from vdl.clock import MS, Clock
from vdl.console.points import INTERVAL_MS, Point
from vdl.console.samples import Samples
from vdl.log import Log

CHILD_MODULE = "vdl.console.process"
RESTART_NS = 2_000 * MS
"""Least time between two starts of the child."""
_STEP_NS = 10 * MS
_POINTS_PER_MESSAGE = 50
_ROOM_BYTES = 1 << 20
"""Room for messages that the child has not read: connections arrive while it starts."""


class _Loop(Protocol):
    """The event loop, as far as it is needed."""

    def add_reader(self, fd: Any, callback: Callable[[], Any]) -> None: ...
    def remove_reader(self, fd: Any) -> bool: ...


class Gateway:
    """Starts the child, hands connections over, and sends it the points for plots."""

    def __init__(
        self,
        settings: Mapping[str, object],
        samples: Samples,
        clock: Clock,
        loop: _Loop,
        log: Log,
    ) -> None:
        """Start nothing yet. `settings`: the JSON of `ConsoleSettings`."""
        self._settings = settings
        self._samples = samples
        self._clock = clock
        self._loop = loop
        self._log = log
        self._child: socket.socket | None = None
        self._started_ns = -RESTART_NS
        self._is_closed = False
        self._work: Iterator[None] | None = None
        """The rest of a sample that is being taken."""

    def start(self) -> None:
        """Begin to take points."""
        self._clock.call_later(INTERVAL_MS * MS, self._sample)

    def close(self) -> None:
        """End the child."""
        self._is_closed = True
        self._part()

    def hand_over(self, connection: socket.socket, host: str, received: bytes) -> bool:
        """Send a connection to the child. Return False if that is impossible now."""
        if self._child is None and not self._start_child():
            return False
        return self._send(b"C" + host.encode() + b"\n" + received, connection.fileno())

    def _start_child(self) -> bool:
        now_ns = self._clock.now_ns()
        if self._is_closed or now_ns - self._started_ns < RESTART_NS:
            return False
        self._started_ns = now_ns
        try:
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._log.warning("console_not_started", cause=str(error))
            return False
        own.setblocking(False)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        self._child = own
        self._loop.add_reader(own, self._read)
        self._send(b"S" + json.dumps(self._settings).encode())
        self._send_points(list(self._samples.points))
        # A fork takes time in proportion to the memory of the server, so a thread makes it.
        threading.Thread(target=self._run_child, args=(other,), name="console", daemon=True).start()
        return True

    def _run_child(self, control: socket.socket) -> None:
        """Start the child and wait for its end. The loop notices either by the control socket."""
        with control:
            number = str(control.fileno())
            # -P: no module is loaded from the folder in which the server was started.
            command = [sys.executable, "-P", "-m", CHILD_MODULE, number]
            try:
                child = subprocess.Popen(  # noqa: S603 - a command of our own
                    command, stdin=subprocess.DEVNULL, pass_fds=(control.fileno(),)
                )
            except OSError as error:
                self._log.warning("console_not_started", cause=str(error))
                return
        child.wait()

    def _read(self) -> None:
        """Part from a child that is idle or has ended."""
        assert self._child is not None, "no child"
        try:
            message = self._child.recv(1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message = b""
        if not message and not self._is_closed:
            self._log.warning("console_ended")
        self._part()

    def _part(self) -> None:
        if self._child is not None:
            self._loop.remove_reader(self._child)
            self._child.close()
            self._child = None

    def _send(self, message: bytes, *descriptors: int) -> bool:
        assert self._child is not None, "no child"
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
        try:
            self._child.sendmsg([message], [rights] if descriptors else [])
        except OSError:  # no room, or the child has just ended
            return False
        return True

    # --- points for plots ----------------------------------------------------------------------
    def _sample(self) -> None:
        if self._is_closed:
            return
        self._clock.call_later(INTERVAL_MS * MS, self._sample)
        if self._work is None:
            self._work = self._samples.take()
            self._step()

    def _step(self) -> None:
        """Do a part of the work, and the rest later."""
        assert self._work is not None, "no work"
        for _ in self._work:
            self._clock.call_later(_STEP_NS, self._step)
            return
        self._work = None
        if self._samples.points:
            self._send_points([self._samples.points[-1]])

    def _send_points(self, points: Sequence[Point]) -> None:
        if self._child is not None:
            for start in range(0, len(points), _POINTS_PER_MESSAGE):
                some = points[start : start + _POINTS_PER_MESSAGE]
                self._send(b"P" + json.dumps(some).encode())
