"""Which leaderships should move, and to whom (thesis §3.10).

Six reasons to hand one over: this server serves no clients, because it stops or, if it is the
catalog's, starts; its loop has been late for long; its disk is full; its disk hangs while the
followers' disks keep the group alive; its replica leaves the group; or the first replica of the
placement, which should lead when it can, is back, has caught up and has no damaged entries left.
The last happens in small batches, so that a server that comes back is not flooded by all its
clients at once.

A leadership goes to the first replica of its placement when that one can lead, else to the server
that leads least of those that have all that is committed, or nearly: when a server with thousands
stops, the others share them. One with damaged entries comes after all others: it leads, but what
is damaged it cannot give to consumers.

Must not know: when it is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ids import GroupId, NodeId, ServerId
from raft.errors import Compacted, NotInMemory
from raft.node import RawNode
from raft.progress import ProgressState
from raft.types import NONE
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import server_of
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState

LITTLE_ENTRIES = 100
"""A replica that misses no more than this of what is committed leads without a noticeable
pause. What is under way counts for nobody: under load that is always more."""
LITTLE_BYTES = 1 << 20
"""Nor more than this, unless it is one entry."""

RETURN_ROUNDS_MAX = 32
"""Seconds between attempts to give back one leadership that does not go."""
RETURN_WITHIN_ROUNDS = 30
"""Each second so large a part of those that are to return goes, but one at least: a server that
comes back has most of them after a minute, however many they are."""
RETURNS_MAX = 100
"""Of them go at most each second."""


class _Attempt(NamedTuple):
    """To give a leadership back: the round before which it is not tried again, rounds waited."""

    due: int
    wait: int


class Transfers:
    """The leaderships of one server."""

    __slots__ = ("_groups", "_liveness", "_returned", "_round", "_state", "_status")

    def __init__(self, state: HostState, status: ServerStatus, liveness: Liveness) -> None:
        self._state = state
        self._groups = state.groups
        self._status = status
        self._liveness = liveness
        self._round = 0
        """How often `return_some` was called."""
        self._returned: dict[GroupId, _Attempt] = {}
        """By group id: leaderships that were to return not long ago."""

    def hand_over_all(self) -> int:
        """This server stops, or its disk is full: give every leadership away that somebody can
        take; how many of those are left."""
        return self._hand_out([group for group in self._groups.values() if group.node.is_leader])

    def make_room(self) -> None:
        """This server's disk hangs: hand over what the followers' disks keep alive."""
        groups = self._groups.values()
        self._hand_out([g for g in groups if g.node.is_leader and g.node.commit > g.node.stable])

    def hand_to_wanted(self, group: Group) -> None:
        """This replica leaves the group: give the leadership to one that stays."""
        transferee = self._best_transferee(group, {}, among=group.placement)
        if transferee:
            self._hand_over(group, transferee)

    def return_some(self) -> None:
        """Let some placements' first replicas lead again: called once a second. One that comes to
        nothing, because that replica's disk hangs, say, costs its producers an election timeout,
        so it is tried ever more rarely. Those that were tried least often go first."""
        self._round += 1
        due = to_return(self._groups, self._may_return)
        due.sort(key=self._tries)
        count = min(-(-len(due) // RETURN_WITHIN_ROUNDS), RETURNS_MAX)
        for group in due[:count]:
            before = self._returned.get(group.group_id, _Attempt(0, 1))
            wait = min(2 * before.wait, RETURN_ROUNDS_MAX)
            self._returned[group.group_id] = _Attempt(self._round + wait, wait)
            self._hand_over(group, group.placement[0])
        for group_id, attempt in list(self._returned.items()):
            if attempt.due <= self._round and not self._leads(group_id):
                del self._returned[group_id]  # it went, and stayed away

    def hand_to_preferred(self, group_ids: Collection[GroupId]) -> list[GroupId]:
        """Somebody asked that the first replicas of these groups' placements lead: begin with those
        that are led here; the ids of those that cannot go, or are led elsewhere. One that the first
        replica leads already is none of them."""
        refused: list[GroupId] = []
        due: dict[GroupId, Group] = {}
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if group is None or not group.node.is_leader:
                refused.append(group_id)
            elif group.placement[0] != group.replica_id:
                due[group_id] = group
        able = to_return(due, self._can_take) if due else []
        for group in able:
            del due[group.group_id]
            self._hand_over(group, group.placement[0])
        # One that is on its way to its placement's first replica need not be sent there again.
        refused += [g for g, group in due.items() if group.node.transferring != group.placement[0]]
        return refused

    def _tries(self, group: Group) -> int:
        attempt = self._returned.get(group.group_id)
        return 0 if attempt is None else attempt.wait

    def _leads(self, group_id: GroupId) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.node.is_leader

    def _may_return(self, group: Group) -> bool:
        attempt = self._returned.get(group.group_id)
        is_due = attempt is None or attempt.due <= self._round
        return is_due and self._can_take(group)

    def _can_take(self, group: Group) -> bool:
        """Whether the server of the placement's first replica could lead the group."""
        server, group_id = server_of(group.placement[0]), group.group_id
        return self._status.can_lead(server, group_id) and not self._status.has_damage(
            server, group_id
        )

    def _hand_out(self, groups: Collection[Group]) -> int:
        """Give these away; how many somebody can take."""
        given: Counter[ServerId] = Counter()
        for group in groups:
            transferee = group.node.transferring or self._best_transferee(group, given)
            if transferee:
                given[server_of(transferee)] += 1
                self._hand_over(group, transferee)
        return given.total()

    def _best_transferee(
        self, group: Group, given: Mapping[ServerId, int], among: Collection[NodeId] = ()
    ) -> NodeId:
        """The live voter that is to lead a led group next, 0 when there is none. `given`:
        leaderships by server that are on their way there already. `among`: not empty, one of these.

        One without damage comes first, then one that misses little, as producers wait until it has
        the rest; among those the placement's first, then the one whose server leads least, then the
        one that misses least.
        """
        best, best_rank = NONE, (False, False, False, 0, 0)
        for replica in sorted(group.node.membership.incoming):
            server = server_of(replica)
            if among and replica not in among:
                continue
            if replica == group.replica_id or not self._status.can_lead(server, group.group_id):
                continue
            progress = group.node.progress(replica)
            if progress is None or progress.state is not ProgressState.REPLICATE:
                # It has not shown what it has since this leader came, or since it came back.
                continue
            is_whole = not self._status.has_damage(server, group.group_id)
            is_near = misses_little(group.node, replica)
            is_first = is_near and replica == group.placement[0]
            load = given.get(server, 0) + self._liveness.count(server) if is_near else 0
            rank = (is_whole, is_near, is_first, -load, progress.match)
            if not best or rank > best_rank:
                best, best_rank = replica, rank
        return best

    def _hand_over(self, group: Group, transferee: NodeId) -> None:
        if not group.node.transferring:
            group.catch_up(self._state.loop_time.tick())
            group.node.transfer_leader(transferee)
            self._state.outbox.mark_dirty(group)


def to_return(groups: Mapping[GroupId, Group], may_return: Callable[[Group], bool]) -> list[Group]:
    """The led groups whose preferred leader is another replica that is there and has caught up."""
    found: list[Group] = []
    for group in groups.values():
        node = group.node
        first = group.placement[0]
        if (
            group.serving
            and first != group.replica_id
            and not node.transferring
            and may_return(group)
            and first in node.membership.incoming
            and misses_little(node, first)
        ):
            found.append(group)
    return found


def misses_little(node: RawNode, member: NodeId) -> bool:
    """Whether a led group's member has shown, to this leader, that it misses little."""
    progress = node.progress(member)
    if progress is None or progress.state is not ProgressState.REPLICATE:
        return False
    missing = node.commit - progress.match
    if not 0 < missing <= LITTLE_ENTRIES:
        return missing <= 0
    try:
        little = node.raft.log.slice(progress.match + 1, node.commit + 1, LITTLE_BYTES)
    except (Compacted, NotInMemory):
        return False
    return len(little) == missing
