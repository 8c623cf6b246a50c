"""Producers of a partition are slowed for a follower that retention would pass.

A follower that is fed more slowly than producers write falls back towards the log's start, and is
no copy for as long as they go on. Retention waits for it (`retention.py`), but not for ever. So at
the end of that patience entries are admitted half as fast as the follower takes them: it gains on
both ends of the log, however slow it is.

A follower must not stop producers. What is asked of it is progress: one that takes nothing for
`STALLED_NS` slows nobody any more until retention looks again, and one that has taken nothing by
then is passed.

Must not know: what retention keeps, where entries wait.
"""

from __future__ import annotations

from ids import Index, NodeId
from vdl.clock import MS, NEVER
from vdl.logstream.group.recovery_throttle import GAIN

STALLED_NS = 1_000 * MS


class PushBack:
    """For one follower, from the ends of the log as they are now: the leader's `last`, and what the
    follower holds durably, its `match`."""

    __slots__ = ("_last", "_match", "_moved_ns", "_seen", "replica")

    def __init__(self, replica: NodeId, *, last: Index, match: Index) -> None:
        self.replica = replica
        self._last = last
        self._match = self._seen = match
        self._moved_ns = NEVER

    def admits(self, *, last: Index, match: Index) -> bool:
        """Whether another entry may be appended."""
        return (last - self._last) * GAIN <= match - self._match

    def goes_on(self, now_ns: int, *, match: Index) -> bool:
        """Whether the follower still takes entries. Use: often, while anybody waits."""
        if match > self._seen or self._moved_ns == NEVER:
            self._seen, self._moved_ns = match, now_ns
        return now_ns - self._moved_ns < STALLED_NS
