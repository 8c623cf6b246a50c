"""One replica of one Raft group: its node, its log, and the order in which responses leave.

The core returns actions (`Ready`); this file executes them, for one group, inside the host's turn.
Rules:

* Responses about this replica's log, term or vote, and requests for votes, leave only when the
  journal block that holds the state is durable. A leader counts itself the same way (thesis
  §10.2.1).
* Entries are staged before messages are encoded, so that peers are sent the one copy in the cache.
* Timers are lazy: ticks are counted when a message arrives or a timer is due.

The meaning of entries belongs to the `Owner`: a log stream or a state group.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from operator import is_not

import segments.api as storage
from ids import NO_TERM, Index, NodeId, ServerId
from raft.config import Config
from raft.membership import Membership
from raft.messages import MsgAppResp, MsgStorageAppend, MsgStorageApply
from raft.node import RawNode
from raft.quorum import VoteResult, joint_vote
from raft.types import (
    CONF_CHANGE_KINDS,
    LOCAL_APPLY_THREAD,
    ColdRead,
    Entry,
    Snapshot,
    StateType,
)
from vdl.logstream.group.campaigning import Campaigning
from vdl.logstream.group.feed_throttle import FeedThrottle
from vdl.logstream.group.feeding import Feeding
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.owner import Owner
from vdl.logstream.group.read_index import ReadRounds
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.snapshot_source import Applied, SnapshotSource
from vdl.logstream.group.snapshots import (
    MEMBERS_KEY,
    Members,
    OpenSnapshot,
    check_members,
    encode_members,
    for_the_owner,
    members_of,
    open_snapshot,
    pass_over,
    revision_of,
)
from vdl.logstream.group.state_encoding import AppliedState, StateEncodings
from vdl.logstream.group.storage import LogStorage, as_entry
from vdl.logstream.group.write_ahead import WriteAhead
from vdl.logstream.options import COMMANDS_BYTES, HostOptions

APPLIED_BYTES_MAX = 256 << 10
"""Bytes of coordinator commands applied in a turn: some thousand positions, which take 30 ms."""


_UNKNOWN = (None, None, None)


@dataclass(slots=True)
class Coming:
    """A state received from another replica, and the callback for its installation."""

    snapshot: Snapshot
    state: OpenSnapshot
    taken: Callable[[], None]
    outbox: Outbox | None = None
    """Outbox of the turn in which the state began to wait for the disk."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Parts of a server that all its groups use."""

    store: storage.Store
    options: HostOptions
    tick: Callable[[], int]
    throttle: FeedThrottle
    encodings: StateEncodings
    is_linked: Callable[[NodeId], bool]
    heard_ago: Callable[[NodeId], int]
    full: Set[ServerId]
    """Servers whose disks are known to be full, kept current."""


