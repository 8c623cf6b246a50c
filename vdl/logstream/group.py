"""One replica of one Raft group: the node, its log, and the order in which their answers travel.

The core says what is to be done (`Ready`); this file does it, for one group, inside the host's
turn. Rules:

* What a replica tells anybody about its own log, term or vote leaves only when the journal block
  that holds it is durable; a leader counts itself the same way (thesis §10.2.1).
* Entries are staged before messages are encoded, so that peers are sent the one copy in the cache.
* Timers are lazy: ticks are made up for when a message arrives or something falls due.

Must not know: what entries mean. That is the `Owner`'s: a log stream or a state group.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

import segments.api as storage
from raft.config import Config
from raft.messages import MsgStorageAppend, MsgStorageApply
from raft.node import RawNode
from raft.types import ColdRead, ConfState, Entry, EntryKind, NodeId
from vdl.logstream.options import HostOptions
from vdl.logstream.reads import ReadRounds
from vdl.logstream.storage import LogStorage, as_entry
from vdl.logstream.turn import Turn

_CONF_KINDS = (EntryKind.CONF_CHANGE, EntryKind.CONF_CHANGE_V2)


class Owner(Protocol):
    """What a group's entries are for. All calls come from inside a turn and may not block."""

    def apply(self, entries: Sequence[Entry]) -> None:
        """Committed entries that are durable here, in order, each exactly once."""

    def committed(self, commit: int) -> None:
        """The commit index moved to `commit`."""

    def serving_started(self) -> None:
        """This replica leads and has applied the first entry of its own term (§8)."""

    def leadership_lost(self) -> None:
        """This replica led a term that has ended for it."""

    def leader_changed(self) -> None:
        """The known leader or the term changed."""

    @property
    def busy(self) -> bool:
        """Whether anybody waits here with a deadline."""

    def room_available(self) -> None:
        """Proposals refused for want of room, or during a transfer, may be tried again."""

    def expire(self, now_ns: int) -> None:
        """Answer those whose deadline has passed."""

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        """Applied state that changed since the last call."""


