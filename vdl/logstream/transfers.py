"""Which leaderships should move, and to whom (thesis §3.10).

Four reasons to hand one over: this server stops; its disk is full; its disk hangs while the
followers' disks keep the group alive; or the first replica of the placement, which should lead when
it can, is back and has caught up. The last happens one at a time, so that a server that comes back
is not flooded by all its clients at once.

Must not know: when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from raft.progress import ProgressState
from raft.types import NodeId
from vdl.logstream.group import Group
from vdl.logstream.membership import is_caught_up
from vdl.logstream.turn import server_of

RETURN_ROUNDS_MAX = 32
"""Seconds between attempts to give back one leadership that does not go."""


class _Attempt(NamedTuple):
    """To give a leadership back: the round before which it is not tried again, rounds waited."""

    due: int
    wait: int


class Transfers:
    """The leaderships of one server. `groups` are the host's own, read only."""

    __slots__ = ("_can_lead", "_groups", "_mark_dirty", "_returned", "_round", "_tick")

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
        self._round = 0
        """How often `return_one` was called."""
        self._returned: dict[int, _Attempt] = {}
        """By group id: leaderships that were to return not long ago."""

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
        """Let one placement's first replica lead again: called once a second. One that comes to
        nothing, because that replica's disk hangs, say, costs its producers an election timeout,
        so it is tried ever more rarely."""
        self._round += 1
        group = next_to_return(self._groups, self._may_return)
        if group is not None:
            before = self._returned.get(group.group_id, _Attempt(0, 1))
            wait = min(2 * before.wait, RETURN_ROUNDS_MAX)
            self._returned[group.group_id] = _Attempt(self._round + wait, wait)
            self._hand_over(group, group.placement[0])
        for group_id, attempt in list(self._returned.items()):
            if attempt.due <= self._round and not self._leads(group_id):
                del self._returned[group_id]  # it went, and stayed away

    def _leads(self, group_id: int) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.node.is_leader

    def _may_return(self, group: Group) -> bool:
        attempt = self._returned.get(group.group_id)
        is_due = attempt is None or attempt.due <= self._round
        return is_due and self._can_lead(server_of(group.placement[0]))

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


def next_to_return(
    groups: Mapping[int, Group], may_return: Callable[[Group], bool]
) -> Group | None:
    """A led group whose preferred leader is another replica that is there and has caught up."""
    for group in groups.values():
        node = group.node
        first = group.placement[0]
        if (
            group.serving
            and first != group.replica_id
            and not node.transferring
            and may_return(group)
            and first in node.membership.incoming
            and is_caught_up(node, first)
        ):
            return group
    return None
