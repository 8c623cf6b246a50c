"""The gate of the admin port: limits connections before they reach gRPC.

gRPC closes connections beyond its own bound, so that silent strangers could keep administrators
out. Here a connection first has to send something. The numbers of connections that have not, and of
those that have, are bounded. One more of either kind displaces the oldest of the address with the
most connections of that kind. A connection that has sent something is connected to gRPC, which
listens on a socket of this machine only, and bytes are relayed both ways. gRPC ends it if it does
not authenticate.

Does not depend on gRPC, TLS, or the content.
"""

from __future__ import annotations

import asyncio
import contextlib

from rpc.newcomers import Newcomers
from rpc.streams import Address
from rpc.transport import listening_socket

CONNECTIONS_MAX = 64
"""Limit of silent connections, and of those that have sent something. Each takes a descriptor, and
two more once it has sent something."""
_BACKLOG = 64
"""Number of connections that may be accepted in one turn of the loop."""
_PART_BYTES = 64 << 10


class AdminGate:
    """Gate of one port, from `open` to `close`. Used on the loop's thread."""

    def __init__(self, inner: str, silent_s: float) -> None:
        """`inner`: path of the socket that gRPC listens on; with a leading null it is abstract.

        See unix(7). `silent_s`: time until a connection must send something first, and for reading
        the rest at the end.
        """
        self._inner = inner
        self._silent_s = silent_s
        self._silent: Newcomers[asyncio.Task[None]] = Newcomers(CONNECTIONS_MAX)
        self._spoken: Newcomers[asyncio.Task[None]] = Newcomers(CONNECTIONS_MAX)
        self._server: asyncio.Server | None = None

    async def open(self, address: Address) -> int:
        """Listen and return the bound port. Raises OSError."""
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
    """Count one more connection and cancel the one it displaces."""
    displaced = crowd.add(task, host)
    if displaced is not None:
        displaced.cancel()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relay bytes until one of the two ends."""
    # `drain` waits for all bytes, so none are left at `close`. asyncio cannot `abort` a transport
    # that was closed with bytes left and has sent them since.
    writer.transport.set_write_buffer_limits(0)
    with contextlib.suppress(OSError):
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
    writer.close()
