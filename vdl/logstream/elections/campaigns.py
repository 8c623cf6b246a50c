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
* The queue adapts to the rate of this server: it begins with a few, and each campaign that is
  quick permits one more. While the loop is late the bound is halved, ten times a second, and it
  grows again while the loop is in time: by a quarter, or by the campaigns that wait for disks.
* Campaigns that wait for disks cost the loop nothing. On slow disks, as measured by the server's
  own vote writes, such campaigns make room for as many others, ten times a second, while the loop
  is in time. The limit is `DISK_WAITS` times the bound, because all of them request votes at the
  same time when their own are written.
* A campaign holds its place until the first entry of the new term commits: half of its messages
  are about that entry. Without answers it holds the place for one election timeout from the time at
  which its peers have read its messages, and is not repeated before. Acknowledged heartbeats
  show what peers have read. So a server slows down with its peers. After
  `PLACE_TIMEOUTS` the place is free, as the groups in the queue may not need the slow peers; the
  campaign is still not repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ids import GroupId
from raft.state import Raft
from raft.types import StateType
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.options import TICK_NS, HostOptions
from vdl.logstream.time.loop_time import LoopTime

STARTS_PER_TURN: Final = 64
"""Campaigns that begin in one turn of the loop: some 10 ms of work."""

LATE_NS: Final = 100 * MS
"""Lateness of the loop that shows too many campaigns under way."""
FIRST: Final = 32
"""Bound of campaigns when none was under way: a server of unknown speed begins with a few."""
QUICK: Final = 4
"""A campaign that takes less than a quarter of an election timeout raises the bound by one."""

FEWEST: Final = 16
"""Minimum bound of campaigns under way on a late server."""
FEWEST_AT_TIMEOUT: Final = 8
"""Minimum bound on a server that is late by an election timeout. Clients may make it so, too."""

DISK_WAITS: Final = 4
"""Maximum of additional campaigns, as a multiple of the bound, while others wait for disks."""

UNREAD_TIMEOUTS: Final = 100
"""Maximum time for which a campaign waits until peers read its messages, in election timeouts."""

PLACE_TIMEOUTS: Final = 3
"""Maximum time for which such a campaign holds its place: others may need other peers."""

_CAMPAIGNS: Final = (StateType.PRE_CANDIDATE, StateType.CANDIDATE)


@dataclass(slots=True)
class Running:
    """One campaign under way."""

    group: Group
    state: StateType
    began_ns: int
    step_ns: int
    """Time at which it came to `state` (monotonic ns)."""