class Group:
    """One replica of one group. `dirty`: the host's next turn pumps it."""

    __slots__ = (
        "_coming",
        "_feeding",
        "_held",
        "_members_stored",
        "_server",
        "_settled_for",
        "_state",
        "_stored_for",
        "adding",
        "ahead_bytes_min",
        "applied",
        "apply_stalled",
        "awaits_copies",
        "campaigning",
        "commit",
        "dirty",
        "due_tick",
        "entry_tick",
        "group_id",
        "last_tick",
        "last_token",
        "leader_known",
        "leaving",
        "log",
        "meta_applied",
        "node",
        "observers",
        "on_loading",
        "on_whole",
        "owes_tick",
        "owner",
        "placement",
        "reads",
        "reflects",
        "replica_id",
        "revision",
        "serving",
        "snapshot_source",
        "store",
        "term_known",
        "term_listed",
        "to_finish",
        "trim_refused",
        "wanted_revision",
        "was_leader",
        "whole_at",
        "writing_ahead",
    )

    def __init__(
        self,
        *,
        replica_id: NodeId,
        placement: Sequence[NodeId],
        log: storage.Log,
        owner: Owner,
        applied: Index,
        members: Members,
        rng: random.Random,
        server: Surroundings,
        loaded: dict[bytes, bytes | None] | None = None,
    ) -> None:
        """Create a replica.

        `placement`: wanted members, preferred leader first; `members`: actual ones, as of
        `applied`. `loaded`: see `AppliedState`.
        """
        self.group_id = log.group_id
        self.replica_id = replica_id
        self.log = log
        self._server = server
        self.store = server.store
        self.owner = owner
        self.placement = tuple(placement)
        self.leaving: tuple[NodeId, ...] = ()
        """Replicas that are to be removed, and whose servers keep them until the group has removed
        them."""
        self.adding: frozenset[NodeId] = frozenset()
        """Replicas in `placement` that a reassignment adds: they become voters together, once all
        have caught up."""
        self.wanted_revision = 0
        """Revision of `placement`, as the catalog is applied here: see
        `vdl/state/reassignment.py`."""
        self.to_finish = False
        """True if the catalog waits for the group to finish its part of a reassignment."""
        self.revision = members.revision
        """Last revision that the group's own log recorded."""
        self.observers: frozenset[NodeId] = frozenset()
        """Replicas that never vote: see `conf_changes.py`."""
        self._settled_for: tuple[object, object, object] = _UNKNOWN
        node_storage = LogStorage(
            log, members.conf_state, applied=applied, make_snapshot=self._make_snapshot
        )
        self.node = RawNode(
            _config(
                replica_id,
                node_storage,
                server,
                applied=applied,
                rng=rng,
                # At a follower no producer waits for a commit of records, but a client may wait for
                # one of commands.
                commit_apart=owner.entries_are_state,
                applied_bytes_max=(
                    server.options.apply_bytes_max if owner.large is None else APPLIED_BYTES_MAX
                ),
            )
        )
        self.campaigning = Campaigning(self.node, server.options, rng)
        self._feeding: Feeding | None = None
        self.writing_ahead: WriteAhead | None = None
        """`ahead`, once there was a large payload."""
        self.ahead_bytes_min = server.store.ahead_bytes_min
        """Smallest payload that is written ahead."""
        self.last_tick = server.tick()
        self.dirty = self.owes_tick = False
        """`owes_tick`: True if the last tick was not counted, because a timer was due in it."""
        self.due_tick = self.entry_tick = 0
        self.last_token = 0
        """Invariant: everything this group staged is durable once this token is."""
        self.commit = self.node.commit
        """Highest index known to be committed. Use: the owner acknowledges and serves up to it.
        Invariant: it never moves back, and after a turn it is at least `applied`."""
        self.applied = applied
        """Index of the last applied entry. Invariant: the owner's state and the members reflect
        every entry up to it."""
        self.whole_at = self.commit
        """Highest index that an earlier process may have applied. Below it the state is older than
        the one before the restart, because entries could not be read at the start: this replica
        votes and acknowledges, and its state is not used."""
        self.on_whole: Callable[[], None] | None = None
        """Called once, when the state is whole; only if it was not from the beginning."""
        self.on_loading: Callable[[Group], None] | None = (
            None  # called when `is_loading` has changed
        )
        self.apply_stalled = False
        """True if the next entries to apply could not be read: see `retry_apply`."""
        self.meta_applied = applied
        """Applied index of the last checkpoint."""
        self.reflects = members.reflects
        """State and members reflect entries up to this index, including ones not applied again
        yet."""
        self._members_stored: Members | None = None
        """Members in the last checkpoint of this process. An earlier checkpoint may be older than
        `members`, which replay may have changed."""
        self._stored_for: Membership | None = None
        self._state = AppliedState(
            owner,
            is_replaced=bool(log.installed_state),
            piece=server.options.encoded_items_per_turn,
            loaded=loaded,
        )
        self.trim_refused = 0
        """Index at which the log would have been cut when the state was last too large for that."""
        self.snapshot_source: SnapshotSource | None = None
        """`snapshots`, once one was requested."""
        self._held = 0
        """Number of applications that wait for the disk; while there are any, all later ones
        wait."""
        self._coming: Coming | None = None
        """A state from another replica that is taken once the commit index it needs is durable
        here."""
        self.reads = ReadRounds()
        self.awaits_copies = False
        """Set by the owner while it waits for copies of committed entries, which `pump` reports."""
        self.was_leader = self.serving = False
        """`serving`: leads, and has applied the first entry of its own term."""
        self.leader_known: NodeId = NodeId(0)
        self.term_known = self.term_listed = self.node.term
        """`term_listed`: the last term that was compared with other servers' leader lists."""

    # --- parts that most replicas never need -----------------------------------------------
    @property
    def feeding(self) -> Feeding:
        """Reads of entries for followers."""
        if self._feeding is None:
            self._feeding = Feeding(self.node, self.log, self.store, self._server.throttle)
        return self._feeding

    @property
    def ahead(self) -> WriteAhead:
        """The payload that is written ahead."""
        if self.writing_ahead is None:
            self.writing_ahead = WriteAhead(self.store, self.log, self.node)
        return self.writing_ahead

    @property
    def snapshots(self) -> SnapshotSource:
        """Snapshots of the applied state, and their size."""
        if self.snapshot_source is None:
            self.snapshot_source = SnapshotSource(
                self.owner,
                self.log,
                self._state,
                applied=self._applied_state,
                tick=self._server.tick,
                encodings=self._server.encodings,
            )
        return self.snapshot_source

    # --- members ---------------------------------------------------------------------------
    @property
    def accepts_appends(self) -> bool:
        """True if there is room for new records here and at a majority.

        Without it records would wait for a disk to get space, and the entries that free space would
        wait behind them.
        """
        return self.store.accepts_appends and not (self._server.full and self._is_majority_full())

    def _is_majority_full(self) -> bool:
        membership, full = self.node.membership, self._server.full
        others = membership.voters() - {self.replica_id}
        if full.isdisjoint(map(server_of, others)):
            return False
        votes = {r: self._server.is_linked(r) and server_of(r) not in full for r in others}
        votes[self.replica_id] = True
        outcome = joint_vote(membership.incoming, membership.outgoing, votes)
        return outcome is not VoteResult.WON

    @property
    def members(self) -> list[NodeId]:
        """Replicas to which the group's log is replicated, ids ascending."""
        return sorted(self.node.membership.members())

    @property
    def listed(self) -> tuple[NodeId, ...]:
        """Replicas that their servers have to keep: wanted members in order, then leaving ones."""
        return self.placement + self.leaving if self.leaving else self.placement

    @property
    def holders(self) -> set[NodeId]:
        """Replicas that may have a log of the group.

        Its members, and those that their servers have to keep: a move back adds a leaving replica
        again, with its log. An outdated state may list outdated members.
        """
        return {*self.members, *self.listed}

    @property
    def is_settled(self) -> bool:
        """True if the members are those in the catalog, and the catalog knows.

        Read often; computed again when either changed.
        """
        if self.to_finish:
            return False
        membership = self.node.raft.membership
        wanted = self.placement, self.observers
        known, *settled = self._settled_for
        if membership is not known or any(map(is_not, wanted, settled)):
            is_settled = (
                membership.learners == self.observers
                and not membership.is_joint
                and membership.incoming == frozenset(self.placement)
            )
            if not is_settled:
                return False
            self._settled_for = membership, *wanted
        return True

    @property
    def is_whole(self) -> bool:
        """True if the state is loaded and reflects everything that it did before a restart.

        A replica that is not whole never leads or serves. While entries that are not in memory wait
        to be applied, it does not campaign (`raft.candidate`). While `is_loading`, its host forbids
        leading.
        """
        return self.applied >= self.whole_at and self._state.loading is None

    @property
    def is_remembered(self) -> bool:
        """True if a restart would find the state that counts as applied, or a later one.

        False while the state is that of a snapshot that is not durable yet.
        """
        return self.is_whole and self.node.raft.log.snapshot is None

    @property
    def is_loading(self) -> bool:
        """True while a state from another replica, which counts as applied, is being loaded."""
        return self._state.loading is not None

    @property
    def needs_pump(self) -> bool:
        """True if `pump` would do anything."""
        # A role, leader or term that changed since the last pump makes the node ready.
        return (
            self.node.has_ready()
            or (self.was_leader and (bool(self.owner.held) or not self.serving))
            or self.awaits_copies
            or self._coming is not None
            or bool(self.reads)
        )

    @property
    def preferred(self) -> bool:
        """True if this replica is a voter and first in the placement: it leads when it can."""
        return self.placement[0] == self.replica_id and self.node.raft.is_voter

    # --- time ------------------------------------------------------------------------------
    @property
    def tick(self) -> int:
        """Present tick. `last_tick` may be much older, for a group at rest."""
        return self._server.tick()

    def catch_up(self, tick: int) -> int:
        """Count ticks that have passed, without letting a timer fall due.

        Due timers are run by `fall_due`, and the message at hand may be the reason why one should
        not run. Return the ticks until one is due.
        """
        due = self.node.ticks_until_due()
        elapsed = max(0, tick - self.last_tick)
        harmless = min(elapsed, due - 1)
        self.last_tick += elapsed
        if harmless < elapsed:
            self.owes_tick = True
        if harmless > 0:
            self.node.tick(harmless)
            due -= harmless
        return due

    def count_owed(self) -> int:
        """Count the tick that was left out because a timer was due.

        At the end of a turn no timer is due. Return the ticks until something is due.

        A leader may have a timer due each time a tick has passed, but not at the end of each turn,
        because followers that were out of step have acknowledged what they lacked. Its timer is
        postponed each time. If that tick were left out, no quorum would be checked, and silent
        followers would receive no heartbeat, for as long as records arrive.
        """
        self.owes_tick = False
        self.node.tick(1)
        return self.node.ticks_until_due()

    def fall_due(self, tick: int) -> tuple[int, bool]:
        """Run what is due, also if messages have already counted the last tick.

        Under load they nearly always have, and elections and check-quorum must not starve. Return
        the ticks until something is due again, and True if something was due.
        """
        due = self.catch_up(tick)
        if due > 1:
            return due, False
        return self.count_owed(), True

    def commit_request(self) -> MsgAppResp:
        """Return a message that makes the leader send its commit index again, in case it was lost.

        It is an old acknowledgement. Like any other it covers only entries that are durable here.
        """
        node = self.node
        index = min(node.commit, node.stable)
        return MsgAppResp(to=node.lead, from_=node.id, term=node.term, index=index)

    def propose(self, entry: Entry) -> None:
        """Append an entry to the leader's log.

        Raise ProposalDropped, with nothing changed, if it is refused.
        """
        # Count ticks that passed at rest while all followers are in step. Counted after the entry,
        # which puts them out of step, they would make heartbeats due before responses can arrive.
        tick = self._server.tick()
        if tick > self.last_tick:
            self.catch_up(tick)
        self.node.propose([entry])

    # --- the turn ----------------------------------------------------------------------------
    def pump(self, outbox: Outbox) -> None:
        """Execute the node's actions until the next ones need a disk or a peer."""
        node, log = self.node, self.node.raft.log
        if self.reads.asks:
            self.reads.begin(node)
        while node.has_ready():
            ready = node.ready()
            applies: list[MsgStorageApply] = []
            for message in ready.messages:
                if isinstance(message, MsgStorageAppend):
                    self._stage(message, outbox)
                elif isinstance(message, MsgStorageApply):
                    applies.append(message)
                else:
                    outbox.send(self.group_id, message)
            if log.committed != self.commit:
                assert log.committed > self.commit, (self.group_id, log.committed, self.commit)
                self.commit = log.committed
                self.owner.committed(log.committed)
            for apply in applies:
                if self._held or self.owner.is_remembered or self._changes_members(apply):
                    self._hold(apply, outbox)
                else:
                    outbox.applies.append((self, apply))
            if ready.read_states:
                self.reads.confirmed(ready.read_states)
                self.reads.applied(self.applied)
            for want in ready.cold_reads:
                self._read_cold(want, outbox)
        if self._coming is not None and not self._held:
            self._await_state(outbox)
        if self._feeding is not None and self._feeding.cold_first:
            self._feeding.withdraw_unwanted()
        if self.awaits_copies:
            self.owner.committed(self.commit)
        self._note_role()
        ahead = self.writing_ahead
        if ahead is not None and ahead.wanted is not None:
            ahead.go_on(partial(outbox.mark_dirty, self))

    def _stage(self, message: MsgStorageAppend, outbox: Outbox) -> None:
        store = self.store
        if message.snapshot is not None:
            self._note_role()  # it may have led when the turn began: an owner stops leading first
            self._install(message.snapshot, outbox)
            outbox.urgent = True
        if message.entries:
            store.append(self.log, message.entries)
            outbox.urgent = True
        if message.term:
            state = storage.HardState(message.term, message.vote, message.commit)
            store.set_hard_state(self.log, state)
        outbox.staged = True
        if message.must_sync:
            outbox.urgent = True
        outbox.after_append.append((self, message.must_sync, message.responses))

    def _install(self, snapshot: Snapshot, outbox: Outbox) -> None:
        """Replace log and state by a leader's snapshot (§7). Both are in one journal record."""
        data = bytes(snapshot.data)
        state = open_snapshot(data)
        self.store.reset_log(
            self.log,
            first_index=snapshot.index + 1,
            prev_term=snapshot.term,
            next_offset=snapshot.next_offset,
            state=data,
        )
        assert snapshot.index >= self.applied, (self.group_id, snapshot.index, self.applied)
        self.revision = state.members.revision
        self.applied = snapshot.index
        self.reflects = state.members.reflects
        self._take_items(state, outbox)

    def _take_items(self, state: OpenSnapshot, outbox: Outbox) -> None:
        """Take over the state of another replica."""
        self.apply_stalled = False
        if self.snapshot_source is not None:
            self.snapshot_source.cache.forget_size()
        if state.is_in_parts and self._state.large is not None:
            self._load(state, outbox)
            return
        items = [item for piece in state.pieces for item in piece]
        self._state.replaced(items)
        self.owner.install(items)
        self._loaded()

    def _load(self, state: OpenSnapshot, outbox: Outbox) -> None:
        """Take over a state in pieces.

        After a crash in between, the state is the one before, or that of the snapshot if the
        journal has it.
        """

        def loaded() -> None:
            self.owner.installed()
            self._loaded()
            outbox.mark_dirty(self)

        self._server.encodings.add(self._state.load(state.pieces, loaded))
        if self.on_loading is not None:
            self.on_loading(self)

    def _loaded(self) -> None:
        """Apply what waited for the state to be loaded."""
        self._note_whole()
        for message in self._state.take_unapplied():
            self.apply(message)
        if self.on_loading is not None:
            self.on_loading(self)

    def take_state(self, snapshot: Snapshot, taken: Callable[[], None]) -> bool:
        """Take the state that another replica made of entries which this one has and cannot read.

        Used when no other replica has the entries any more; the log stays unchanged. Return False
        if that is not possible now. Until the next checkpoint the state is in memory only: after a
        crash in between, the state is the one before, and the commit index shows how much was acted
        on. Therefore the state is taken, and `taken` called, only once that index is durable. Raise
        DecodeError if the state is malformed.
        """
        check_members(snapshot.conf_state)
        state = open_snapshot(snapshot.data)
        if not self._may_take(snapshot, state):
            return False
        if self._coming is None:
            self._coming = Coming(snapshot, state, taken)
            self.node.know_committed(index=snapshot.index, term=snapshot.term)
        return True

    def _may_take(self, snapshot: Snapshot, state: OpenSnapshot) -> bool:
        node, log, index = self.node, self.node.raft.log, snapshot.index
        is_idle = not self._held and log.applying == self.applied and self._state.loading is None
        if node.is_leader or not is_idle or not self.applied < index <= node.stable:
            return False
        if log.snapshot is not None or not log.matches(index=index, term=snapshot.term):
            return False
        return state.members.reflects >= self.reflects

    def _await_state(self, outbox: Outbox) -> None:
        """Make the commit index that the received state needs durable.

        Members may reflect more than the state's index: that their index is committed is learned
        from the leader.
        """
        coming = self._coming
        assert coming is not None, self.group_id
        members = coming.state.members
        is_same = members.conf_state == self.node.membership.conf_state()
        if not self._may_take(coming.snapshot, coming.state):
            self._coming = None  # the entries became readable, or a snapshot came
        elif is_same or self.commit >= members.reflects:
            coming.outbox = outbox
            self._hold(
                MsgStorageApply(LOCAL_APPLY_THREAD, self.replica_id, NO_TERM, [], []), outbox
            )

    def _take_coming(self) -> None:
        coming, self._coming = self._coming, None
        if coming is None or not self._may_take(coming.snapshot, coming.state):
            return
        self.node.take_state(coming.snapshot)
        self.applied = coming.snapshot.index
        self.reflects = coming.state.members.reflects
        self.revision = coming.state.members.revision
        assert coming.outbox is not None, self.group_id
        self._take_items(coming.state, coming.outbox)
        coming.taken()

    def retry_apply(self, outbox: Outbox) -> None:
        """Read the next entries to apply again, if that failed.

        A damaged range may have been repaired, or the disk may have space.
        """
        if self.apply_stalled:
            self.apply_stalled = False
            self.node.entries_ready(self.replica_id, [])
        outbox.mark_dirty(self)

    def _note_whole(self) -> None:
        on_whole = self.on_whole
        if on_whole is not None and self.is_whole:
            self.on_whole = None
            on_whole()

    def snapshot_for(self, first: int) -> Snapshot | None:
        """Return the state for a replica that lacks entries from `first` on, or None.

        The entries must be cut off here. None if it is not available now.
        """
        return self.snapshots.when_cut_off(first) if self.is_whole else None

    def _make_snapshot(self) -> Snapshot:
        """Call the source, which is made after the node that needs it."""
        return self.snapshots.make()

    def _applied_state(self) -> Applied:
        conf_state = self.node.membership.conf_state()
        return Applied(self.applied, self.reflects, self.revision, conf_state)

    def _changes_members(self, message: MsgStorageApply) -> bool:
        for entry in message.entries:  # a generator is slower, for each commit
            if entry.kind in CONF_CHANGE_KINDS and entry.index > self.reflects:
                return True
        return False

    def _hold(self, message: MsgStorageApply, outbox: Outbox) -> None:
        """Wait until the commit index is durable here, and make later applications wait too.

        Members change only then. If a crash lost the change, the old members would form the quorum
        again, and one of them may be gone for good.
        """
        self._held += 1
        outbox.staged = True
        outbox.urgent = True
        outbox.after_append.append((self, True, [message]))

    def apply_held(self, message: MsgStorageApply) -> None:
        """Apply what waited for the disk. A message without entries is a received state."""
        self._held -= 1
        assert self._held >= 0, self.group_id
        if message.entries:
            self.apply(message)
        else:
            self._take_coming()

    def apply(self, message: MsgStorageApply) -> None:
        """Apply committed entries, in order; later, if a state is being loaded.

        Entries that waited until a snapshot replaced them are skipped: a snapshot always covers
        more than was committed before it.
        """
        if self._state.loading is not None:
            self._state.apply_later(message)
            return
        if message.entries[-1].index > self.applied:
            self._apply(message.entries)
        else:
            last, first_index = message.entries[-1].index, self.log.first_index
            assert last < first_index, (self.group_id, last, first_index, self.applied)
        for response in message.responses:
            self.node.step(response)
        if self.reads.answerable:
            self.reads.applied(self.applied)

    def _apply(self, entries: Sequence[Entry]) -> None:
        assert entries[0].index == self.applied + 1, (self.group_id, entries[0].index, self.applied)
        own = for_the_owner(entries, self.reflects)
        if entries[0].index <= self.reflects:
            pass_over(self.owner, entries, self.reflects)
        if own:
            self.owner.apply(own)
            if self._state.large is not None:
                self._state.encode_changes()
        self.applied = entries[-1].index
        if len(own) < len(entries):
            for entry in entries:
                if entry.index > self.reflects and entry.kind in CONF_CHANGE_KINDS:
                    self.node.apply_conf_change(entry)
                    self.revision = max(self.revision, revision_of(entry))
        if self.on_whole is not None:
            self._note_whole()

    def _read_cold(self, want: ColdRead, outbox: Outbox) -> None:
        """Read entries that left memory, for a peer or for this replica's own state."""
        if want.peer != self.replica_id:
            self.feeding.feed(want, partial(outbox.mark_dirty, self))
            return

        def done(found: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(found, storage.StorageError):
                # A retry now would fail too: it waits until the cause may be gone.
                self.apply_stalled = True
                return
            self.node.entries_ready(want.peer, [as_entry(stored) for stored in found])
            outbox.mark_dirty(self)

        self.store.entries_cold(self.log, want.first, want.end, want.bytes_max, done)

    def withdraw(self) -> None:
        """Stop encoding, loading and feeding peers: the replica is taken out of service."""
        self._state.encoding = self._state.loading = None
        if self._feeding is not None:
            self._feeding.stop()
        if self.writing_ahead is not None:
            self.writing_ahead.stop()

    # --- checkpoints -------------------------------------------------------------------------
    def collect_meta(self) -> storage.MetaBatch | None:
        """Return what changed since the last checkpoint.

        None if nothing did, if a state is being loaded, or if there is too much for one turn: that
        is encoded in pieces first.
        """
        if self._state.loading is not None:
            return None
        if self._state.has_many_changes:
            if (encoding := self._state.begin_changes()) is not None:
                self._server.encodings.add(encoding)
            return None
        items, clear = self._state.collect(is_lost=self.log.is_meta_lost)
        if clear:
            self._members_stored = None
        stored, membership = self._members_stored, self.node.membership
        # Compared by identity, which is cheap for a thousand groups at rest: a change makes a new
        # object.
        if stored is None or membership is not self._stored_for:
            self._stored_for, conf_state = membership, membership.conf_state()
            self._members_stored = stored = members_of(
                conf_state, reflects=self.reflects, revision=self.revision
            )
            items[MEMBERS_KEY] = encode_members(stored)
        if not items and self.applied == self.meta_applied:
            return None
        source = self.snapshot_source
        if source is not None and not source.in_parts:
            source.cache.stored(items.items())
        self.meta_applied = self.applied
        return storage.MetaBatch(self.log.log_id, self.applied, items.items(), clear=clear)

    def _note_role(self) -> None:
        """Report to the owner what changed since the last turn, in the order it needs."""
        if self.campaigning.gone_tick:
            self.campaigning.retry(self.last_tick)
        raft = self.node.raft
        term, lead = raft.term, raft.lead
        leads = raft.state is StateType.LEADER
        term_changed = term != self.term_known
        if self.was_leader and (not leads or term_changed):
            self.was_leader = False
            self.serving = False
            self.reads.fail()
            if self.snapshot_source is not None:
                self.snapshot_source.leadership_lost()
            self.owner.leadership_lost()
        if term_changed or lead != self.leader_known:
            self.term_known = term
            self.leader_known = lead
            self.was_leader = leads
            self.store.expect_reads(self.log, leads)
            self.owner.leader_changed()
        if leads:
            if self.serving:
                if self.owner.held:
                    self.owner.room_available()
            elif self.applied and self.log.term(self.applied) == term:
                self.serving = True
                self.owner.serving_started()


def _config(
    replica_id: NodeId,
    log: LogStorage,
    server: Surroundings,
    *,
    applied: Index,
    rng: random.Random,
    commit_apart: bool,
    applied_bytes_max: int,
) -> Config:
    """Return the configuration of every node here: asynchronous writes, durable votes."""
    options = server.options
    return Config(
        id=replica_id,
        election_ticks=options.election_ticks,
        heartbeat_ticks=options.heartbeat_ticks,
        rng=rng,
        storage=log,
        applied=applied,
        async_storage_writes=True,
        pre_vote=True,
        check_quorum=True,
        # A removed member does not know so before it has applied the change, and may be elected.
        step_down_on_removal=True,
        quiet_heartbeats=True,
        is_linked=server.is_linked,
        heard_ago=server.heard_ago,
        batch_appends=True,
        commit_apart=commit_apart,
        durable_campaign=True,
        disable_proposal_forwarding=True,
        max_size_per_msg=options.message_bytes_max,
        max_committed_size_per_ready=applied_bytes_max,
        max_uncommitted_entries_size=options.uncommitted_bytes_max + COMMANDS_BYTES,
        max_inflight_msgs=options.inflight_messages_max,
        max_inflight_bytes=options.inflight_bytes_max,
    )
