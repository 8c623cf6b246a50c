"""Replacement of lost replicas: a wiped directory, or a replica that lost durable data.

Such a replica must never vote or acknowledge again under its old number: it may have done so before
without remembering it. It gets a successor, an ordinary new member. Four parties do one step each,
repeatedly until there is nothing left to do, so that any of them may fail at any point:

1. A server in a directory that the catalog does not know requests its number from its peers, and
   waits. The *catalog's leader* sees on the link that an initial voter has a new directory and
   proposes `ReplaceServer`. A server that found single replicas lost proposes `ReplaceReplicas`
   itself.
2. The catalog's state machine assigns the new numbers and retires the old directory.
3. Each *group's leader* changes the members to those in the catalog (`conf_changes.py`): the old
   one is removed, the new one added as a learner, brought up to date, and made a voter.
4. The *new directory* creates the replicas that the catalog lists in it: that of the catalog group
   when a member sends its number, the others as its own catalog applies.

This needs an intact majority of the group and of the catalog. Without one nothing is replaced,
because it is unknown then which records were acknowledged. The segments of a lost replica are kept
until a leader of its group feeds the successor. A replica that is the only one of its group gets no
successor. In both cases the group halts, and that is reported.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import segments.api as storage
from ids import NO_SERVER, DirectoryId, GroupId, NodeId, ReplicaNumber, ServerId
from raft.errors import ProposalDropped
from raft.types import ConfChangeType
from rpc.birth import encode_ask
from rpc.peer import FrameType
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.state_group import Outcome
from vdl.logstream.membership.conf_changes import (
    as_change,
    next_change,
)
from vdl.logstream.membership.reassignment import Reassignment
from vdl.logstream.membership.replicas import Replicas
from vdl.logstream.membership.rounds import Rounds
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.peers.forwarding import Forwarding
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.state import CATALOG_GROUP, HostState
from vdl.state.catalog import Catalog
from vdl.state.commands import LostReplica, ReplaceReplicas, ReplaceServer

PARTITIONS_MAX = 16
"""Maximum number of partitions, of those a server leads, that bring up new replicas at a time. The
catalog and the coordinators do not count and do not wait: without them no server gets its
partitions. An overdue partition (`rounds.py`) does not count any more."""

DEADLINE_NS = 2_000 * MS
"""Time after which a proposal without a known outcome is repeated."""

LOST_PER_COMMAND_MAX = 10_000
HALTED_NS = 30_000 * MS
"""Time after which a successor that no leader feeds is reported."""
SMALL_GROUPS_PATIENCE = 60
"""Factor by which the catalog's leader waits longer for a server whose data no other server has."""


@dataclass(slots=True)
class Stranger:
    """A directory that is not the one in the catalog for its server."""

    directory_id: DirectoryId
    since_ns: int
    """Time since when its link has been up, as seen by this catalog leader."""
    is_reported: bool = False
    """True if it was reported that the server's old directory cannot be retired yet."""


def groups_that_halt(catalog: Catalog, server_id: ServerId, liveness: Liveness) -> list[GroupId]:
    """Return the groups with a replica on this server that no other server leads.

    They may need the server's old data for their majority. The list of live servers does not show
    that, because a new replica may not be a member yet.
    """
    system = range(1 + catalog.coordinator_groups)
    return [
        group_id
        for group_id in (*system, *catalog.groups)
        if catalog.replica_number(group_id, server_id)
        and liveness.leader_of(group_id)[0] in (-1, server_id)
    ]