class Group:
    """One replica. `dirty` means the host's next turn pumps it."""

    __slots__ = (
        "applied",
        "commit",
        "dirty",
        "due_tick",
        "group_id",
        "heap_tick",
        "last_tick",
        "last_token",
        "leader_known",
        "leader_lost_ns",
        "log",
        "meta_applied",
        "node",
        "owner",
        "preferred",
        "reads",
        "replica_id",
        "serving",
        "store",
        "term_known",
        "voters",
        "was_leader",
    )

    def __init__(
        self,
        *,
        group_id: int,
        replica_id: NodeId,
        placement: Sequence[NodeId],
        log: storage.Log,
        store: storage.Store,
        owner: Owner,
        applied: int,
        tick: int,
        options: HostOptions,
        rng: random.Random,
    ) -> None:
        self.group_id = group_id
        self.replica_id = replica_id
        self.log = log
        self.store = store
        self.owner = owner
        self.voters = tuple(placement)
        self.node = RawNode(
            Config(
                id=replica_id,
                election_ticks=options.election_ticks,
                heartbeat_ticks=options.heartbeat_ticks,
                rng=rng,
                storage=LogStorage(
                    log, ConfState(voters=tuple(sorted(placement))), applied=applied
                ),
                applied=applied,
                async_storage_writes=True,
                pre_vote=True,
                check_quorum=True,
                quiet_heartbeats=True,
                batch_appends=True,
                disable_proposal_forwarding=True,
                max_size_per_msg=options.message_bytes_max,
                max_committed_size_per_ready=options.apply_bytes_max,
                max_uncommitted_entries_size=options.uncommitted_bytes_max,
                max_inflight_msgs=options.inflight_messages_max,
                max_inflight_bytes=options.inflight_bytes_max,
            )
        )
        self.dirty = False
        self.last_tick = tick
        self.due_tick = 0
        self.heap_tick = 0
        self.last_token = 0
        """Invariant: everything this group staged is durable once this token is."""
        self.commit = self.node.commit
        self.applied = applied
        self.meta_applied = applied
        """Applied index the last checkpoint was told of."""
        self.reads = ReadRounds()
        self.was_leader = False
        self.serving = False
        """Leads, and has applied the first entry of its own term."""
        self.leader_known: NodeId = 0
        self.leader_lost_ns = 0
        """When the leader's server was last lost; 0 for never."""
        self.term_known = self.node.term
        self.preferred = placement[0] == replica_id
        """First of its placement: leads when it can."""

    # --- time ------------------------------------------------------------------------------
    def catch_up(self, tick: int) -> None:
        """Make up for ticks that passed unseen, without letting anything fall due: what fell due
        is the timer's to say, and the message at hand may be the reason why it should not."""
        passed = tick - self.last_tick
        if passed > 0:
            self.last_tick = tick
            harmless = min(passed, self.node.ticks_until_due() - 1)
            if harmless > 0:
                self.node.tick(harmless)

    def fall_due(self, tick: int) -> None:
        """Let what is due happen, also when messages have already made up for the last tick: under
        load they nearly always have, and elections and check-quorum must not starve."""
        self.catch_up(tick)
        if self.node.ticks_until_due() <= 1:
            self.node.tick(1)

    # --- the turn ----------------------------------------------------------------------------
    def pump(self, turn: Turn) -> None:
        """Do what the core wants done, until it wants nothing more without a disk or a peer."""
        node = self.node
        self.reads.begin(node)
        while node.has_ready():
            ready = node.ready()
            applies: list[MsgStorageApply] = []
            for message in ready.messages:
                if isinstance(message, MsgStorageAppend):
                    self._stage(message, turn)
                elif isinstance(message, MsgStorageApply):
                    applies.append(message)
                else:
                    turn.send(self.group_id, message)
            if node.commit != self.commit:
                self._note_commit(node.commit)
            for apply in applies:
                self._apply(apply)
            if ready.read_states:
                self.reads.confirmed(ready.read_states)
                self.reads.applied(self.applied)
            for want in ready.cold_reads:
                self._read_cold(want, turn)
        self._note_role()

    def _stage(self, message: MsgStorageAppend, turn: Turn) -> None:
        assert message.snapshot is None, "no group compacts its log yet"
        store = self.store
        if message.entries:
            store.append(self.log, message.entries)
            turn.urgent = True
        if message.term:
            state = storage.HardState(message.term, message.vote, message.commit)
            store.set_hard_state(self.log, state)
        turn.staged = True
        if message.must_sync:
            turn.urgent = True
        turn.after_append.append((self, message.must_sync, message.responses))

    def _note_commit(self, commit: int) -> None:
        assert commit > self.commit, (self.group_id, commit, self.commit)
        self.commit = commit
        self.owner.committed(commit)

    def _apply(self, message: MsgStorageApply) -> None:
        entries = message.entries
        assert entries[0].index == self.applied + 1, (self.group_id, entries[0].index, self.applied)
        self.owner.apply(entries)
        self.applied = entries[-1].index
        for entry in entries:
            assert entry.kind not in _CONF_KINDS, "membership is fixed at creation"
        for response in message.responses:
            self.node.step(response)
        self.reads.applied(self.applied)

    def _read_cold(self, want: ColdRead, turn: Turn) -> None:
        """Entries a peer, or this replica's own applier, needs that left memory."""
        wake = turn.wake

        def done(found: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(found, storage.StorageError):
                # Asked again at the peer's next sign of life.
                self.node.entries_ready(want.peer, [])
            else:
                self.node.entries_ready(want.peer, [as_entry(stored) for stored in found])
            wake(self)

        self.store.entries_cold(self.log, want.first, want.end, want.bytes_max, done)

    def _note_role(self) -> None:
        """Tell the owner what changed since the last turn, in the order it needs it."""
        node = self.node
        leads = node.is_leader
        term_changed = node.term != self.term_known
        if self.was_leader and (not leads or term_changed):
            self.was_leader = False
            self.serving = False
            self.reads.fail()
            self.owner.leadership_lost()
        if term_changed or node.lead != self.leader_known:
            self.term_known = node.term
            self.leader_known = node.lead
            self.was_leader = leads
            self.owner.leader_changed()
        if leads:
            if self.serving:
                self.owner.room_available()
            elif self.applied and self.log.term(self.applied) == node.term:
                self.serving = True
                self.owner.serving_started()
