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
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

import segments.api as storage
from ids import NO_TERM, Index, NodeId, Offset, ServerId
from raft.config import Config
from raft.errors import SnapshotTemporarilyUnavailable
from raft.membership import Membership
from raft.messages import MsgAppResp, MsgStorageAppend, MsgStorageApply
from raft.node import RawNode
from raft.quorum import VoteResult, joint_vote
from raft.types import (
    CONF_CHANGE_KINDS,
    LOCAL_APPLY_THREAD,
    ColdRead,
    ConfState,
    Entry,
    Snapshot,
    StateType,
)
from vdl.clock import MS
from vdl.logstream.group.move_throttle import MoveThrottle
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.read_index import ReadRounds
from vdl.logstream.group.recovery_throttle import Gain, RecoveryThrottle
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.snapshot_cache import SnapshotCache
from vdl.logstream.group.snapshots import (
    MEMBERS_KEY,
    PARTS_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Items,
    Members,
    OpenSnapshot,
    check_members,
    encode_members,
    encode_snapshot,
    for_the_owner,
    members_of,
    open_snapshot,
    pass_over,
    revision_of,
)
from vdl.logstream.group.state_encoding import AppliedState, StateEncoding, StateEncodings
from vdl.logstream.group.storage import LogStorage, as_entry
from vdl.logstream.options import COMMANDS_BYTES, HostOptions
from vdl.state.table import LargeState, Scan

CAMPAIGNS_PER_TICK = 10
"""Number of leaderless groups whose campaigns end within one tick, at 1 ms each."""

APPLIED_BYTES_MAX = 256 << 10
"""Bytes of coordinator commands applied in a turn: some thousand positions, which take 30 ms."""

MEASURED_TICKS = 500
"""Time for which the size of a state encoded in pieces counts as that of the present one."""

_LATELY_NS = 1_000 * MS
"""Time for which the loss of a leader is reported to clients."""
_NO_LOSS = (0, ServerId(0))


class Owner(Protocol):
    """The consumer of a group's entries. All calls come from inside a turn and may not block."""

    @property
    def entries_are_state(self) -> bool:
        """True if the entries themselves are kept, not only the state made of them.

        A snapshot is then taken at the log's start, otherwise at the applied index.
        """

    @property
    def is_remembered(self) -> bool:
        """True if entries are applied only once the commit index that covers them is durable here.

        The applied state is then never ahead of what a restart applies again.
        """

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries that are durable here, in order, each exactly once."""

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None:
        """Read committed entries that the state reflects already, because it came with a snapshot.

        In order; after a restart again from the last checkpoint on. `is_last`: all have been
        passed.
        """

    def install(self, items: Items) -> None:
        """Replace the applied state by a snapshot's."""

    def takes_on_full_disk(self, entry: Entry) -> bool:
        """Return True if a full disk takes the entry: it is rare enough, or needed to make room."""

    def stopped(self) -> None:
        """Stop: the replica is taken out of service, and its successor may be opened."""

    def items(self) -> Items:
        """Return the whole applied state, in key order."""

    def snapshot_items(self, start: Offset, *, is_short: bool) -> Items | None:
        """Return the state for a replica that also receives the entries after the snapshot's index.

        The first of these entries begins at `start`. `is_short`: leave out what follows from them.
        None: not available now.
        """

    @property
    def snapshots_are_short(self) -> bool:
        """True if all receivers support snapshots without what follows from those entries."""

    def scan(self) -> Scan | None:
        """Return `items` as a scan in pieces; None: `items` costs little."""

    @property
    def item_count(self) -> int:
        """Size of the state, available at no cost: about proportional to `items`."""

    def committed(self, commit: Index) -> None:
        """Note that the commit index moved to `commit`."""

    def serving_started(self) -> None:
        """Note that this replica leads and has applied the first entry of its own term (§8)."""

    def leadership_lost(self) -> None:
        """Note that a term ended in which this replica led."""

    def leader_changed(self) -> None:
        """Note that the known leader or the term changed."""

    @property
    def busy(self) -> bool:
        """True if any request with a deadline waits here."""

    @property
    def holds_proposals(self) -> bool:
        """True if proposals wait that were refused for lack of room or during a transfer."""

    def room_available(self) -> None:
        """Retry held proposals."""

    def expire(self, now_ns: int) -> None:
        """Answer requests whose deadline has passed."""

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        """Return the applied state that changed since the last call."""

    @property
    def large(self) -> LargeState | None:
        """The state, if it may be large; None: all of it is read and loaded at once."""

    def installed(self) -> None:
        """Finish `install` once the items are loaded."""


