"""Counters and times of journal writes.

Does not depend on the contents of blocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from segments.histogram import Histogram

WRITES_KEPT: Final = 4_096
"""Last writes whose times are kept: some seconds of a busy journal, half a megabyte."""


@dataclass(slots=True)
class WriteStats:
    """Counters since the store was opened.

    Times are those of whole writes, until the loop handles their completion.
    """

    blocks: int = 0
    bytes: int = 0
    """Bytes of blocks with padding, and of file headers."""
    payload_bytes: int = 0
    """Payload bytes written to segments."""
    write_ns_total: int = 0
    write_ns_max: int = 0
    writes: Histogram = field(default_factory=Histogram)
    """Times of the same writes. Their sum is `write_ns_total`."""
    last: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WRITES_KEPT))
    """(begin, end) of the last writes, oldest first."""

    def written_after(self, since_ns: int) -> int:
        """Return the end of the first write that began at or after `since_ns`.

        0 if it has not ended, or if it may be older than those that are kept.
        """
        found = 0
        for began_ns, ended_ns in reversed(self.last):
            if began_ns < since_ns:
                return found
            found = ended_ns
        return 0 if len(self.last) == WRITES_KEPT else found
