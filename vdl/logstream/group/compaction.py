"""How far a partition's log is compacted, and when: what its leader decides by.

Compaction keeps the newest record of each key. The leader decides up to which entry, and the
decision is an entry in the partition's log (`Compact`), so what is removed is the same on every
replica, whenever each gets to it. Whole segments are looked at, never the newest.

It is decided when the part that was written since the last decision is large enough
(`min.cleanable.dirty.ratio`), or has waited for long enough (`max.compaction.lag.ms`); records
younger than `min.compaction.lag.ms` are left out. Their times are compared with the cluster's
settled time, as for retention: no wrong clock makes a record old. What waits for too long is told
by the time of stamps.

A deletion marker goes some time after its first compaction (`delete.retention.ms`), so that who
reads from the beginning meets it. Two rules say when:

* No wall clock takes part. Each replica marks on its own monotonic clock when it was first
  compacted so far (`CompactedMarks`), as for idle producers. Marks are in memory only: a server
  that starts reckons anew, so markers go late rather than early.
* A marker goes only when every replica reports to have lost all that it deletes. Else one that was
  away, or is being fed, could have a deleted record and never hear of its deletion.

Must not know: topics and their settings, how entries are rewritten, who reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ids import NO_INDEX, Index
from segments.api import SegmentSpan
from vdl.clock import MS

PARTS = 24
"""Marks are apart by this part of the time that deletion markers are kept: they are kept for
longer by no more than that."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """What a compacted topic asks for."""

    min_lag_ms: int = 0
    max_lag_ms: int = (1 << 63) - 1
    delete_retention_ms: int = 86_400_000
    dirty_ratio: float = 0.5


def compaction_end(
    spans: Sequence[SegmentSpan],
    policy: CompactionPolicy,
    *,
    compacted: Index,
    stable: Index,
    settled_ms: int,
    stamp_ms: int,
) -> Index:
    """The last entry that is to be compacted, where entries up to `compacted` are; 0 when there is
    too little to be worth it. `spans` are the log's segments, and last its tail. Behind `stable`
    transactions are open: nobody knows yet what of them stays."""
    clean_bytes = dirty_bytes = 0
    upto = NO_INDEX
    is_overdue = False
    began_ms = -1
    for span in spans[:-2]:
        if span.last_index <= compacted:
            clean_bytes += span.bytes
            began_ms = max(began_ms, span.max_timestamp)
            continue
        if span.last_index > stable:
            break
        if policy.min_lag_ms and span.max_timestamp > settled_ms - policy.min_lag_ms:
            break
        # Nobody knows the oldest time in a segment. It is hardly before the newest of those before.
        oldest_ms = span.max_timestamp if began_ms < 0 else min(began_ms, span.max_timestamp)
        is_overdue = is_overdue or 0 <= oldest_ms <= stamp_ms - policy.max_lag_ms
        began_ms = max(began_ms, span.max_timestamp)
        dirty_bytes += span.bytes
        upto = span.last_index
    if not upto:
        return NO_INDEX
    ratio = dirty_bytes / max(1, clean_bytes + dirty_bytes)
    return upto if is_overdue or ratio > policy.dirty_ratio else NO_INDEX


class CompactedMarks:
    """Up to which entry one replica was compacted, and since when."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[Index, int]] = deque()
        """(index, monotonic ns), oldest first. Invariant: both rise; at most `PARTS` + 2."""

    @property
    def newest(self) -> Index:
        """Up to where the replica is known to be compacted; 0: nothing is."""
        return self._marks[-1][0] if self._marks else NO_INDEX

    def note(self, upto: Index, retention_ms: int, now_ns: int) -> None:
        """All entries up to `upto` are compacted."""
        marks = self._marks
        if marks and (upto <= marks[-1][0] or now_ns - marks[-1][1] < retention_ms * MS // PARTS):
            return
        if upto:
            marks.append((upto, now_ns))
        if (
            len(marks) > PARTS + 2
        ):  # the time was made shorter: what lies between waits for the next
            del marks[1]

    def markers_upto(self, retention_ms: int, now_ns: int) -> Index:
        """The last entry whose deletion markers were compacted so long ago; 0: there is none. No
        older mark is needed any more."""
        marks = self._marks
        before_ns = now_ns - retention_ms * MS
        while len(marks) > 1 and marks[1][1] <= before_ns:
            marks.popleft()
        return marks[0][0] if marks and marks[0][1] <= before_ns else NO_INDEX