class Campaigns:
    """The queue, and the campaigns of this server that are under way."""

    __slots__ = (
        "_bound",
        "_disk_waits",
        "_first",
        "_held_back",
        "_in_line",
        "_is_unread",
        "_loop_time",
        "_max",
        "_starts_left",
        "_system_last",
        "_timeout_ns",
        "_waiting",
        "dropped",
        "running",
    )

    def __init__(
        self,
        options: HostOptions,
        loop_time: LoopTime,
        *,
        system_last: int,
        is_unread: Callable[[Group, int], bool],
    ) -> None:
        """Create the queue. `system_last`: groups up to this id never wait.

        `is_unread`: returns True if peers of the group are known not to have read what was sent to
        them at that time (monotonic ns), and a majority needs them.
        """
        self._system_last = system_last
        self._is_unread = is_unread
        self._max = options.elections_max
        self._first = self._bound = min(FIRST, self._max)
        self._loop_time = loop_time
        self._timeout_ns = options.election_ticks * TICK_NS
        """Maximum time for which a campaign holds its place."""
        self._in_line: deque[Group] = deque()
        self._waiting: dict[GroupId, Group] = {}
        """Waiting groups, by id. Queue elements are skipped if they are not here, or if this holds
        another replica of the group."""
        self.running: dict[GroupId, Running] = {}
        """Campaigns of partitions under way, by group id. Read only for others."""
        self._held_back: set[GroupId] = set()
        """Campaigns of `running` without a place: peers have not read their messages for long."""
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
        """Number of campaigns of partitions under way that hold places."""
        return len(self.running) - len(self._held_back)

    def ask(self, group: Group, now_ns: int) -> Iterator[Group]:
        """Queue a due group. Yield the groups that may campaign now: this one, others, or none.

        The caller lets each campaign, if it is still due, before it takes the next.
        """
        number = group.group_id
        if number <= self._system_last or number in self.running:
            yield group
        elif number not in self._waiting:
            if not (self.running or self._waiting):
                self._bound = self._first
            self._waiting[number] = group
            self._in_line.append(group)
            yield from self.admit(now_ns)

    def is_held_back(self, group: Group, now_ns: int) -> bool:
        """Return True if a campaign under way is not to be repeated: its messages will be read."""
        found = self.running.get(group.group_id)
        return found is not None and self._is_waiting_for_peers(found, now_ns)

    def noted(self, group: Group, now_ns: int) -> None:
        """Note that a turn of a group in `running` ended, and possibly a step of its campaign."""
        raft, found = group.node.raft, self.running[group.group_id]
        if not _is_under_way(raft):
            self._end(group.group_id)
            if now_ns - found.began_ns < self._timeout_ns // QUICK:
                self._bound = min(self._max, self._bound + 1)
        elif found.state is not raft.state:
            found.state, found.step_ns = raft.state, now_ns
            self._held_back.discard(group.group_id)

    def _is_waiting_for_peers(self, found: Running, now_ns: int) -> bool:
        if now_ns - found.step_ns >= UNREAD_TIMEOUTS * self._timeout_ns:
            return False
        return self._is_unread(found.group, found.step_ns)

    def forget(self, group: Group) -> None:
        """Forget a replica that is not here any more."""
        self._waiting.pop(group.group_id, None)
        self._end(group.group_id)

    def _end(self, number: GroupId) -> None:
        self.running.pop(number, None)
        self._held_back.discard(number)

    def turn_ended(self) -> bool:
        """Note that a turn of the loop ended: more campaigns may begin.

        Return True if any groups wait, for `admit`.
        """
        self._starts_left = STARTS_PER_TURN
        return bool(self._in_line)

    def look(self, now_ns: int) -> Iterator[Group]:
        """Adapt the bound, and free the places of campaigns without answers. Yields as `ask`."""
        late_ns = self._loop_time.late_ns
        is_late = late_ns >= LATE_NS
        if is_late:
            fewest = FEWEST if late_ns < self._timeout_ns else FEWEST_AT_TIMEOUT
            self._bound = max(min(fewest, self._max), self._bound // 2)
        waits = 0
        if self._in_line and not is_late:
            waits = sum(one.group.node.raft.waits_for_disks for one in self.running.values())
        if not is_late:
            self._bound = min(self._max, self._bound + max(self._bound // 4, waits) + 1)
        for number, found in list(self.running.items()):
            age_ns = now_ns - found.step_ns
            if age_ns < self._timeout_ns:
                continue
            if not self._is_waiting_for_peers(found, now_ns):
                self._end(number)
            elif age_ns >= PLACE_TIMEOUTS * self._timeout_ns:
                self._held_back.add(number)
        self._disk_waits = min(waits, DISK_WAITS * self._bound)
        if self.turn_ended():
            yield from self.admit(now_ns)

    def admit(self, now_ns: int) -> Iterator[Group]:
        """Yield the groups whose turn it is, as far as there are places. See `ask`."""
        places = self._bound + self._disk_waits
        while self._in_line and self._starts_left > 0 and self.under_way < places:
            group = self._in_line.popleft()
            if self._waiting.get(group.group_id) is not group:
                continue
            del self._waiting[group.group_id]
            yield group
            state = group.node.raft.state
            if state in _CAMPAIGNS:
                self._starts_left -= 1
                self.running[group.group_id] = Running(group, state, now_ns, now_ns)
            else:
                self.dropped += 1


def _is_under_way(raft: Raft) -> bool:
    """Return True for a candidate, and for a leader until the first entry of its term commits."""
    return raft.state in _CAMPAIGNS or (
        raft.state is StateType.LEADER and not raft.own_term_committed
    )
