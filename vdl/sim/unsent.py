"""What waits to be written to a stream that may take less than it is offered.

Must not know: who writes, what the bytes mean.
"""

from __future__ import annotations

from collections import deque

from rpc.streams import Stream
from segments.api import Buffer


def write_unsent(stream: Stream, unsent: deque[Buffer]) -> bool:
    """Write until nothing is left, or the stream takes no more: then what it did not take stays in
    `unsent`, and the answer is False."""
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
