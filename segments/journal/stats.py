"""What the journal has written, and how long it took.

Must not know: what is in the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WriteStats:
    """Counters since the store was opened. Times are those of whole writes, until the loop hears
    of them."""

    blocks: int = 0
    bytes: int = 0
    """Of blocks with their padding, and of file headers."""
    payload_bytes: int = 0
    """Written to segments beside them."""
    write_ns_total: int = 0
    write_ns_max: int = 0
