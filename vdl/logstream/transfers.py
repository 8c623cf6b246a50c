"""Which leaderships should move, and to whom (thesis §3.10).

Four reasons to hand one over: this server stops; its disk is full; its disk hangs while the
followers' disks keep the group alive; or the first replica of the placement, which should lead when
it can, is back and has caught up. The last happens one at a time, so that a server that comes back
is not flooded by all its clients at once.

Must not know: when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raft.progress import ProgressState
from raft.types import NodeId
from vdl.logstream.group import Group
from vdl.logstream.membership import is_caught_up
from vdl.logstream.turn import server_of


class Transfers:
    """The leaderships of one server. `groups` are the host's own, read only."""

    __slots__ = ("_can_lead", "_groups", "_mark_dirty", "_tick")

    def __init__(
        self,
        *,
        groups: Mapping[int, Group],
        can_lead: Callable[[int], bool],
        tick: Callable[[], int],
        mark_dirty: Callable[[Group], None],
    ) -> None:
        """`can_lead`: whether a server is there and able to lead."""
        self._groups = groups
        self._can_lead = can_lead
        self._tick = tick
        self._mark_dirty = mark_dirty

    def hand_over_all(self) -> int:
        """This server stops, or its disk is full: give every leadership to the voter that can lead
        and has most of its log; how many are left."""
        left = 0
        for group in list(self._groups.values()):
            if group.node.is_leader:
                left += self._hand_to_best(group)
        return left

    def make_room(self) -> None:
        """This server's disk hangs: hand over what the followers' disks keep alive."""
        for group in list(self._groups.values()):
            if group.node.is_leader and group.node.commit > group.node.stable:
                self._hand_to_best(group)

    def return_one(self) -> None:
        """Let one placement's first replica lead again."""
        group = next_to_return(self._groups, self._can_lead)
        if group is not None:
            self._hand_over(group, group.placement[0])

    def _hand_to_best(self, group: Group) -> bool:
        heir = best_heir(group, self._can_lead)
        if heir:
            self._hand_over(group, heir)
        return bool(heir)

    def _hand_over(self, group: Group, heir: NodeId) -> None:
        if not group.node.transferring:
            group.catch_up(self._tick())
            group.node.transfer_leader(heir)
            self._mark_dirty(group)


def best_heir(group: Group, can_lead: Callable[[int], bool]) -> NodeId:
    """The live voter that has most of a led group's log, 0 when there is none."""
    best, best_match = 0, -1
    for replica in sorted(group.node.membership.incoming):
        if replica == group.replica_id or not can_lead(server_of(replica)):
            continue
        progress = group.node.progress(replica)
        if progress is None or progress.state is not ProgressState.REPLICATE:
            continue  # it has not shown what it has since this leader came, or since it came back
        if progress.match > best_match:
            best, best_match = replica, progress.match
    return best


def next_to_return(groups: Mapping[int, Group], can_lead: Callable[[int], bool]) -> Group | None:
    """A led group whose preferred leader is another replica that is there and has caught up."""
    for group in groups.values():
        node = group.node
        first = group.placement[0]
        if (
            group.serving
            and first != group.replica_id
            and not node.transferring
            and can_lead(server_of(first))
            and first in node.membership.incoming
            and is_caught_up(node, first)
        ):
            return group
    return None
