"""Leadership transfers: which leaderships move, and to which replica (thesis §3.10).

There are six reasons for a transfer: this server serves no clients, because it stops or, for the
catalog, starts; its loop has been late for long; its disk is full; its disk hangs while the
followers' disks keep the group alive; its replica leaves the group; or the preferred leader is
back, has caught up and has no damaged entries left. The last is done in small batches, so that a
returning server does not get all its clients at once.

A leadership goes to the preferred leader if that one can lead, otherwise to the server with the
fewest leaderships among those that have all committed entries, or nearly all: when a server with
thousands stops, the others share them. A replica with damaged entries comes last: it can lead, but
cannot serve the damaged entries to consumers.
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
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState

LITTLE_ENTRIES = 100
"""Number of committed entries that a replica may lack and still lead without a noticeable pause.
Uncommitted entries are not counted: under load there are always more."""
LITTLE_BYTES = 1 << 20
"""Maximum bytes of these entries, unless it is one entry."""

RETURN_ROUNDS_MAX = 32
"""Maximum time, in seconds, between attempts to return a leadership."""
RETURN_WITHIN_ROUNDS = 30
"""Fraction of the returns done each second, at least one: a returning server has most of its
leaderships after a minute, in any number."""
RETURNS_MAX = 100
"""Maximum number of returns each second."""
HANDED_MIN = 10
"""Leaderships that a late server gives away each second at least."""


class _Attempt(NamedTuple):
    """Last attempt to return a leadership: round of the next one, and rounds to wait."""

    due: int
    wait: int


class Transfers:
    """The leaderships of one server."""

    __slots__ = ("_groups", "_handed_last", "_liveness", "_returned", "_round", "_state", "_status")

    def __init__(self, state: HostState, status: ServerStatus, liveness: Liveness) -> None:
        self._state = state
        self._groups = state.groups
        self._status = status
        self._liveness = liveness
        self._handed_last = 0
        """Group id of the last leadership that `hand_over_some` gave away."""
        self._round = 0
        """Number of calls of `return_some`."""
        self._returned: dict[GroupId, _Attempt] = {}
        """By group id: leaderships with a recent attempt to return them."""

    def hand_over_all(self) -> int:
        """Transfer every leadership that another replica can take. Return the number of these.

        Used when this server stops, or should not lead.
        """
        led = [group for group in self._groups.values() if group.node.is_leader]
        return self._hand_out(led, self._status.reason_not_to_lead or "stopping")

    def hand_over_some(self) -> None:
        """As `hand_over_all`, for a part of the leaderships. Use: once a second, on a late server.

        The others may be nearly as late: they report it before they have all leaderships.
        """
        led = [group for group in self._groups.values() if group.node.is_leader]
        count = min(max(len(led) // RETURN_WITHIN_ROUNDS, HANDED_MIN), RETURNS_MAX)
        able = [group for group in led if self._best_transferee(group, {})]
        # In rotation: a transferee may never take over, and must not hold up the others.
        last = self._handed_last
        able.sort(key=lambda group: (group.group_id <= last, group.group_id))
        for group in able[:count]:
            self._handed_last = group.group_id
        self._hand_out(able[:count], self._status.reason_not_to_lead)

    def make_room(self) -> None:
        """Transfer leaderships that followers' disks keep alive, while this server's disk hangs."""
        groups = self._groups.values()
        kept = [g for g in groups if g.node.is_leader and g.node.commit > g.node.stable]
        self._hand_out(kept, "disk_hung")

    def hand_to_wanted(self, group: Group) -> None:
        """Transfer the leadership of a group that this replica leaves to a remaining one."""
        transferee = self._best_transferee(group, {}, among=group.placement)
        if transferee:
            self._hand_over(group, transferee, "replica_leaves")

    def return_some(self) -> None:
        """Return some leaderships to the preferred leaders. Use: once a second.

        An attempt that fails, for example because that replica's disk hangs, costs producers an
        election timeout, so the attempts become rarer. The least tried leaderships go first.
        """
        self._round += 1
        due = to_return(self._groups, self._may_return)
        due.sort(key=self._tries)
        count = min(-(-len(due) // RETURN_WITHIN_ROUNDS), RETURNS_MAX)
        for group in due[:count]:
            before = self._returned.get(group.group_id, _Attempt(0, 1))
            wait = min(2 * before.wait, RETURN_ROUNDS_MAX)
            self._returned[group.group_id] = _Attempt(self._round + wait, wait)
            self._hand_over(group, group.placement[0], "preferred_leader")
        for group_id, attempt in list(self._returned.items()):
            if attempt.due <= self._round and not self._leads(group_id):
                del self._returned[group_id]  # it moved, and did not come back

    def hand_to_preferred(self, group_ids: Collection[GroupId]) -> list[GroupId]:
        """Start transfers of these groups to their preferred leaders, on an operator's request.

        Return the ids of those that cannot be transferred, or are led elsewhere. Groups that the
        preferred leader leads already are not among them.
        """
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
            self._hand_over(group, group.placement[0], "operator")
        # A transfer to the preferred leader that is under way need not be started again.
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
        """Return True if the preferred leader's server could lead the group."""
        server, group_id = server_of(group.placement[0]), group.group_id
        return self._status.can_lead(server, group_id) and not self._status.has_damage(
            server, group_id
        )

    def _hand_out(self, groups: Collection[Group], reason: str) -> int:
        """Transfer these leaderships. Return the number that have a transferee."""
        given: Counter[ServerId] = Counter()
        for group in groups:
            transferee = group.node.transferring or self._best_transferee(group, given)
            if transferee:
                given[server_of(transferee)] += 1
                self._hand_over(group, transferee, reason)
        return given.total()

    def _best_transferee(
        self, group: Group, given: Mapping[ServerId, int], among: Collection[NodeId] = ()
    ) -> NodeId:
        """Return the live voter that is to lead a led group next, 0 if there is none.

        `given`: number of leaderships in transfer to each server. `among`: if not empty, the
        candidates.

        Replicas without damage come first, then those that lack little, as producers wait until the
        transferee has the rest; among those the preferred leader, then the one whose server leads
        least, then the one that lacks least.
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
                # It has not reported its log since this leader was elected, or since it returned.
                continue
            is_whole = not self._status.has_damage(server, group.group_id)
            is_near = misses_little(group.node, replica)
            is_first = is_near and replica == group.placement[0]
            load = given.get(server, 0) + self._liveness.count(server) if is_near else 0
            rank = (is_whole, is_near, is_first, -load, progress.match)
            if not best or rank > best_rank:
                best, best_rank = replica, rank
        return best

    def _hand_over(self, group: Group, transferee: NodeId, reason: str) -> None:
        if not group.node.transferring:
            self._state.log.note(
                "leadership_transferred",
                partition=self._state.told_of(group.group_id),
                to=server_of(transferee),
                reason=reason,
            )
            group.catch_up(self._state.loop_time.tick())
            if group.node.is_leader:  # it may have stepped down as its time was made up
                group.node.transfer_leader(transferee)
            self._state.outbox.mark_dirty(group)


def to_return(groups: Mapping[GroupId, Group], may_return: Callable[[Group], bool]) -> list[Group]:
    """Return the led groups with another preferred leader that is there and has caught up."""
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
    """Return True if a led group's member has shown to this leader that it lacks little."""
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
