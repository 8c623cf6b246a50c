"""The gate of the admin port: who may go on to gRPC.

gRPC closes what comes beyond its bound of connections, so strangers who said nothing kept
administrators out. Here a connection first has to say something. So few are there at a time that
have not, and as many that have; one more of a kind costs the address that has most of them its
oldest. One that has spoken is passed on to gRPC, which listens on a socket of this machine only,
and its bytes both ways. gRPC ends it if it does not show who it is.

Must not know: gRPC, TLS, what is said.
"""

from __future__ import annotations

import asyncio
import contextlib

from rpc.newcomers import Newcomers
from rpc.streams import Address
from rpc.transport import listening_socket

CONNECTIONS_MAX = 64
"""Of those that have said nothing, and of those that have. Each takes a descriptor, and two more
once it has spoken."""
_BACKLOG = 64
"""So many may be accepted in one turn of the loop."""
_PART_BYTES = 64 << 10


class AdminGate:
    """From `open` to `close`; on the loop's thread."""

    def __init__(self, inner: str, silent_s: float) -> None:
        """`inner`: the path of the socket that gRPC listens on; one that begins with a null is
        abstract (unix(7)). `silent_s`: how long somebody may say nothing at
        first, and take to read what is left at the end."""
        self._inner = inner
        self._silent_s = silent_s
        self._silent: Newcomers[asyncio.Task[None]] = Newcomers(CONNECTIONS_MAX)
        self._spoken: Newcomers[asyncio.Task[None]] = Newcomers(CONNECTIONS_MAX)
        self._server: asyncio.Server | None = None

    async def open(self, address: Address) -> int:
        """Listen; the port that is bound. Raises OSError."""
        listening = listening_socket(address, _BACKLOG)
        self._server = await asyncio.start_server(
            self._serve, sock=listening, limit=_PART_BYTES, backlog=_BACKLOG
        )
        port: int = listening.getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        for one in (*self._silent, *self._spoken):
            one.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername") or ("unknown", 0)
        host = str(peer[0])
        _count(self._silent, task, host)
        try:
            # A time-out is an OSError, too.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                first = await asyncio.wait_for(reader.read(_PART_BYTES), self._silent_s)
                if first:
                    self._silent.remove(task)
                    _count(self._spoken, task, host)
                    await self._pass_on(first, reader, writer)
        finally:
            self._silent.remove(task)
            self._spoken.remove(task)
            writer.transport.abort()

    async def _pass_on(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_inner, to_inner = await asyncio.open_unix_connection(self._inner, limit=_PART_BYTES)
        to_inner.write(first)
        both = [
            asyncio.create_task(_pass(reader, to_inner)),
            asyncio.create_task(_pass(from_inner, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(both, timeout=self._silent_s)
        finally:
            for one in both:
                one.cancel()
            to_inner.transport.abort()


def _count(crowd: Newcomers[asyncio.Task[None]], task: asyncio.Task[None], host: str) -> None:
    """One more, for which another one may have to go."""
    displaced = crowd.add(task, host)
    if displaced is not None:
        displaced.cancel()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one of the two is gone."""
    with contextlib.suppress(OSError):
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
    writer.close()
