"""The settings of one share group, as leaders of partitions use them.

Must not know: where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from vdl.kafka.share.share_partition import Limits

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """See the module."""

    limits: Limits
    reset: str
    """`EARLIEST`, `LATEST`, or empty: go back by `reset_ms`."""
    reset_ms: int
    is_read_committed: bool
    may_renew: bool
