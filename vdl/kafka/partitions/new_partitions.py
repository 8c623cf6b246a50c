"""Partitions of which this server learned a moment ago, and whose first leader it awaits.

In Kafka the command that creates a partition names its first leader, so no client ever sees a new
one without. Here a new group elects, and each server learns the result by itself. Metadata
therefore waits for the leaders of new partitions: some clients (kafka-go) fail at once when they
find none, and keep what they found for seconds.

Group ids ascend, so one id separates the new groups from the others.

Does not depend on requests or leaders.
"""

from __future__ import annotations

from collections import deque

from ids import GroupId
from vdl.clock import NEVER


class NewPartitions:
    """Partitions that the applied catalog has added, with their times.

    What an earlier process has learned is new, too: this one has to learn its leaders.
    """

    __slots__ = ("_learned", "_next")

    def __init__(self, next_group_id: GroupId) -> None:
        self._learned: deque[tuple[int, GroupId]] = deque()
        """(time, first new group id) of each addition that may be new still; oldest first."""
        self._next = next_group_id

    def note(self, next_group_id: GroupId, now_ns: int, within_ns: int) -> None:
        """Note the applied catalog's next group id. Partitions are new for `within_ns`."""
        if next_group_id > self._next:
            self._forget(now_ns - within_ns)
            self._learned.append((now_ns, self._next))
            self._next = next_group_id

    def first(self, since_ns: int) -> GroupId:
        """Return the first group id of which this server learned after `since_ns`; `NEVER` for
        none. What was learned before is forgotten."""
        self._forget(since_ns)
        return self._learned[0][1] if self._learned else GroupId(NEVER)

    def _forget(self, before_ns: int) -> None:
        while self._learned and self._learned[0][0] <= before_ns:
            self._learned.popleft()
