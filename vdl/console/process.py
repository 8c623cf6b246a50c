"""The console as a process: sockets, threads, and its end.

Started by the server (`gateway.py`), which sends it the connections of browsers. It ends when the
server does, and after it was unused for a while. It has less priority than the server, and a bound
on its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

from rpc.newcomers import Newcomers
from vdl.console.child_messages import IDLE, TAKEN
from vdl.console.console import Console, Work, error_answer
from vdl.console.problems import ConsoleError
from vdl.console.settings import ConsoleSettings
from vdl.console.web import Answer, Head, parse_head
from vdl.console.workers import Workers
from vdl.events import Events
from vdl.log import EventLog, Log, LogOptions, start_logging

CONNECTIONS_MAX: Final = 48
BODY_SECONDS: Final = 10.0
SEND_SECONDS: Final = 20.0
UNUSED_SECONDS: Final = 300.0
END_SECONDS: Final = 5.0
"""Time for the last answers after the server has closed its end."""
MEMORY_BYTES_MAX: Final = 512 << 20
STACK_BYTES: Final = 1 << 20
NICENESS: Final = 5
_MESSAGE_BYTES_MAX: Final = 1 << 18
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_OOM_SCORE_MAX: Final = 1_000
_HEAD_END: Final = b"\r\n\r\n"


class ConsoleProcess:
    """Takes connections from the server until that closes its end."""

    def __init__(
        self,
        control: socket.socket,
        console: Console,
        loop: asyncio.AbstractEventLoop,
        log: Log,
    ) -> None:
        self._control = control
        self._console = console
        self._loop = loop
        self._log = log
        self._workers = Workers(loop)
        self._connections: Newcomers[_Connection] = Newcomers(CONNECTIONS_MAX)
        self._used_s = time.monotonic()
        self.ended: asyncio.Future[None] = loop.create_future()

    def start(self) -> None:
        """Begin to take connections."""
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._read)
        self._sweep()

    def _read(self) -> None:
        """Take one message of the server."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES_MAX, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            self._loop.remove_reader(self._control)
            self._loop.call_later(END_SECONDS, self._end)
            self._end_when_idle()
        elif message[:1] == b"P":
            self._console.points.extend(json.loads(message[1:]))
        elif descriptors:
            host, _, received = message[1:].partition(b"\n")
            accepted = socket.socket(fileno=descriptors[0])
            with contextlib.suppress(OSError):
                self._control.send(TAKEN)
            self._take(accepted, host.decode(), received)

    def _take(self, accepted: socket.socket, host: str, received: bytes) -> None:
        self._used_s = time.monotonic()
        accepted.setblocking(False)
        connection = _Connection(accepted, host, received)
        displaced = self._connections.add(connection, host)
        if displaced is not None:
            displaced.abort()
        connection.task = self._loop.create_task(self._serve(connection))

    async def _serve(self, connection: _Connection) -> None:
        """Answer one request."""
        try:
            await connection.open()
            await self._respond(connection)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the browser is gone, or does not read
        finally:
            self._connections.remove(connection)
            connection.abort()

    async def _respond(self, connection: _Connection) -> None:
        with_body = True
        try:
            head, received = connection.head()
            with_body = head.method != "HEAD"
            self._console.check(head)
            body = await connection.body(received, head.length)
            answer = await self._answer(head, body, connection)
        except ConsoleError as error:
            answer = error_answer(error)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            raise
        except Exception:  # noqa: BLE001 - an edge: a page must not end the console
            self._log.error("console_failed", traceback=traceback.format_exc())
            answer = error_answer(ConsoleError("failed", "failed; see the log of the server"))
        await connection.send(answer.encoded(with_body=with_body))

    async def _answer(self, head: Head, body: bytes, connection: _Connection) -> Answer:
        found = self._console.answer(head, body)
        if isinstance(found, Answer):
            return found
        return await self._worked(found, connection)

    async def _worked(self, work: Work, connection: _Connection) -> Answer:
        """Return the answer to a question. Raises ConsoleError."""
        result: asyncio.Future[Any] = self._loop.create_future()

        def done(found: Any) -> None:
            if not result.done():
                result.set_result(found)

        def is_wanted() -> bool:
            if connection.is_gone:
                done(ConsoleError("deadline", "the browser is gone"))
            return not connection.is_gone

        try:
            self._workers.ask(work, done, is_wanted)
        except ConsoleError as error:
            done(error)
        return work.finish(await result)

    # --- ends ------------------------------------------------------------------------------------
    def _sweep(self) -> None:
        self._loop.call_later(1.0, self._sweep)
        self._console.sweep()
        if self._connections or self._console.is_needed:
            self._used_s = time.monotonic()
        elif time.monotonic() - self._used_s > UNUSED_SECONDS:
            self._used_s = time.monotonic()
            with contextlib.suppress(OSError):
                self._control.send(IDLE)

    def _end_when_idle(self) -> None:
        """End once the connections that were sent before have their answers: the server sends no
        more."""
        if not self._connections:
            self._end()
        else:
            self._loop.call_later(0.05, self._end_when_idle)

    def _end(self) -> None:
        if not self.ended.done():
            self._workers.close()
            self.ended.set_result(None)


