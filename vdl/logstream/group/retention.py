"""How much of a partition is kept: `retention.ms` and `retention.bytes`.

Retention deletes whole segments, oldest first, as Kafka does: a segment goes when its newest record
is older than the time, or when what is left without it is still as large as the size. By time also
the newest segment may go, when nothing was written for that long; by size it never does. The leader
decides and the decision is an entry in the partition's log, so all replicas have one log start.

Time is the cluster's, settled (`time/agreed_time.py`): no clock that is wrong deletes early.

A segment none of whose records has a time (Kafka's -1; or one of commands alone) is older than what
follows and goes with it. Where nothing that has a time follows, it goes when a leader has known it
for as long as records are kept: Kafka takes the file's time, which differs between replicas. Each
new leader, or each restart of it, reckons anew, so it goes late rather than early.

What a follower that lives still needs waits for it: one that is being fed from the log's start, and
not faster than is written, would else have to begin there again and again, and be no copy for as
long. It waits until twice as much is kept as was asked for, so that one that is stuck does not fill
the disks of the others; then producers are slowed while the follower gets on (`push_back.py`). When
four times as much is kept it is passed all the same: it may get on too slowly for ever.

Must not know: topics and their settings, how deleting is done, who lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ids import Offset
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

    @property
    def at_most(self) -> RetentionPolicy:
        """What is kept while a follower needs it; twice as much for one that gets on."""
        return RetentionPolicy(
            self.retention_ms if self.retention_ms == FOREVER else HELD * self.retention_ms,
            self.retention_bytes
            if self.retention_bytes == FOREVER
            else HELD * self.retention_bytes,
        )


HELD = 2
"""How many times as much as was asked for is kept for followers."""
KEEP = RetentionPolicy()


class UntimedSegments:
    """Since when a leader knows what its log's segments without any time hold. A segment is known
    by its end, so one that grows is as new as its last record."""

    __slots__ = ("_since_ms",)

    def __init__(self) -> None:
        self._since_ms: dict[int, int] = {}
        """End offset -> time of stamps, as for all that is deleted by settled time later."""

    def look(self, spans: Sequence[SegmentSpan], stamp_ms: int) -> None:
        """`spans` as they are now; no others are remembered."""
        before = self._since_ms
        self._since_ms = {
            span.end_offset: before.get(span.end_offset, stamp_ms)
            for span in spans
            if span.max_timestamp < 0
        }

    def known_before(self, span: SegmentSpan, ms: int) -> bool:
        since_ms = self._since_ms.get(span.end_offset)
        return since_ms is not None and since_ms < ms


def retention_start(
    spans: Sequence[SegmentSpan], policy: RetentionPolicy, now_ms: int, untimed: UntimedSegments
) -> Offset:
    """The offset that the log is to start with; `spans` are the log's segments, oldest first,
    `now_ms` is `AgreedTime.settled_ms`, `untimed` has looked at them.

    Returns 0 or less than the present start where nothing is to be deleted.
    """
    start = Offset(0)
    if policy.retention_ms != FOREVER:
        before_ms = now_ms - policy.retention_ms
        for span in spans:
            if span.max_timestamp < 0:
                if not untimed.known_before(span, before_ms):
                    continue  # it goes with the next one that has a time
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
    """As `retention_start`, while a follower needs offsets from `needed` on: with patience, so that
    all of them stay, and without. The two are equal when nothing that `at_most` does not keep would
    have to stay for it, and when so much stays already that there is no patience left."""
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
