"""Buffered writes to a stream that may accept only a part of the data."""

from __future__ import annotations

from collections import deque

from rpc.streams import Stream
from segments.api import Buffer


def write_unsent(stream: Stream, unsent: deque[Buffer]) -> bool:
    """Write until the stream accepts no more. Return True if nothing is left.

    Data that it did not accept stays in `unsent`.
    """
    while unsent:
        offered = list(unsent)
        unsent.clear()
        taken = stream.write(offered)
        is_full = taken < sum(map(len, offered))
        for buffer in offered:
            if taken >= len(buffer):
                taken -= len(buffer)
            else:
                unsent.append(memoryview(buffer)[taken:])
                taken = 0
        if is_full:
            return False
    return True