class _Connection:
    """One connection of a browser."""

    def __init__(self, accepted: socket.socket, host: str, received: bytes) -> None:
        self._socket = accepted
        self._host = host
        self._received = received
        self._local: tuple[str, int] = accepted.getsockname()[:2]
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to read and write. Raises OSError."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._writer.transport.set_write_buffer_limits(0)

    def head(self) -> tuple[Head, bytes]:
        """Return the head, which the server has read whole, and the bytes behind it. Raises
        ConsoleError."""
        head, _, rest = self._received.partition(_HEAD_END)
        return parse_head(head, self._host, self._local), rest

    async def body(self, received: bytes, length: int) -> bytes:
        """Return the body. Raises TimeoutError, OSError, IncompleteReadError."""
        assert self._reader is not None, "not open"
        missing = length - len(received)
        if missing > 0:
            async with asyncio.timeout(BODY_SECONDS):
                received += await self._reader.readexactly(missing)
        return received[:length]

    @property
    def is_gone(self) -> bool:
        """True if the browser has closed the connection, as it does for a page that is left."""
        return self._reader is None or self._reader.at_eof()

    async def send(self, data: bytes) -> None:
        """Send an answer to the end. Raises TimeoutError, OSError."""
        assert self._writer is not None, "not open"
        self._writer.write(data)
        async with asyncio.timeout(SEND_SECONDS):
            await self._writer.drain()
        self._writer.close()

    def abort(self) -> None:
        """Close the connection, even if data is unsent."""
        if self._writer is None:
            self._socket.close()
        elif not self._writer.is_closing():
            self._writer.transport.abort()
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


def _limit() -> None:
    """Give way to the server, bound the memory, and keep passwords out of dumps and tracers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the server as well
    os.nice(NICENESS)
    threading.stack_size(STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # the kernel ends the console before the server
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_MAX), encoding="ascii")
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # from here on /proc/self is the superuser's


async def _run(control: socket.socket) -> None:
    settings = ConsoleSettings.from_json(json.loads(control.recv(_MESSAGE_BYTES_MAX)[1:]))
    events = Events(lambda: time.time_ns() // 1_000_000)
    options = LogOptions(format=settings.log_format, level=settings.log_level)
    log = EventLog(start_logging(options), events).part("console")
    console = Console(settings, log)
    process = ConsoleProcess(control, console, asyncio.get_running_loop(), log)
    process.start()
    await process.ended


def main() -> None:
    """Run the console on the control socket whose number is the only argument."""
    _limit()
    control = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(_run(control))
    os._exit(0)  # a thread that waits for a server must not keep the process


if __name__ == "__main__":
    main()
