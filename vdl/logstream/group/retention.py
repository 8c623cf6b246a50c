"""Retention of a partition's records: `retention.ms` and `retention.bytes`.

Retention deletes whole segments, oldest first, as Kafka does: a segment is deleted when its newest
record is older than the time, or when the remaining segments are still as large as the size. By
time the newest segment may be deleted too, if nothing was written for that long; by size it never
is. The leader decides and the decision is an entry in the partition's log, so all replicas have one
log start.

Time is the cluster's settled time (`time/agreed_time.py`): no wrong clock deletes early.

A segment without any timestamp (Kafka's -1; or one of commands alone) is older than what follows
and is deleted with it. If no segment with a time follows, it is deleted when a leader has known it
for the retention time: Kafka takes the file's time, which differs between replicas. Each new
leader, or each restart of it, starts to count anew, so it is deleted late rather than early.

Records that a live follower still needs are held back: a follower that is fed from the log's start,
no faster than producers write, would otherwise have to begin there again and again, and be no copy
for as long. They are held until twice the retention limit is kept, so that a stuck follower does
not fill the disks of the others. Then producers are slowed while the follower makes progress
(`push_back.py`). At four times the limit they are deleted all the same: the follower may be too
slow for ever.

Does not depend on topics, their settings, or how deleting is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ids import Offset
from segments.api import SegmentLimits, SegmentSpan
from vdl.state.empty import NO_KEYS

FOREVER = -1


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Retention settings of a topic; -1 is without limit."""

    retention_ms: int = FOREVER
    retention_bytes: int = FOREVER
    segments: SegmentLimits | None = None
    """Limits at which a replica's log begins new segments; None: the store's."""

    @property
    def keeps_everything(self) -> bool:
        """True if nothing is ever deleted."""
        return self.retention_ms == FOREVER and self.retention_bytes == FOREVER

    @property
    def at_most(self) -> RetentionPolicy:
        """Limits that apply while a follower needs records; twice these if it makes progress."""
        return RetentionPolicy(
            self.retention_ms if self.retention_ms == FOREVER else HELD * self.retention_ms,
            self.retention_bytes
            if self.retention_bytes == FOREVER
            else HELD * self.retention_bytes,
        )


HELD = 2
"""Multiple of the retention limit that is kept for followers."""
KEEP = RetentionPolicy()


class UntimedSegments:
    """Times since when a leader knows its log's segments without timestamps.

    A segment is identified by its end, so one that grows is as new as its last record.
    """

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = NO_KEYS
        """End offset -> stamping time; compared with settled time when deleting."""

    def look(self, spans: Sequence[SegmentSpan], stamp_ms: int) -> None:
        """Note the present segments, `spans`; forget all others."""
        before = self._since_ms
        since_ms: dict[int, int] = {
            span.end_offset: before.get(span.end_offset, stamp_ms)
            for span in spans
            if span.max_timestamp < 0
        }
        self._since_ms = since_ms or NO_KEYS

    def known_before(self, span: SegmentSpan, ms: int) -> bool:
        since_ms = self._since_ms.get(span.end_offset)
        return since_ms is not None and since_ms < ms


def retention_start(
    spans: Sequence[SegmentSpan], policy: RetentionPolicy, now_ms: int, untimed: UntimedSegments
) -> Offset:
    """Return the offset with which the log is to start.

    `spans` are the log's segments, oldest first, `now_ms` is `AgreedTime.settled_ms`, and `untimed`
    has noted them. The result is 0, or below the present start, if nothing is to be deleted.
    """
    start = Offset(0)
    if policy.retention_ms != FOREVER:
        before_ms = now_ms - policy.retention_ms
        for span in spans:
            if span.max_timestamp < 0:
                if not untimed.known_before(span, before_ms):
                    continue  # it is deleted with the next one that has a time
            elif span.max_timestamp >= before_ms:
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


def held_starts(
    spans: Sequence[SegmentSpan],
    policy: RetentionPolicy,
    now_ms: int,
    untimed: UntimedSegments,
    *,
    needed: Offset,
) -> tuple[Offset, Offset]:
    """As `retention_start`, while a follower needs offsets from `needed` on.

    Return the start that keeps all of them, and the start that does not wait for the follower. The
    two are equal if `at_most` keeps all needed records, or if even twice `at_most` does not keep
    them.
    """
    wanted = retention_start(spans, policy, now_ms, untimed)
    if wanted <= needed:
        return wanted, wanted
    patient = max(
        (span.end_offset for span in spans if span.end_offset <= needed), default=Offset(0)
    )
    at_most = retention_start(spans, policy.at_most, now_ms, untimed)
    if at_most <= needed:
        return patient, patient
    if retention_start(spans, policy.at_most.at_most, now_ms, untimed) > needed:
        return at_most, at_most
    return patient, at_most
