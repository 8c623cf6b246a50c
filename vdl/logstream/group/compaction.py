"""Rules by which a partition's leader decides how far the log is compacted, and when.

Compaction keeps the newest record of each key. The leader decides up to which entry, and the
decision is an entry in the partition's log (`Compact`), so every replica removes the same records,
whenever it compacts. Compaction covers whole segments, never the newest.

A compaction is due when the part written since the last decision is large enough
(`min.cleanable.dirty.ratio`), or is old enough (`max.compaction.lag.ms`); records younger than
`min.compaction.lag.ms` are left out. That age is measured by the cluster's settled time, as for
retention: no wrong clock makes a record old. The maximum lag is measured by the stamping time.

A deletion marker is removed some time after its first compaction (`delete.retention.ms`), so that a
consumer reading from the beginning sees it. Two rules determine the time:

* No wall clock takes part. Each replica notes on its own monotonic clock when it was first
  compacted up to an entry (`CompactedMarks`), as for idle producers. Marks are in memory only: a
  server starts without any, so markers are removed late rather than early.
* A marker is removed only when every replica reports that it has removed all records which the
  marker deletes. Otherwise a replica that was away, or is being fed, could keep a deleted record
  and never receive its deletion.

Does not depend on topics, their settings, or how entries are rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ids import NO_INDEX, Index
from segments.api import SegmentSpan
from vdl.clock import MS

PARTS = 24
"""Marks are this fraction of `delete.retention.ms` apart: deletion markers are kept that much
longer at most."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Settings of a compacted topic."""

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
    """Return the last entry to be compacted, where entries up to `compacted` are; 0 if too few.

    `spans` are the log's segments, with its tail last. After `stable` transactions are open: it is
    not decided yet which of their records stay.
    """
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
        # The oldest time in a segment is unknown. It is hardly before the newest of the earlier
        # ones.
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
    """Entries up to which one replica was compacted, with times."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[tuple[Index, int]] = []
        """(index, monotonic ns), oldest first. Invariant: both rise; at most `PARTS` + 2."""

    @property
    def newest(self) -> Index:
        """Index up to which the replica is known to be compacted; 0: none."""
        return self._marks[-1][0] if self._marks else NO_INDEX

    def note(self, upto: Index, retention_ms: int, now_ns: int) -> None:
        """Note that all entries up to `upto` are compacted."""
        marks = self._marks
        if marks and (upto <= marks[-1][0] or now_ns - marks[-1][1] < retention_ms * MS // PARTS):
            return
        if upto:
            marks.append((upto, now_ns))
        if len(marks) > PARTS + 2:  # the period was shortened: marks in between are dropped
            del marks[1]

    def markers_upto(self, retention_ms: int, now_ns: int) -> Index:
        """Return the last entry whose deletion markers were compacted `retention_ms` ago; 0: none.

        Drops older marks, which are not needed any more.
        """
        marks = self._marks
        before_ns = now_ns - retention_ms * MS
        while len(marks) > 1 and marks[1][1] <= before_ns:
            del marks[0]
        return marks[0][0] if marks and marks[0][1] <= before_ns else NO_INDEX
