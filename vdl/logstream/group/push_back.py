"""Backpressure on a partition's producers for a follower that retention would pass.

A follower that is fed more slowly than producers write falls back towards the log's start, and is
not in sync as long as they continue. Retention waits for it (`retention.py`), but not for ever.
When that time is over, entries are admitted half as fast as the follower takes them, so that it
gains on both ends of the log at any speed.

A follower must not stop producers, so it has to make progress. One that takes nothing for
`STALLED_NS` no longer slows them until retention runs again. If it has taken nothing by then,
retention deletes records that it needs.
"""

from __future__ import annotations

from ids import Index, NodeId
from vdl.clock import MS, NEVER
from vdl.logstream.group.feed_throttle import GAIN

STALLED_NS = 1_000 * MS


class PushBack:
    """Backpressure for one follower.

    It counts from the present ends of the log: the leader's `last`, and the follower's `match`.
    """

    __slots__ = ("_last", "_match", "_moved_ns", "_seen", "replica")

    def __init__(self, replica: NodeId, *, last: Index, match: Index) -> None:
        self.replica = replica
        self._last = last
        self._match = self._seen = match
        self._moved_ns = NEVER

    def admits(self, *, last: Index, match: Index) -> bool:
        """Return True if another entry may be appended."""
        return (last - self._last) * GAIN <= match - self._match

    def goes_on(self, now_ns: int, *, match: Index) -> bool:
        """Return True if the follower still takes entries. Use: often, while any append waits."""
        if match > self._seen or self._moved_ns == NEVER:
            self._seen, self._moved_ns = match, now_ns
        return now_ns - self._moved_ns < STALLED_NS
