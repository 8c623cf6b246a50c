"""The end of a reassignment: from the wanted members to the removal of old replicas.

Four parties do one step each, as with a replacement (`replacement.py`). Each step follows from
state, so that the next leader can continue:

1. The catalog decides on the members. An unwanted replica is listed as leaving: its server keeps
   it.
2. The servers of new replicas create them (`replicas.py`).
3. The group's leader adds the new ones as learners, makes them voters when all of them have caught
   up, and then removes the leaving ones (`conf_changes.py`). A leader that leaves transfers the
   leadership first.
4. Then it records in the group's own log that this is done, by a membership change without an
   effect that carries the revision of the catalog's decision. When the entry is applied, it reports
   to the catalog, which drops the replicas that left. Only then are they deleted.

The entry of step 4 is needed for two reasons. A leader whose catalog is older than the entry's
revision changes no members, so it cannot add a deleted replica again. And a replica that has the
entry knows that the removals before it are committed: without it, followers of a leader that dies
at that moment might wait for the votes of replicas that are already deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import NodeId
from raft.errors import ProposalDropped
from raft.types import ConfChange, ConfChangeSingle, ConfChangeType
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.snapshots import revision_context
from vdl.logstream.group.state_group import Outcome
from vdl.logstream.membership.conf_changes import can_take_over
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.peers.forwarding import Forwarding
from vdl.logstream.state import HostState
from vdl.state.commands import FinishedMove, FinishReassignments

FINISHED_PER_COMMAND_MAX = 1_000
"""Maximum number of groups in one report; the rest is reported next time."""
DEADLINE_NS = 2_000 * MS
"""Time after which an unconfirmed report to the catalog is repeated."""


class Reassignment:
    """Part of one server in reassignments, as the leader of groups."""

    __slots__ = ("_done", "_forwarding", "_is_told", "_state", "_transfers")

    def __init__(self, state: HostState, forwarding: Forwarding, transfers: Transfers) -> None:
        self._state = state
        self._forwarding = forwarding
        self._transfers = transfers
        self._done: list[FinishedMove] = []
        """Finished moves in the next report to the catalog."""
        self._is_told = False
        """True while a command is in flight."""

    def go_on(self, group: Group, has_caught_up: Callable[[NodeId], bool]) -> None:
        """Take the next step in a led group in which no member has to be added or removed now.

        `finish` must follow. `has_caught_up`: see `next_change`.
        """
        node, membership = group.node, group.node.membership
        if node.membership_changing or node.transferring:
            return
        if node.id in group.leaving:
            if can_take_over(node, group.placement, has_caught_up):
                self._transfers.hand_to_wanted(group)
        elif not membership.learners <= group.observers or membership.incoming != frozenset(
            group.placement
        ):
            return
        elif group.revision < group.wanted_revision:
            self._write(group)
        else:
            self._done.append(FinishedMove(group.group_id, group.wanted_revision))

    def _write(self, group: Group) -> None:
        change = ConfChangeSingle(ConfChangeType.UPDATE_NODE, group.replica_id)
        context = revision_context(group.wanted_revision)
        try:
            group.node.propose_conf_change(ConfChange(changes=(change,), context=context))
        except ProposalDropped:
            return
        self._state.outbox.mark_dirty(group)

    def finish(self) -> None:
        """Report to the catalog all groups that have done their part."""
        done, self._done = self._done, []
        if not done or self._is_told:
            return
        self._is_told = True

        def told(outcome: Outcome) -> None:
            del outcome  # the applied catalog decides about the next report
            self._is_told = False

        first = self._state.told_of(done[0].group_id)
        self._state.log.info("replicas_moved", partitions=len(done), first=first)
        self._forwarding.propose(
            FinishReassignments(done[:FINISHED_PER_COMMAND_MAX]),
            deadline_ns=self._state.clock.now_ns() + DEADLINE_NS,
            done=told,
        )
