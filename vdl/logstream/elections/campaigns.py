"""Admission of campaigns: as many at a time as this server completes.

An election costs a server work: messages, a vote on disk, an entry that ends the old term. When a
server dies, or all of them start, thousands of groups are due at once. If all campaigned at once,
the last request would be answered after its sender's election timeout; then all would campaign
again, in a higher term, and so on for ever. So due groups wait in a queue here:

* At most `elections_max` campaigns of partitions are under way, and `STARTS_PER_TURN` begin in one
  turn, so that heartbeats and votes of others come between. The next one begins when one ends.
* The catalog and the coordinators do not wait: they are few, and all clients need them.
* A waiting group requests no votes and does not increase its term. It still receives messages, and
  votes. At its turn its timer must still be due; if a leader was heard or a vote given in the
  meantime, the turn is dropped without a replacement.
* The queue adapts to the rate of this server: while its loop is late the bound is halved, ten times
  a second, and it grows again by a quarter while the loop is in time.
* Campaigns that wait for disks cost the loop nothing. On slow disks, as measured by the server's
  own vote writes, such campaigns make room for as many others, ten times a second, while the loop
  is in time. The limit is `DISK_WAITS` times the bound, because all of them request votes at the
  same time when their own are written.
* A campaign without answers holds its place for one election timeout only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from ids import GroupId
from raft.types import StateType
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.options import TICK_NS, HostOptions
from vdl.logstream.time.loop_time import LoopTime

STARTS_PER_TURN: Final = 64
"""Campaigns that begin in one turn of the loop: some 10 ms of work."""

LATE_NS: Final = 100 * MS
"""Lateness of the loop that shows too many campaigns under way."""
FEWEST: Final = 16
"""Minimum bound of campaigns under way on a late server."""

DISK_WAITS: Final = 4
"""Maximum of additional campaigns, as a multiple of the bound, while others wait for disks."""

_CAMPAIGNS: Final = (StateType.PRE_CANDIDATE, StateType.CANDIDATE)


class Campaigns:
    """The queue, and the campaigns of this server that are under way."""

    __slots__ = (
        "_bound",
        "_disk_waits",
        "_in_line",
        "_loop_time",
        "_max",
        "_starts_left",
        "_system_last",
        "_timeout_ns",
        "_waiting",
        "dropped",
        "running",
    )

    def __init__(self, options: HostOptions, loop_time: LoopTime, *, system_last: int) -> None:
        """Create the queue. `system_last`: groups up to this id never wait."""
        self._system_last = system_last
        self._max = self._bound = options.elections_max
        self._loop_time = loop_time
        self._timeout_ns = options.election_ticks * TICK_NS
        """Maximum time for which a campaign holds its place."""
        self._in_line: deque[Group] = deque()
        self._waiting: dict[GroupId, Group] = {}
        """Waiting groups, by id. Queue elements are skipped if they are not here, or if this holds
        another replica of the group."""
        self.running: dict[GroupId, tuple[Group, int]] = {}
        """Campaigns of partitions under way, by group id, with their start; oldest first. Read only
        for others."""
        self._disk_waits = 0
        """Number of additional campaigns that may begin, because others wait for disks."""
        self._starts_left = STARTS_PER_TURN
        self.dropped = 0
        """Number of turns that were not needed any more when they came."""

    @property
    def waiting(self) -> int:
        """Number of groups that wait in the queue."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        """Number of campaigns of partitions under way."""
        return len(self.running)

    def ask(self, group: Group, now_ns: int) -> Iterator[Group]:
        """Queue a due group. Yield the groups that may campaign now: this one, others, or none.

        The caller lets each campaign, if it is still due, before it takes the next.
        """
        number = group.group_id
        if number <= self._system_last or number in self.running:
            yield group
        elif number not in self._waiting:
            self._waiting[number] = group
            self._in_line.append(group)
            yield from self.admit(now_ns)

    def noted(self, group: Group) -> None:
        """Note that a turn of a group in `running` ended, and possibly its campaign."""
        if group.node.raft.state not in _CAMPAIGNS:
            del self.running[group.group_id]

    def forget(self, group: Group) -> None:
        """Forget a replica that is not here any more."""
        self._waiting.pop(group.group_id, None)
        self.running.pop(group.group_id, None)

    def turn_ended(self) -> bool:
        """Note that a turn of the loop ended: more campaigns may begin.

        Return True if any groups wait, for `admit`.
        """
        self._starts_left = STARTS_PER_TURN
        return bool(self._in_line)

    def look(self, now_ns: int) -> Iterator[Group]:
        """Adapt the bound, and free the places of campaigns without answers. Yields as `ask`."""
        is_late = self._loop_time.late_ns >= LATE_NS
        if is_late:
            self._bound = max(min(FEWEST, self._max), self._bound // 2)
        else:
            self._bound = min(self._max, self._bound + self._bound // 4 + 1)
        while self.running:
            number, (_, since_ns) = next(iter(self.running.items()))
            if now_ns - since_ns < self._timeout_ns:
                break
            del self.running[number]
        self._disk_waits = 0
        if self._in_line and not is_late:
            waits = sum(group.node.raft.waits_for_disks for group, _ in self.running.values())
            self._disk_waits = min(waits, DISK_WAITS * self._bound)
        if self.turn_ended():
            yield from self.admit(now_ns)

    def admit(self, now_ns: int) -> Iterator[Group]:
        """Yield the groups whose turn it is, as far as there are places. See `ask`."""
        places = self._bound + self._disk_waits
        while self._in_line and self._starts_left > 0 and len(self.running) < places:
            group = self._in_line.popleft()
            if self._waiting.get(group.group_id) is not group:
                continue
            del self._waiting[group.group_id]
            yield group
            if group.node.raft.state in _CAMPAIGNS:
                self._starts_left -= 1
                self.running[group.group_id] = (group, now_ns)
            else:
                self.dropped += 1
