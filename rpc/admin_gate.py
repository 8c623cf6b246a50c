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
import socket

from rpc.newcomers import Newcomers
from rpc.streams import Address
from rpc.transport import SocketListener

CONNECTIONS_MAX = 64
"""Limit of silent connections, and of those that have sent something. Each takes a descriptor, and
two more once it has sent something."""
_PART_BYTES = 64 << 10
_REFUSALS = (OSError, MemoryError, asyncio.CancelledError)
"""Exceptions that end one connection, and no other."""


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
        self._listener: SocketListener | None = None

    async def open(self, address: Address) -> int:
        """Listen and return the bound port. Raises OSError."""
        loop = asyncio.get_running_loop()
        # Not asyncio's own server: it raises what the system says of the one connection that it
        # accepts, and after a want of descriptors it listens again although it was closed.
        self._listener = SocketListener(loop, address, self._accepted)
        self._listener.start()
        return self._listener.port

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._listener is not None:
            self._listener.close()
        for one in (*self._silent, *self._spoken):
            one.cancel()

    def _accepted(self, accepted: socket.socket, host: str) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(accepted, host))
        _count(self._silent, task, host)

    async def _serve(self, accepted: socket.socket, host: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            # A want of descriptors or memory costs this connection. A time-out is an OSError, too.
            with contextlib.suppress(*_REFUSALS):
                reader, writer = await asyncio.open_connection(sock=accepted, limit=_PART_BYTES)
                try:
                    first = await asyncio.wait_for(reader.read(_PART_BYTES), self._silent_s)
                    if first:
                        self._silent.remove(task)
                        _count(self._spoken, task, host)
                        await self._pass_on(first, reader, writer)
                finally:
                    writer.transport.abort()
        finally:
            self._silent.remove(task)
            self._spoken.remove(task)
            accepted.close()

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
    with contextlib.suppress(OSError, MemoryError):
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
    writer.close()
