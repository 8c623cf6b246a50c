"""How much of a partition is kept: `retention.ms` and `retention.bytes`.

Retention deletes whole segments, oldest first, as Kafka does: a segment goes when its newest record
is older than the time, or when what is left without it is still as large as the size. By time also
the newest segment may go, when nothing was written for that long; by size it never does. The leader
decides and the decision is an entry in the partition's log, so all replicas have one log start.

Time is the cluster's, settled (`agreed_time.py`): no clock that is wrong deletes early.

Must not know: topics and their settings, how deleting is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segments.api import SegmentLimits, SegmentSpan

FOREVER = -1


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a topic asks for; -1 is without limit."""

    retention_ms: int = FOREVER
    retention_bytes: int = FOREVER
    segments: SegmentLimits | None = None
    """When its logs begin new segments, on each replica for itself; None as the store does."""

    @property
    def keeps_everything(self) -> bool:
        """Whether nothing is ever deleted."""
        return self.retention_ms == FOREVER and self.retention_bytes == FOREVER


KEEP = RetentionPolicy()


def retention_start(spans: Sequence[SegmentSpan], policy: RetentionPolicy, now_ms: int) -> int:
    """The offset that the log is to start with; `spans` are the log's segments, oldest first,
    `now_ms` is `AgreedTime.settled_ms`.

    Returns 0 or less than the present start where nothing is to be deleted.
    """
    start = 0
    if policy.retention_ms != FOREVER:
        for span in spans:
            if span.max_timestamp < 0 or span.max_timestamp + policy.retention_ms >= now_ms:
                break
            start = span.end_offset
    if policy.retention_bytes != FOREVER:
        left = sum(span.bytes for span in spans)
        for span in spans[:-1]:
            left -= span.bytes
            if left < policy.retention_bytes:
                break
            start = max(start, span.end_offset)
    return start
