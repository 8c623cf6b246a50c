"""Bytes out to a client's socket: gather writes, and what is left when a connection ends.

Must not know: what the bytes are.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from segments.api import Buffer

_GATHER_MAX = 512
"""Buffers one gather write may take; the system's limit is 1,024."""
_LINGER_S = 10.0
"""How long the last bytes to a client may take while its connection is being closed."""
_LINGERING_MAX = 128
"""Connections of a listener that may be closing so: they are not counted as connections."""
LINGERING_BYTES_MAX = 32 << 20
"""Unsent bytes of all of them."""


def write_some(file: int, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Write to a socket without waiting; what it did not take. An error leaves everything to the
    transport, which finds out for itself and reports it in its own way."""
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
    """Connections of one listener whose sessions are over, with bytes left to send."""

    def __init__(self) -> None:
        self._unsent: dict[asyncio.Transport, tuple[int, asyncio.TimerHandle]] = {}
        """How many bytes each had left when it began, and when it is given up."""

    def __len__(self) -> int:
        return len(self._unsent)

    def close(self, transport: asyncio.Transport, rest: Sequence[Buffer]) -> None:
        """Close it once `rest` has left. It counts no more: a client that does not read must not
        keep it for long, nor may many of them."""
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
        """Its connection is gone."""
        found = self._unsent.pop(transport, None)
        if found is not None:
            found[1].cancel()
