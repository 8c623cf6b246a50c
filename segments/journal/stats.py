"""Counters and times of journal writes.

Does not depend on the contents of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from segments.histogram import Histogram


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
