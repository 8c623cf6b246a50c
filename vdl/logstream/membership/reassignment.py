"""The end of a reassignment: from members that are what they are to be, to replicas that may go.

Four parties do one step each, as with a replacement (`replacement.py`); all of it follows from
state, so that whoever leads next goes on:

1. The catalog decides what the members are to be. A replica that is not wanted any more is listed
   as leaving: its server keeps it.
2. The servers of new replicas make them (`replicas.py`).
3. The group's leader adds the new ones as learners, makes them voters when all of them have caught
   up, and then removes those that leave (`conf_changes.py`). One that leaves itself hands the
   leadership over first.
4. Then it writes into the group's own log that this is done, by a membership change that changes
   nobody and carries the revision of the catalog's decision. Once that is applied, it says so to
   the catalog, which forgets the replicas that left. Only then are they deleted.

The entry of step 4 is needed for two reasons. A leader whose catalog is older than the entry's
revision changes no members, so none of those deleted can be taken back in. And who has the entry
knows that the removals before it are committed: without it, followers of a leader that dies at that
moment might wait for the votes of replicas that are deleted by then.

Must not know: how members change, what the catalog makes of it.
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
"""Of more than that the others are told next time."""
DEADLINE_NS = 2_000 * MS
"""After which the catalog is told again what nobody is known to have told it."""


class Reassignment:
    """One server's part in it, as the leader of groups."""

    __slots__ = ("_done", "_forwarding", "_is_told", "_state", "_transfers")

    def __init__(self, state: HostState, forwarding: Forwarding, transfers: Transfers) -> None:
        self._state = state
        self._forwarding = forwarding
        self._transfers = transfers
        self._done: list[FinishedMove] = []
        """What the catalog is to be told next."""
        self._is_told = False
        """Whether a command is on its way."""

    def go_on(self, group: Group, has_caught_up: Callable[[NodeId], bool]) -> None:
        """No member is to be added or removed in a led group just now: take the next step after
        that, if it is time for it. `finish` follows. `has_caught_up`: see `next_change`."""
        node, membership = group.node, group.node.membership
        if node.membership_changing or node.transferring:
            return
        if node.id in group.leaving:
            if can_take_over(node, group.placement, has_caught_up):
                self._transfers.hand_to_wanted(group)
        elif membership.learners or membership.incoming != frozenset(group.placement):
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
        """Tell the catalog of all groups that have done their part."""
        done, self._done = self._done, []
        if not done or self._is_told:
            return
        self._is_told = True

        def told(outcome: Outcome) -> None:
            del outcome  # what counts is what the applied catalog says next time
            self._is_told = False

        first = self._state.told_of(done[0].group_id)
        self._state.log.info("replicas_moved", partitions=len(done), first=first)
        self._forwarding.propose(
            FinishReassignments(done[:FINISHED_PER_COMMAND_MAX]),
            deadline_ns=self._state.clock.now_ns() + DEADLINE_NS,
            done=told,
        )