@dataclass(slots=True)
class Coming:
    """A state received from another replica, and the callback for its installation."""

    snapshot: Snapshot
    state: OpenSnapshot
    taken: Callable[[], None]
    outbox: Outbox | None = None
    """Outbox of the turn in which the state began to wait for the disk."""


class Group:
    """One replica of one group. `dirty`: the host's next turn pumps it."""

    __slots__ = (
        "_cold_first",
        "_coming",
        "_encodings",
        "_full",
        "_gain",
        "_gone_tick",
        "_held",
        "_is_linked",
        "_members_stored",
        "_move_throttle",
        "_options",
        "_rng",
        "_settled_for",
        "_state",
        "_stored_for",
        "_throttle",
        "_tick",
        "adding",
        "applied",
        "apply_stalled",
        "awaits_copies",
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
        "lost_leader",
        "meta_applied",
        "node",
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
        "snapshot_cache",
        "store",
        "term_known",
        "term_listed",
        "to_finish",
        "trim_refused",
        "wanted_revision",
        "was_leader",
        "whole_at",
    )

    def __init__(
        self,
        *,
        replica_id: NodeId,
        placement: Sequence[NodeId],
        log: storage.Log,
        store: storage.Store,
        owner: Owner,
        applied: Index,
        members: Members,
        tick: Callable[[], int],
        options: HostOptions,
        throttle: RecoveryThrottle,
        move_throttle: MoveThrottle,
        encodings: StateEncodings,
        rng: random.Random,
        is_linked: Callable[[NodeId], bool],
        full: Set[ServerId],
        heard_ago: Callable[[NodeId], int],
        loaded: dict[bytes, bytes | None] | None = None,
    ) -> None:
        """Create a replica.

        `placement`: wanted members, preferred leader first; `members`: actual ones, as of
        `applied`. `full`: servers whose disks are known to be full, kept current. `loaded`: see
        `AppliedState`.
        """
        self.group_id = log.group_id
        self.replica_id = replica_id
        self.log = log
        self.store = store
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
        self._settled_for: tuple[object, object] = (None, None)
        node_storage = LogStorage(
            log, members.conf_state, applied=applied, make_snapshot=self._snapshot
        )
        self.node = RawNode(
            _config(
                replica_id,
                node_storage,
                options,
                applied=applied,
                rng=rng,
                is_linked=is_linked,
                heard_ago=heard_ago,
                # At a follower no producer waits for a commit of records, but a client may wait for
                # one of commands.
                commit_apart=owner.entries_are_state,
                applied_bytes_max=(
                    options.apply_bytes_max if owner.large is None else APPLIED_BYTES_MAX
                ),
            )
        )
        self._options, self._rng = options, rng
        self._is_linked, self._full = is_linked, full
        self._gone_tick = 0
        """Tick at which the leader's process was proved gone; 0 once there is a leader, or once the
        election timeout applies again."""
        self.dirty = False
        self._tick = tick
        self.last_tick = tick()
        self.owes_tick = False
        """True if the last tick was not counted, because a timer was due in it."""
        self.due_tick = self.entry_tick = 0
        self.last_token = 0
        """Invariant: everything this group staged is durable once this token is."""
        self.commit = self.node.commit
        self.applied = applied
        self.whole_at = self.commit
        """Highest index that an earlier process may have applied. Below it the state is older than
        the one before the restart, because entries could not be read at the start: this replica
        votes and acknowledges, and its state is not used."""
        self.on_whole: Callable[[], None] | None = None
        """Called once, when the state is whole; only if it was not from the beginning."""
        self.on_loading: Callable[[], None] | None = None  # called when `is_loading` has changed
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
            piece=options.encoded_items_per_turn,
            loaded=loaded,
        )
        self.trim_refused = 0
        """Index at which the log would have been cut when the state was last too large for that."""
        self.snapshot_cache = SnapshotCache()
        self._throttle, self._move_throttle, self._encodings = throttle, move_throttle, encodings
        self._gain = Gain()
        self._cold_first: dict[NodeId, int] = {}
        """For each peer, the first index of its pending read from disk."""
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
        self.lost_leader = _NO_LOSS
        """Time of the last loss of the leader's server (monotonic ns), and that server."""
        self.term_known = self.term_listed = self.node.term
        """`term_listed`: the last term that was compared with other servers' leader lists."""

    # --- members ---------------------------------------------------------------------------
    @property
    def accepts_appends(self) -> bool:
        """True if there is room for new records here and at a majority.

        Without it records would wait for a disk to get space, and the entries that free space would
        wait behind them.
        """
        return self.store.accepts_appends and not (self._full and self._is_majority_full())

    def _is_majority_full(self) -> bool:
        membership, full = self.node.membership, self._full
        others = membership.voters() - {self.replica_id}
        if full.isdisjoint(map(server_of, others)):
            return False
        votes = {r: self._is_linked(r) and server_of(r) not in full for r in others}
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
    def is_settled(self) -> bool:
        """True if the members are those in the catalog, and the catalog knows.

        Read often; computed again when either changed.
        """
        if self.to_finish:
            return False
        membership = self.node.raft.membership
        if membership is not self._settled_for[0] or self.placement is not self._settled_for[1]:
            is_settled = (
                not membership.learners
                and not membership.is_joint
                and membership.incoming == frozenset(self.placement)
            )
            if not is_settled:
                return False
            self._settled_for = membership, self.placement
        return True

    @property
    def is_whole(self) -> bool:
        """True if the state is loaded and reflects everything that it did before a restart.

        A replica that is not whole never leads or serves. While entries that are not in memory wait
        to be applied, it does not campaign (`raft.candidate`). While `is_loading`, its host forbids
        leading.
        """
        return self.applied >= self.whole_at and not self.is_loading

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
            or (self.was_leader and (self.owner.holds_proposals or not self.serving))
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
        return self._tick()

    def catch_up(self, tick: int) -> None:
        """Count ticks that have passed, without letting a timer fall due.

        Due timers are run by `fall_due`, and the message at hand may be the reason why one should
        not run.
        """
        if tick > self.last_tick:
            self._count_harmless(tick, self.node.ticks_until_due())

    def _count_harmless(self, tick: int, due: int) -> int:
        """Count ticks up to, not including, the one in `due` ticks. Return the ticks left to it."""
        elapsed = tick - self.last_tick
        harmless = min(elapsed, due - 1)
        self.last_tick = tick
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
        node = self.node
        due = self._count_harmless(max(tick, self.last_tick), node.ticks_until_due())
        if due > 1:
            return due, False
        self.owes_tick = False
        node.tick(1)
        return node.ticks_until_due(), True

    def is_leaderless(self, servers: Set[ServerId]) -> bool:
        """Return True if the group has no leader, though most voters are on these servers."""
        node = self.node
        voters = node.membership.incoming
        reachable = [replica for replica in voters if server_of(replica) in servers]
        return not (node.lead or node.is_leader or len(reachable) * 2 <= len(voters))

    def campaign_in_turn(
        self, servers: Mapping[ServerId, bool], tick: int, *, leaderless: int
    ) -> None:
        """Campaign soon, because the leader's process is gone, unless another replica wins before.

        Replicas on `servers`, those alive, campaign one after another in order of preference:
        simultaneous candidates split the vote. Those marked there as servers that should not lead
        come last. A candidate that lacks entries loses its turn.

        `leaderless`: number of groups that lost their leader together. If they are many, the
        campaigns of the first replicas take longer, so the others wait longer, an election timeout
        at most.
        """
        options, node = self._options, self.node
        self.catch_up(tick)
        # Leader lists prove that a leader is alive, and are looked up only when the election timer
        # is due: with this it may be due now, for all remaining replicas.
        node.leader_heard(0)
        node.forget_leader()
        # If none is there, the replicas are about to be moved away, but still exist.
        alive = self._turns(self.placement, servers) or self._turns(self.members, servers)
        last = max(0, len(alive) - 1)
        turn = alive.index(self.replica_id) if self.replica_id in alive else last
        spread = max(
            options.failover_ticks_max - options.failover_ticks_min,
            min(leaderless // CAMPAIGNS_PER_TICK, options.election_ticks),
        )
        node.campaign_soon(options.failover_ticks_min + spread * turn // max(1, last))
        self._gone_tick = tick

    def leader_resigned(self, tick: int) -> None:
        """Restart the election timer: the leader was alive until now, and does not lead any more.

        The time is counted from when this replica might have looked last.
        """
        self.catch_up(tick)
        self.node.leader_heard(self._rng.randrange(self.node.raft.randomized_election_timeout))

    def _turns(self, replicas: Iterable[NodeId], servers: Mapping[ServerId, bool]) -> list[NodeId]:
        """Return the replicas on these servers, those that should lead first."""
        alive = [replica for replica in replicas if server_of(replica) in servers]
        return sorted(alive, key=lambda replica: not servers[server_of(replica)])

    def leader_gave_up(self, servers: Mapping[ServerId, bool], tick: int) -> None:
        """React to a leader of this term that resigned because it hears no quorum.

        The preferred one of the replicas on `servers`, those alive except the leader's own,
        campaigns soon. The others wait as after a resignation: two candidates on slow disks would
        spend terms. See `campaign_in_turn`.
        """
        node = self.node
        self.leader_resigned(tick)
        node.forget_leader()
        alive = self._turns(self.placement, servers)
        if alive and alive[0] == self.replica_id:
            node.campaign_soon(self._options.failover_ticks_min)
            self._gone_tick = tick

    def _campaign_again(self) -> None:
        """Campaign again before the election timeout while there is no leader.

        Votes may have been split, or a request may have come before its receiver knew of the loss.
        The delay grows, because a slow disk needs time. It ends with the election timeout: there
        may be no majority.
        """
        node, options = self.node, self._options
        ticks = max(2 * options.failover_ticks_max, self.last_tick - self._gone_tick)
        if node.lead or ticks >= options.election_ticks:
            self._gone_tick = 0
        elif not node.raft.campaign_due:
            node.campaign_soon(self._rng.randint(ticks, 2 * ticks))

    def lately_lost_leader(self, now_ns: int) -> tuple[int, ServerId]:
        """Return when the group lost its leader together with the leader's server, and that server.

        (0, 0) if there was no recent loss.
        """
        return self.lost_leader if now_ns - self.lost_leader[0] <= _LATELY_NS else _NO_LOSS

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
        self.catch_up(self._tick())
        self.node.propose([entry])

    # --- the turn ----------------------------------------------------------------------------
    def pump(self, outbox: Outbox) -> None:
        """Execute the node's actions until the next ones need a disk or a peer."""
        node, log = self.node, self.node.raft.log
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
                self._note_commit(log.committed)
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
        if self._cold_first:
            self._withdraw_unwanted()
        if self.awaits_copies:
            self.owner.committed(self.commit)
        self._note_role()

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
        self.snapshot_cache.forget_size()
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

        self._encodings.add(self._state.load(state.pieces, loaded))
        if self.on_loading is not None:
            self.on_loading()

    def _loaded(self) -> None:
        """Apply what waited for the state to be loaded."""
        self._note_whole()
        for message in self._state.take_unapplied():
            self.apply(message)
        if self.on_loading is not None:
            self.on_loading()

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
        if not self.is_whole or first >= self.log.first_index:
            return None
        try:
            return self._snapshot()
        except SnapshotTemporarilyUnavailable:
            return None

    def _snapshot(self) -> Snapshot:
        """Return a snapshot for a replica behind the log's start.

        Raise SnapshotTemporarilyUnavailable if there is none now.
        """
        log, owner, snapshot_cache, tick = self.log, self.owner, self.snapshot_cache, self.tick
        if self._state.loading is not None:
            raise SnapshotTemporarilyUnavailable
        is_short = owner.snapshots_are_short
        kept = snapshot_cache.kept(first_index=log.first_index, tick=tick, is_short=is_short)
        if kept is not None:
            return kept
        # The core requests one at each message of the peer.
        if self._state.encoding is None and not snapshot_cache.may_encode(
            owner.item_count, tick, self.snapshot_bytes_max
        ):
            raise SnapshotTemporarilyUnavailable
        if (encoding := self._encode_later()) is not None:
            encoding.is_wanted = True
            raise SnapshotTemporarilyUnavailable
        index = log.first_index - 1 if owner.entries_are_state else self.applied
        reflects = max(self.applied, self.reflects)
        try:
            next_offset = log.offset_after(index)
        except (storage.CorruptRecord, storage.ReadRefused):
            # Damage in the index, which any reader, the scrubber included, rebuilds.
            snapshot_cache.failed(tick)
            raise SnapshotTemporarilyUnavailable from None
        conf_state = self.node.membership.conf_state()
        is_shortened = is_short and index < reflects
        items = owner.snapshot_items(next_offset, is_short=is_shortened)
        if items is None:
            raise SnapshotTemporarilyUnavailable
        data = self._encode(conf_state, reflects, items)
        if len(data) > SNAPSHOT_BYTES_MAX:
            snapshot_cache.too_large(tick)
            raise SnapshotTemporarilyUnavailable
        snapshot = Snapshot(index, log.term(index), conf_state, next_offset, data)
        snapshot_cache.keep(snapshot, tick, is_short=is_short)
        return snapshot

    def _encode(self, conf_state: ConfState, reflects: Index, items: Items) -> bytes:
        """Encode the state as a snapshot in one piece; only for small states."""
        members = members_of(conf_state, reflects=reflects, revision=self.revision)
        data = encode_snapshot(members, items)
        uncompressed = sum(len(key) + len(value) for key, value in items)
        self.snapshot_cache.measured(self.owner.item_count, len(data), uncompressed)
        return data

    @property
    def snapshot_bytes_max(self) -> int:
        """Maximum size of a snapshot."""
        return PARTS_BYTES_MAX if self.snapshots_in_parts else SNAPSHOT_BYTES_MAX

    @property
    def snapshots_in_parts(self) -> bool:
        """See `LargeState.snapshots_in_parts`."""
        large = self._state.large
        return large is not None and large.snapshots_in_parts

    def snapshot_bytes(self, *, limit: int, anew: bool) -> int | None:
        """Return the expected size of a snapshot, measured again if it may have passed `limit`.

        `anew`: encode one. None: that takes more than this turn, so call again later.
        """
        if self._state.loading is not None:
            return None
        items, snapshot_cache = self.owner.item_count, self.snapshot_cache
        is_known = snapshot_cache.is_like_measured(items) and not snapshot_cache.may_have_passed(
            limit, items
        )
        if anew:
            is_known = is_known and self.tick < snapshot_cache.measured_until
        if not is_known:
            if self._encode_later() is not None:
                return None
            self._encode(self.node.membership.conf_state(), self.applied, self.owner.items())
        return snapshot_cache.bytes_expected(items)

    # --- a snapshot in pieces ------------------------------------------------------------------
    def _encode_later(self) -> StateEncoding | None:
        """Return the encoding of a state too large for one turn, begun; None: it is small."""
        has_begun = self._state.encoding is not None
        encoding = self._state.encode()
        if encoding is not None and not has_begun:
            self._encodings.add(self)
        return encoding

    def encode_on(self) -> bool:
        """See `Encoder.encode_on`."""
        encoding, tick = self._state.encoding, self.tick
        if encoding is None:
            return False
        if encoding.standing is None:
            if encoding.read_on():
                self._stand(encoding)
            return True
        data = encoding.pack_on()
        if data is None:
            return True
        self._state.encoding = None
        self.snapshot_cache.measured(encoding.count, len(data), encoding.plain_bytes)
        self.snapshot_cache.measured_until = tick + MEASURED_TICKS
        if len(data) > self.snapshot_bytes_max:
            self.snapshot_cache.too_large(tick)
        elif encoding.is_wanted:
            self.snapshot_cache.keep(replace(encoding.standing, data=data), tick)
        return False

    def _stand(self, encoding: StateEncoding) -> None:
        """Give the encoding the index and members of what was read, which is the present state."""
        log, index, conf_state = self.log, self.applied, self.node.membership.conf_state()
        try:
            next_offset = log.offset_after(index)
        except (storage.CorruptRecord, storage.ReadRefused):  # as for a snapshot in one piece
            self._state.encoding = None
            self.snapshot_cache.failed(self.tick)
            return
        reflects = max(index, self.reflects)
        members = members_of(conf_state, reflects=reflects, revision=self.revision)
        standing = Snapshot(index, log.term(index), conf_state, next_offset)
        encoding.stand(
            standing,
            members,
            count=self.owner.item_count,
            in_parts=self.snapshots_in_parts,
        )

    def _note_commit(self, commit: Index) -> None:
        assert commit > self.commit, (self.group_id, commit, self.commit)
        self.commit = commit
        self.owner.committed(commit)

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
            self._state.unapplied.append(message)
            return
        if message.entries[-1].index > self.applied:
            self._apply(message.entries)
        else:
            last, first_index = message.entries[-1].index, self.log.first_index
            assert last < first_index, (self.group_id, last, first_index, self.applied)
        for response in message.responses:
            self.node.step(response)
        self.reads.applied(self.applied)

    def _apply(self, entries: Sequence[Entry]) -> None:
        assert entries[0].index == self.applied + 1, (self.group_id, entries[0].index, self.applied)
        own = for_the_owner(entries, self.reflects)
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
            self._feed(want, outbox)
            return

        def done(found: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(found, storage.StorageError):
                # A retry now would fail too: it waits until the cause may be gone.
                self.apply_stalled = True
                return
            self.node.entries_ready(want.peer, [as_entry(stored) for stored in found])
            outbox.mark_dirty(self)

        self.store.entries_cold(self.log, want.first, want.end, want.bytes_max, done)

    def _feed(self, want: ColdRead, outbox: Outbox) -> None:
        """Read entries for a peer when the throttle admits it, if they are still needed then."""
        peer = want.peer
        key = (self, peer)
        throttle: RecoveryThrottle | MoveThrottle = self._throttle
        if self._move_throttle.is_paced(key):
            throttle = self._move_throttle
        began_ns = 0

        def done(found: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(found, storage.StorageError):
                found = []  # requested again at the peer's next message
            self._gain.fed(peer, len(found), began_ns)
            self.node.entries_ready(peer, [as_entry(stored) for stored in found])
            self._withdraw_unwanted()
            throttle.ended(key, want.bytes_max - sum(len(stored.data) for stored in found))
            outbox.mark_dirty(self)

        def read() -> None:
            nonlocal began_ns
            began_ns = throttle.now_ns()
            if self._is_wanted(peer, want.first):
                self.store.entries_cold(self.log, want.first, want.end, want.bytes_max, done)
            else:
                self._cold_first.pop(peer, None)
                throttle.ended(key, want.bytes_max)

        self._cold_first[peer] = want.first
        due_ns = self._gain.due_ns(peer, self.node.last_index, throttle.now_ns())
        throttle.run(key, want.bytes_max, read, due_ns=due_ns)

    def _is_wanted(self, peer: NodeId, first: int) -> bool:
        """Return True if the core still waits for these entries.

        It does not if the peer is probed anew, as after a reset of its link, or if this replica
        leads no more.
        """
        progress = self.node.raft.progress.get(peer)
        return self.node.is_leader and progress is not None and progress.cold_read_first == first

    def _withdraw_unwanted(self) -> None:
        for peer, first in list(self._cold_first.items()):
            if not self._is_wanted(peer, first):
                self._withdraw(peer)
                if peer not in self.node.raft.progress:
                    self._gain.forget(peer)
                del self._cold_first[peer]

    def withdraw_reads(self) -> None:
        """Stop feeding peers: the replica is taken out of service."""
        self._state.encoding = self._state.loading = None
        for peer in self._cold_first:
            self._withdraw(peer)
        self._cold_first.clear()

    def _withdraw(self, peer: NodeId) -> None:
        self._throttle.withdraw((self, peer))
        self._move_throttle.withdraw((self, peer))

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
                self._encodings.add(encoding)
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
        if not self.snapshots_in_parts:
            self.snapshot_cache.stored(items.items())
        self.meta_applied = self.applied
        return storage.MetaBatch(self.log.log_id, self.applied, items.items(), clear=clear)

    def _note_role(self) -> None:
        """Report to the owner what changed since the last turn, in the order it needs."""
        if self._gone_tick:
            self._campaign_again()
        raft = self.node.raft
        term, lead = raft.term, raft.lead
        leads = raft.state is StateType.LEADER
        term_changed = term != self.term_known
        if self.was_leader and (not leads or term_changed):
            self.was_leader = False
            self.serving = False
            self.reads.fail()
            self.snapshot_cache.forget_snapshot()
            if self._state.encoding is not None:
                self._state.encoding.is_wanted = False
            self.owner.leadership_lost()
        if term_changed or lead != self.leader_known:
            self.term_known = term
            self.leader_known = lead
            self.was_leader = leads
            self.store.expect_reads(self.log, leads)
            self.owner.leader_changed()
        if leads:
            if self.serving:
                self.owner.room_available()
            elif self.applied and self.log.term(self.applied) == term:
                self.serving = True
                self.owner.serving_started()


def _config(
    replica_id: NodeId,
    log: LogStorage,
    options: HostOptions,
    *,
    applied: Index,
    rng: random.Random,
    is_linked: Callable[[NodeId], bool],
    heard_ago: Callable[[NodeId], int],
    commit_apart: bool,
    applied_bytes_max: int,
) -> Config:
    """Return the configuration of every node here: asynchronous writes, durable votes."""
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
        is_linked=is_linked,
        heard_ago=heard_ago,
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
