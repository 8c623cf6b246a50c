"""Writes to a client's socket: gather writes, and the last bytes of a closing connection.

Does not depend on the meaning of the bytes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from segments.api import Buffer

_GATHER_MAX = 512
"""Buffers that one gather write may take; the system's limit is 1,024."""
_LINGER_S = 10.0
"""Time that the last bytes to a client may take while its connection is closing."""
_LINGERING_MAX = 128
"""Maximum number of connections of a listener that close so. They do not count as connections."""
LINGERING_BYTES_MAX = 32 << 20
"""Maximum number of unsent bytes of all closing connections of a listener."""


def write_some(file: int, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Write to a socket without waiting. Return the rest that the socket did not take.

    After an error everything stays in the rest: the transport will find the error and report it.
    """
    first = 0
    count = len(buffers)
    while first < count:
        portion = buffers[first : first + _GATHER_MAX] if first or count > _GATHER_MAX else buffers
        try:
            written = os.writev(file, portion)
        except OSError:
            break
        for buffer in portion:
            if written < len(buffer):
                return [memoryview(buffer)[written:], *buffers[first + 1 :]]
            written -= len(buffer)
            first += 1
    return buffers[first:]


class Lingering:
    """Closing connections of one listener: their sessions are over, with bytes left to send."""

    def __init__(self) -> None:
        self._unsent: dict[asyncio.Transport, tuple[int, asyncio.TimerHandle]] = {}
        """Bytes that each had left at first, and the timer that aborts it."""

    def __len__(self) -> int:
        return len(self._unsent)

    def close(self, transport: asyncio.Transport, rest: Sequence[Buffer]) -> None:
        """Close a connection once `rest` has left, or abort it if too much lingers.

        It no longer counts as a connection, so its time and the number of such connections are
        bounded.
        """
        unsent = sum(map(len, rest)) + transport.get_write_buffer_size()
        of_all = sum(size for size, _ in self._unsent.values())
        may_linger = len(self) < _LINGERING_MAX and of_all + unsent <= LINGERING_BYTES_MAX
        if unsent and not may_linger:
            transport.abort()
            return
        for buffer in rest:
            transport.write(buffer)
        transport.close()
        if transport.get_write_buffer_size():
            timer = asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)
            self._unsent[transport] = unsent, timer

    def over(self, transport: asyncio.Transport) -> None:
        """Forget a connection that is gone."""
        found = self._unsent.pop(transport, None)
        if found is not None:
            found[1].cancel()