class Replacement:
    """Part of one server in replacements."""

    def __init__(
        self,
        state: HostState,
        replicas: Replicas,
        liveness: Liveness,
        forwarding: Forwarding,
        transfers: Transfers,
    ) -> None:
        self._state = state
        self._reassignment = Reassignment(state, forwarding, transfers)
        self._replicas = replicas
        self._liveness = liveness
        self._forwarding = forwarding
        self._patience_ns = state.options.patience_ns
        """Time for which a server must have been back with a new directory; long enough for a
        leader that hears no majority to have noticed."""
        self._rounds: dict[GroupId, Rounds] = {}
        """By id: groups led here whose members have to change."""
        self._strangers: dict[ServerId, Stranger] = {}
        """Servers that are back with another directory, while the catalog is led here."""
        self._unfed: dict[GroupId, int] = {}
        """By group: time since when a successor here has waited for a leader; 0 once it is
        reported."""
        self._proposed: set[ServerId] = set()
        """Servers with a proposal in flight; 0 for this server's lost replicas."""

    # --- often ---------------------------------------------------------------------------------
    def change_members(self) -> bool:
        """Take the next step in every led group whose members differ from the wanted ones.

        Return True if there is such a group. Not before the catalog here is open: until then only
        the birth record says what is wanted, and a coordinator may lead already.
        """
        if not self._state.catalog_group.is_running:
            return False
        unsettled = [
            group
            for group in self._state.groups.values()
            if group.serving and group.node.is_leader and not group.is_settled
        ]
        self._look_at_rounds(unsettled)
        busy = {group.group_id for group in unsettled if self._is_catching_up(group)}
        for group in unsettled:
            if group.revision > group.wanted_revision:
                continue  # the catalog here is older than the group's last change
            change = next_change(
                group.node,
                group.placement,
                self._rounds[group.group_id].has_caught_up,
                leaving=group.leaving,
                adding=group.adding,
                observing=group.observers,
                may_come=partial(self._may_come, group, busy),
            )
            if change is None:
                if group.to_finish:
                    self._reassignment.go_on(group, self._rounds[group.group_id].has_caught_up)
                continue
            if change.type is ConfChangeType.ADD_LEARNER_NODE and group.owner.entries_are_state:
                busy.add(group.group_id)
            try:
                group.node.propose_conf_change(as_change(change))
            except ProposalDropped:
                continue
            self._state.log.info(
                "member_change",
                partition=self._state.told_of(group.group_id),
                change=change.type.name,
                server=server_of(change.node_id),
            )
            self._state.outbox.mark_dirty(group)
        self._reassignment.finish()
        return bool(unsettled)

    def _look_at_rounds(self, unsettled: Collection[Group]) -> None:
        """Update the progress of members in groups whose members have to change; forget others."""
        known, self._rounds = self._rounds, {}
        tick = self._state.loop_time.tick()
        for group in unsettled:
            node = group.node
            rounds = known.get(group.group_id)
            if rounds is None or rounds.term != node.term:
                rounds = Rounds(node.term, election_ticks=self._state.options.election_ticks)
            rounds.look(node, node.membership.members(), tick)
            self._rounds[group.group_id] = rounds

    def _is_catching_up(self, group: Group) -> bool:
        """Return True if a led partition is bringing up new replicas, and so takes a place.

        A replica that waits for others, or is away, takes none. An overdue one has given its place
        back: it is fed like a follower that lags, and others get their turn.
        """
        rounds = self._rounds[group.group_id]
        return group.owner.entries_are_state and any(
            self._is_there(learner)
            and not rounds.has_caught_up(learner)
            and not rounds.is_overdue(learner)
            for learner in group.node.membership.learners
        )

    def _may_come(self, group: Group, busy: Collection[GroupId], replica: NodeId) -> bool:
        """Return True if a replica can be added, and would not just take a place.

        A partition that has a place may bring up all of its replicas: they become voters together.
        """
        has_place = group.group_id in busy or len(busy) < PARTITIONS_MAX
        return self._is_there(replica) and (has_place or not group.owner.entries_are_state)

    def _is_there(self, replica: NodeId) -> bool:
        """Return True if the replica's server runs in the directory listed in the catalog."""
        hello = self._state.alive.get(server_of(replica))
        return hello is not None and hello.directory_id == self._state.catalog.directory_of(
            hello.server_id
        )

    # --- periodically --------------------------------------------------------------------------
    def look_around(self) -> None:
        """Start the replacements that this server has to start. Use: once a second."""
        if not self._state.catalog_group.is_running:
            for server in sorted(self._state.alive):
                self.request_number(server)
        elif self._state.catalog_group.serving:
            self._replace_wiped()
        if self._state.lost:
            self._replace_lost()
        if self._replicas.predecessors or self._unfed:
            self._end_predecessors()

    def request_number(self, server_id: ServerId) -> None:
        """Request from a peer the number of this directory's replica of the catalog group."""
        if not self._state.catalog_group.is_running:
            self._state.transport.send(server_id, FrameType.ASK, encode_ask())

    def number_for(self, server_id: ServerId) -> int:
        """Return the catalog replica number of a peer in its present directory.

        0 while the catalog applied here does not know that directory. A server without a birth
        record that was added with this directory adopts the record then. One that is back under the
        id of a removed server must not: the catalog here may not have applied the removal.
        """
        if not self._state.catalog_group.is_running:
            return 0
        hello = self._state.hello_of(server_id)
        if hello is None:
            return 0
        if self._state.catalog.directory_of(server_id) != hello.directory_id:
            return 0
        return self._state.catalog.replica_number(CATALOG_GROUP, server_id)

    def _replace_wiped(self) -> None:
        """Retire directories whose server has been back with another one for a while.

        Use: while the catalog is led here. Not at once: a volume may have been mounted late, or the
        wrong process been started, and a retired directory is never taken back. Not while a group
        needs the old directory for its majority.
        """
        now_ns = self._state.clock.now_ns()
        for server_id, hello in sorted(self._state.alive.items()):
            old = self._state.catalog.directory_of(server_id)
            if (
                old in (None, hello.directory_id)
                or hello.directory_id in self._state.catalog.retired
            ):
                self._strangers.pop(server_id, None)
                continue
            stranger = self._strangers.get(server_id)
            if stranger is None or stranger.directory_id != hello.directory_id:
                stranger = self._strangers[server_id] = Stranger(hello.directory_id, now_ns)
            waited_ns = now_ns - stranger.since_ns
            if waited_ns < self._patience_ns:
                continue
            halted = groups_that_halt(self._state.catalog, server_id, self._liveness)
            if waited_ns < self._patience_for(halted):
                self._warn_awaited(stranger, server_id, len(halted))
                continue
            self._state.log.warning(
                "server_replaced",
                server=server_id,
                old_directory=old.hex(),
                directory=hello.directory_id.hex(),
            )
            self._propose(server_id, ReplaceServer(server_id, old, hello.directory_id))

    def _patience_for(self, halted: list[GroupId]) -> float:
        """Return how long to wait before a directory is retired, in nanoseconds.

        Groups of three that have no majority now may have one when another server is back. Groups
        of one or two never will, so they are abandoned after some time.
        """
        largest = max((len(self._state.catalog.listed(group_id)) for group_id in halted), default=0)
        if not largest:
            return self._patience_ns
        return inf if largest > 2 else SMALL_GROUPS_PATIENCE * self._patience_ns

    def _warn_awaited(self, stranger: Stranger, server_id: ServerId, groups: int) -> None:
        if not stranger.is_reported:
            stranger.is_reported = True
            self._state.log.warning(
                "directory_awaited",
                server=server_id,
                groups=groups,
                meaning=(
                    "these groups have no leader: their records may be in the previous "
                    "directory of this server"
                ),
            )

    @property
    def halted_groups(self) -> list[GroupId]:
        """Groups whose replica here lost durable data, until a majority has fed its successor."""
        return sorted(self._state.lost.keys() | self._replicas.predecessors.keys())

    def _end_predecessors(self) -> None:
        """Delete predecessors whose data a majority has; report groups without a majority."""
        now_ns, kept = self._state.clock.now_ns(), self._replicas.predecessors
        for group_id in self._unfed.keys() - kept.keys():
            del self._unfed[group_id]  # its topic is deleted
        for group_id in list(kept):
            group = self._state.groups.get(group_id)
            # The known leader does not count: peers' lists may name one that no majority follows
            # any more.
            if group is not None and group.node.last_index:
                self._unfed.pop(group_id, None)
                self._replicas.fed(group_id)
                continue
            since_ns = self._unfed.setdefault(group_id, now_ns)
            if since_ns and now_ns - since_ns >= HALTED_NS:
                self._unfed[group_id] = 0
                self._report_halted(
                    kept[group_id][-1], "no majority of its replicas has intact data"
                )

    def _report_halted(self, log: storage.Log, why: str) -> None:
        self._state.log.error(
            "group_halted",
            partition=self._state.told_of(log.group_id),
            log=log.log_id,
            meaning=f"{why}; the acknowledged records are unknown, so the local segments are kept",
        )

    def _replace_lost(self) -> None:
        """Propose successors for this server's lost replicas.

        Skips those that have one, and those that no other replica could feed.
        """
        lost = [
            LostReplica(group_id, log.replica_number)
            for group_id, log in sorted(self._state.lost.items())
            if not self._state.catalog_group.is_running
            or (
                self._state.catalog.replica_number(group_id, self._state.server_id)
                <= log.replica_number
                and not self._state.catalog.is_sole(group_id)
            )
        ]
        if lost:
            command = ReplaceReplicas(
                self._state.server_id, self._state.store.directory_id, lost[:LOST_PER_COMMAND_MAX]
            )
            self._propose(NO_SERVER, command)

    def _propose(self, key: ServerId, command: Any) -> None:
        if key in self._proposed:
            return
        self._proposed.add(key)

        def done(outcome: Outcome) -> None:
            del outcome  # the applied catalog decides about the next proposal
            self._proposed.discard(key)

        self._forwarding.propose(
            command, deadline_ns=self._state.clock.now_ns() + DEADLINE_NS, done=done
        )

    def link_down(self, server_id: ServerId) -> None:
        """Forget the server's directory: the next process on that link is judged anew."""
        self._strangers.pop(server_id, None)

    # --- successors ----------------------------------------------------------------------------
    def replica_lost(self, log: storage.Log) -> bool:
        """Note that a replica here lost its log. Return True if that was not known."""
        if self._state.lost.get(log.group_id) is log:
            return False
        self._state.lost[log.group_id] = log
        name = self._state.told_of(log.group_id)
        self._state.log.error("replica_lost", partition=name, log=log.log_id)
        if self._state.catalog.is_sole(log.group_id):
            self._report_halted(log, "it has no other replica")
        return True

    def has_successor(self, group_id: GroupId) -> None:
        """Note that a newer replica of the group is about to run here, or the group is gone."""
        self._state.lost.pop(group_id, None)

    def number_received(self, number: ReplicaNumber) -> None:
        """Take a peer's answer to `request_number`."""
        if number and not self._state.catalog_group.is_running:
            self._replicas.number_received(number)
