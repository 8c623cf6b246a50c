"""The server's side of its console: hands connections over to a process of its own.

The console runs in a child process, so that its work, its memory and its defects are not those of
the server. The process is started by the first request of a browser and ends after it was unused
for a while. The server sends it messages over a pair of sockets, each with the kind as its first
byte, and never waits: a message that finds no room is dropped.

    S    settings of the console, as JSON; the first message
    C    address of a browser, a line feed, the bytes read so far; the connection is attached
    P    points for plots, as a list in JSON

The child says of each connection that it has taken it, so that one which hangs is noticed: it is
ended, and another one started for the next browser. When it is idle it says so. The server then
closes its end, so that no connection is lost in between, and the child ends once it has handled
what was sent before. If the server ends, the kernel ends the child (`PR_SET_PDEATHSIG`). A
server that is killed while a disk hangs ends, and its child with it, when the disk answers.

Does not depend on what the console does.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from vdl.clock import MS, Clock
from vdl.config.console import LOOPBACK
from vdl.console.child_messages import TAKEN
from vdl.console.points import INTERVAL_MS, Point
from vdl.console.samples import Samples
from vdl.log import Log
from vdl.server.http import is_loopback

CHILD_MODULE = "vdl.console.process"
RESTART_NS = 2_000 * MS
"""Least time between two starts of the child."""
START_NS = 30_000 * MS
"""Time that the child has to start and to take its first connection."""
HUNG_NS = 10_000 * MS
"""Time without a connection taken, while some wait, after which the child is ended."""
KILL_NS = 10_000 * MS
"""Time that the child has to end; more than it takes for its last answers."""
NOT_TAKEN_MAX = 64
"""Connections that wait for the child."""
_STEP_NS = 10 * MS
_POINTS_PER_MESSAGE = 50
_ROOM_BYTES = 1 << 20
"""Room for messages that the child has not read: connections arrive while it starts."""


class _Loop(Protocol):
    """The event loop, as far as it is needed."""

    def add_reader(self, fd: Any, callback: Callable[[], Any]) -> None: ...
    def remove_reader(self, fd: Any) -> bool: ...


class _Child:
    """A child, from its start on. The thread that starts it writes `process`, once."""

    def __init__(self, control: socket.socket, now_ns: int) -> None:
        self.control = control
        self.process: subprocess.Popen[bytes] | None = None
        self.is_over = False
        self.not_taken = 0
        """Connections of which it has not said that it has taken them."""
        self._patient_until_ns = now_ns + START_NS

    def is_hung(self, now_ns: int) -> bool:
        """Return True if it has been waited for too long."""
        return self.not_taken > 0 and now_ns > self._patient_until_ns

    def sent(self, now_ns: int) -> None:
        """Note that a connection was sent to it."""
        if self.not_taken == 0:
            self._patient_until_ns = max(self._patient_until_ns, now_ns + HUNG_NS)
        self.not_taken += 1

    def taken(self, now_ns: int) -> None:
        """Note that it has taken one."""
        self.not_taken = max(0, self.not_taken - 1)
        self._patient_until_ns = now_ns + HUNG_NS

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)  # nothing if it has ended


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
        self._is_for_loopback = settings["mode"] == LOOPBACK
        self._samples = samples
        self._clock = clock
        self._loop = loop
        self._log = log
        self._child: _Child | None = None
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
        if self._child is not None:
            self._end(self._child)

    def hand_over(self, connection: socket.socket, host: str, received: bytes) -> int:
        """Send a connection to the child. Return 0, else the HTTP status that says why not."""
        if self._is_for_loopback and not is_loopback(host):
            return 403
        if self._child is None:
            self._start_child()
        child = self._child
        if child is None or child.not_taken >= NOT_TAKEN_MAX:
            return 503
        if not self._send(b"C" + host.encode() + b"\n" + received, connection.fileno()):
            return 503
        child.sent(self._clock.now_ns())
        return 0

    def _start_child(self) -> None:
        now_ns = self._clock.now_ns()
        if self._is_closed or now_ns - self._started_ns < RESTART_NS:
            return
        self._started_ns = now_ns
        try:
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._log.warning("console_not_started", cause=str(error))
            return
        own.setblocking(False)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        child = self._child = _Child(own, now_ns)
        self._loop.add_reader(own, self._read)
        self._send(b"S" + json.dumps(self._settings).encode())
        self._send_points(list(self._samples.points))
        # A fork takes time in proportion to the memory of the server, so a thread makes it. The
        # thread stays as long as the child: the kernel ends the child with the thread.
        run = threading.Thread(
            target=self._run_child, args=(child, other), name="console", daemon=True
        )
        try:
            run.start()
        except RuntimeError as error:  # the system gives no more threads
            self._log.warning("console_not_started", cause=str(error))
            other.close()
            self._part(child)

    def _run_child(self, child: _Child, control: socket.socket) -> None:
        """Start the child and wait for its end. The loop notices either by the control socket."""
        with control:
            number = str(control.fileno())
            # -P: no module is loaded from the folder in which the server was started.
            command = [sys.executable, "-P", "-m", CHILD_MODULE, number]
            try:
                process = subprocess.Popen(  # noqa: S603 - a command of our own
                    command, stdin=subprocess.DEVNULL, pass_fds=(control.fileno(),)
                )
            except OSError as error:
                self._log.warning("console_not_started", cause=str(error))
                return
        child.process = process
        if child.is_over:
            process.kill()
        process.wait()

    def _read(self) -> None:
        """Take messages of the child: part from it if it is idle or has ended."""
        child = self._child
        assert child is not None, "no child"
        for _ in range(NOT_TAKEN_MAX):
            try:
                message = child.control.recv(1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message = b""
            if message != TAKEN:
                break
            child.taken(self._clock.now_ns())
        else:
            return
        if not message and not self._is_closed:
            self._log.warning("console_ended", cause="it has ended by itself")
        self._part(child)

    def _part(self, child: _Child) -> None:
        """Send it nothing more. It ends, by force after a while."""
        self._child = None
        self._clock.call_later(KILL_NS, lambda: child.signal(signal.SIGKILL))
        self._loop.remove_reader(child.control)
        child.control.close()

    def _end(self, child: _Child) -> None:
        """End it now."""
        self._part(child)
        child.is_over = True
        child.signal(signal.SIGTERM)

    def _end_if_hung(self) -> None:
        child = self._child
        if child is not None and child.is_hung(self._clock.now_ns()):
            self._log.warning("console_ended", cause="it did not take connections")
            self._end(child)

    def _send(self, message: bytes, *descriptors: int) -> bool:
        assert self._child is not None, "no child"
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
        try:
            self._child.control.sendmsg([message], [rights] if descriptors else [])
        except OSError:  # no room, or the child has just ended
            return False
        return True

    # --- points for plots ----------------------------------------------------------------------
    def _sample(self) -> None:
        if self._is_closed:
            return
        self._clock.call_later(INTERVAL_MS * MS, self._sample)
        self._end_if_hung()
        if self._work is None:
            self._work = self._samples.take()
            self._step()

    def _step(self) -> None:
        """Do a part of the work, and the rest later."""
        assert self._work is not None, "no work"
        is_over = True
        try:
            for _ in self._work:
                self._clock.call_later(_STEP_NS, self._step)
                is_over = False
                return
        finally:
            if is_over:  # the next sample is taken even if this one fails
                self._work = None
        if self._samples.points:
            self._send_points([self._samples.points[-1]])

    def _send_points(self, points: Sequence[Point]) -> None:
        if self._child is not None:
            for start in range(0, len(points), _POINTS_PER_MESSAGE):
                some = points[start : start + _POINTS_PER_MESSAGE]
                self._send(b"P" + json.dumps(some).encode())
