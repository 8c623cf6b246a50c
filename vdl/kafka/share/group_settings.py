"""Settings of one share group, as the leaders of partitions use them."""

from __future__ import annotations

from dataclasses import dataclass

from vdl.kafka.share.share_partition import Limits

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of one share group."""

    limits: Limits
    reset: str
    """`EARLIEST`, `LATEST`, or empty: go back by `reset_ms`."""
    reset_ms: int
    is_read_committed: bool
    may_renew: bool
