"""One replica of one Raft group: the node, its log, and the order in which their answers travel.

The core says what is to be done (`Ready`); this file does it, for one group, inside the host's
turn. Rules:

* What a replica tells anybody about its own log, term or vote leaves only when the journal block
  that holds it is durable, and so do its requests for votes; a leader counts itself the same way
  (thesis §10.2.1).
* Entries are staged before messages are encoded, so that peers are sent the one copy in the cache.
* Timers are lazy: ticks are made up for when a message arrives or something falls due.

Must not know: what entries mean. That is the `Owner`'s: a log stream or a state group.
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
from vdl.logstream.group.outbox import Outbox, server_of
from vdl.logstream.group.read_index import ReadRounds
from vdl.logstream.group.recovery_throttle import Gain, RecoveryThrottle
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
"""So many groups that lost their leader together are surely followed in one tick, a millisecond
each."""

APPLIED_BYTES_MAX = 256 << 10
"""Of commands of a coordinator, in a turn: some thousand positions, which take 30 ms."""

MEASURED_TICKS = 500
"""How long the size that a state had when it was encoded in pieces is that of the present one."""

_LATELY_NS = 1_000 * MS
"""How long clients are told of the loss of a leader."""
_NO_LOSS = (0, ServerId(0))


class Owner(Protocol):
    """What a group's entries are for. All calls come from inside a turn and may not block."""

    @property
    def entries_are_state(self) -> bool:
        """Whether the entries themselves are kept, not only what was made of them: then a snapshot
        stands at the log's start, else at its applied end."""

    @property
    def is_remembered(self) -> bool:
        """Whether entries are applied only once the commit index that covers them is durable here:
        then what was applied is never more than what a restart applies again."""

    def apply(self, entries: Sequence[Entry]) -> None:
        """Committed entries that are durable here, in order, each exactly once."""

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None:
        """Committed entries that the state reflects already, because it came with a snapshot; in
        order, and after a restart again from the last checkpoint on. `is_last`: all were."""

    def install(self, items: Items) -> None:
        """Replace the applied state by a snapshot's."""

    def takes_on_full_disk(self, entry: Entry) -> bool:
        """Whether an entry is so rare, or so needed to make room, that a full disk takes it."""

    def stopped(self) -> None:
        """The replica is taken out of service; its successor may come."""

    def items(self) -> Items:
        """The whole applied state, in key order."""

    def snapshot_items(self, start: Offset, *, is_short: bool) -> Items | None:
        """What a replica needs of it to which the entries behind those of the snapshot are sent as
        well; the first of these begins at `start`. `is_short`: without what follows from those.
        None: it cannot be told now."""

    @property
    def snapshots_are_short(self) -> bool:
        """Whether these may leave out what follows from those entries: all who may get them know
        that."""

    def scan(self) -> Scan | None:
        """The same, to be read in pieces; None: `items` costs little."""

    @property
    def item_count(self) -> int:
        """How much there is in it, at no cost: about in proportion to what `items` says."""

    def committed(self, commit: Index) -> None:
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

    @property
    def holds_proposals(self) -> bool:
        """Whether some were refused for want of room, or during a transfer, and wait."""

    def room_available(self) -> None:
        """Those may be tried again."""

    def expire(self, now_ns: int) -> None:
        """Answer those whose deadline has passed."""

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        """Applied state that changed since the last call."""

    @property
    def large(self) -> LargeState | None:
        """The state, if it may be large; None: all of it is read and loaded at once."""

    def installed(self) -> None:
        """What `install` does once the items are loaded."""


@dataclass(slots=True)
class Coming:
    """A state that another replica gave, and who hears when it is taken."""

    snapshot: Snapshot
    state: OpenSnapshot
    taken: Callable[[], None]
    outbox: Outbox | None = None
    """Of the turn in which it began to wait for the disk."""


class Group:
    """One replica. `dirty` means the host's next turn pumps it."""

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
        """`placement`: what the members are to be, preferred leader first; `members`: what they
        are, as of `applied`. `full`: the servers whose disks are known to be full, at any time.
        `loaded`: see `AppliedState`."""
        self.group_id = log.group_id
        self.replica_id = replica_id
        self.log = log
        self.store = store
        self.owner = owner
        self.placement = tuple(placement)
        self.leaving: tuple[NodeId, ...] = ()
        """Replicas that are not to be members any more, and whose servers keep them until the group
        has removed them."""
        self.adding: frozenset[NodeId] = frozenset()
        """Those of `placement` that a reassignment brings: they come together, or not yet."""
        self.wanted_revision = 0
        """Of `placement`, as the catalog is applied here: see `vdl/state/reassignment.py`."""
        self.to_finish = False
        """Whether the catalog waits to hear that the group has done its part of a reassignment."""
        self.revision = members.revision
        """The last revision that this was said of in the group's own log."""
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
                # At a follower no producer waits for records to be committed, for commands somebody
                # may.
                commit_apart=owner.entries_are_state,
                applied_bytes_max=(
                    options.apply_bytes_max if owner.large is None else APPLIED_BYTES_MAX
                ),
            )
        )
        self._options, self._rng = options, rng
        self._is_linked, self._full = is_linked, full
        self._gone_tick = 0
        """When the leader's process was proved gone; 0 once somebody leads, or the election timeout
        has to show it."""
        self.dirty = False
        self._tick = tick
        self.last_tick = tick()
        self.owes_tick = False
        """A tick passed that was not counted, because something was due in it."""
        self.due_tick = self.entry_tick = 0
        self.last_token = 0
        """Invariant: everything this group staged is durable once this token is."""
        self.commit = self.node.commit
        self.applied = applied
        self.whole_at = self.commit
        """What a life before this one may have applied. Below it the state is one of the past,
        because entries could not be read at the start: this replica votes and acknowledges, and
        nobody acts on its state."""
        self.on_whole: Callable[[], None] | None = None
        """Called once, when the state is whole; only if it was not from the beginning."""
        self.on_loading: Callable[[], None] | None = None  # when `is_loading` has changed
        self.apply_stalled = False
        """What is to be applied next could not be read: see `retry_apply`."""
        self.meta_applied = applied
        """Applied index that the last checkpoint got."""
        self.reflects = members.reflects
        """State and members reflect entries up to here, also those not yet applied again."""
        self._members_stored: Members | None = None
        """As a checkpoint of this life got them. What an earlier one got may be older than
        `members`, which replay may have moved."""
        self._stored_for: Membership | None = None
        self._state = AppliedState(
            owner,
            is_replaced=bool(log.installed_state),
            piece=options.encoded_items_per_turn,
            loaded=loaded,
        )
        self.trim_refused = 0
        """Where the log would have been cut when the state was last found too large for that."""
        self.snapshot_cache = SnapshotCache()
        self._throttle, self._move_throttle, self._encodings = throttle, move_throttle, encodings
        self._gain = Gain()
        self._cold_first: dict[NodeId, int] = {}
        """From where on each peer was last to be fed from disk, until that has been read."""
        self._held = 0
        """Applications that wait for the disk; while there are any, all wait."""
        self._coming: Coming | None = None
        """A state from elsewhere that is taken once what it stands on is durable here."""
        self.reads = ReadRounds()
        self.awaits_copies = False
        """Set by the owner: it waits for copies of committed entries, which `pump` reports to
        it."""
        self.was_leader = self.serving = False
        """`serving`: leads, and has applied the first entry of its own term."""
        self.leader_known: NodeId = NodeId(0)
        self.lost_leader = _NO_LOSS
        """When the leader's server was last lost (monotonic ns), and that server."""
        self.term_known = self.term_listed = self.node.term
        """`term_listed`: the last of them that was held against what other servers claim."""

    # --- members ---------------------------------------------------------------------------
    @property
    def accepts_appends(self) -> bool:
        """Whether there is room for new records here and at a majority. Without it they would wait
        for a disk to get room, and what makes room would wait behind them."""
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
        """Everybody the group's log is replicated to, ids ascending."""
        return sorted(self.node.membership.members())

    @property
    def listed(self) -> tuple[NodeId, ...]:
        """Every replica that its server has to keep: those that are to be members, preferred leader
        first, and those that leave."""
        return self.placement + self.leaving if self.leaving else self.placement

    @property
    def is_settled(self) -> bool:
        """Whether the members are what the catalog says they are to be, and it knows. Asked often,
        and answered anew when either has changed."""
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
        """Whether the state reflects everything that it did before a restart, and is loaded. One
        that is not whole never leads or serves: it does not campaign, because entries wait to be
        applied that are not in memory (`raft.candidate`), or as long as `is_loading`, which its
        host sees to."""
        return self.applied >= self.whole_at and not self.is_loading

    @property
    def is_loading(self) -> bool:
        """Whether a state from elsewhere is being loaded, which counts as applied."""
        return self._state.loading is not None

    @property
    def needs_pump(self) -> bool:
        """Whether `pump` would do anything."""
        # Another role, leader or term than the last pump left makes the node ready.
        return (
            self.node.has_ready()
            or (self.was_leader and (self.owner.holds_proposals or not self.serving))
            or self.awaits_copies
            or self._coming is not None
            or bool(self.reads)
        )

    @property
    def preferred(self) -> bool:
        """First of its placement: leads when it can."""
        return self.placement[0] == self.replica_id and self.node.raft.is_voter

    # --- time ------------------------------------------------------------------------------
    @property
    def tick(self) -> int:
        """The present tick; `last_tick` may be long past, for a group that rests."""
        return self._tick()

    def catch_up(self, tick: int) -> None:
        """Make up for ticks that passed unseen, without letting anything fall due: what fell due
        is the timer's to say, and the message at hand may be the reason why it should not."""
        if tick > self.last_tick:
            self._count_harmless(tick, self.node.ticks_until_due())

    def _count_harmless(self, tick: int, due: int) -> int:
        """Count ticks up to the one in `due` ticks, not including it; how many are left to it."""
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
        """At the end of a turn nothing is due any more: count the tick that was left out when
        something was. The ticks until something is due.

        A leader may be due each time a tick has passed, and not at the end of each turn: followers
        that were out of step have acknowledged what they lacked. Its timer is put off each time.
        If that tick were left out, no quorum would be checked, and who is silent be sent no
        heartbeat, for as long as records come in."""
        self.owes_tick = False
        self.node.tick(1)
        return self.node.ticks_until_due()

    def fall_due(self, tick: int) -> tuple[int, bool]:
        """Let what is due happen, also when messages have already made up for the last tick: under
        load they nearly always have, and elections and check-quorum must not starve. The ticks
        until something is due again, and whether something was."""
        node = self.node
        due = self._count_harmless(max(tick, self.last_tick), node.ticks_until_due())
        if due > 1:
            return due, False
        self.owes_tick = False
        node.tick(1)
        return node.ticks_until_due(), True

    def is_leaderless(self, servers: Set[ServerId]) -> bool:
        """Whether nobody leads, though most voters are on these servers."""
        node = self.node
        voters = node.membership.incoming
        reachable = [replica for replica in voters if server_of(replica) in servers]
        return not (node.lead or node.is_leader or len(reachable) * 2 <= len(voters))

    def campaign_in_turn(
        self, servers: Mapping[ServerId, bool], tick: int, *, leaderless: int
    ) -> None:
        """The leader's process is gone: campaign soon, unless somebody wins before. Replicas on
        `servers`, those alive, do in their order of preference and not at one time: simultaneous
        candidates split the vote. Those that should not lead, by what is said there, come last.
        One that lacks entries loses its turn.
        `leaderless`: how many groups lost their leader together. Where they are many, those whose
        turn is first take longer, and the others give them that long; an election timeout at the
        most."""
        options, node = self._options, self.node
        self.catch_up(tick)
        # Lists prove that a leader lives, and are looked at only when the election timer is due:
        # it may be now, for all who are left.
        node.leader_heard(0)
        node.forget_leader()
        # If none is there, its replicas are about to be moved away, and not gone yet.
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
        """Its leader lived until now, and leads no more: time to be elected anew is counted from
        when this replica might have looked last."""
        self.catch_up(tick)
        self.node.leader_heard(self._rng.randrange(self.node.raft.randomized_election_timeout))

    def _turns(self, replicas: Iterable[NodeId], servers: Mapping[ServerId, bool]) -> list[NodeId]:
        """Those of the replicas that are on these servers, first those that should lead."""
        alive = [replica for replica in replicas if server_of(replica) in servers]
        return sorted(alive, key=lambda replica: not servers[server_of(replica)])

    def leader_gave_up(self, servers: Mapping[ServerId, bool], tick: int) -> None:
        """The leader of this term says that it leads no more: it hears nobody. Whoever is preferred
        of the replicas on `servers`, those alive but for its own, campaigns soon. The others listen
        to it, and wait as after a resignation: on slow disks two candidates would spend terms.
        See `campaign_in_turn`."""
        node = self.node
        self.leader_resigned(tick)
        node.forget_leader()
        alive = self._turns(self.placement, servers)
        if alive and alive[0] == self.replica_id:
            node.campaign_soon(self._options.failover_ticks_min)
            self._gone_tick = tick

    def _campaign_again(self) -> None:
        """While nobody leads, campaign again before the election timeout: votes may have been
        split, a request may have come before its receiver knew. Ever later, for a slow disk needs
        its time, and for no longer than an election timeout: there may be no majority."""
        node, options = self.node, self._options
        ticks = max(2 * options.failover_ticks_max, self.last_tick - self._gone_tick)
        if node.lead or ticks >= options.election_ticks:
            self._gone_tick = 0
        elif not node.raft.campaign_due:
            node.campaign_soon(self._rng.randint(ticks, 2 * ticks))

    def lately_lost_leader(self, now_ns: int) -> tuple[int, ServerId]:
        """When the group lost its leader together with the leader's server, and that server;
        (0, 0) if not lately."""
        return self.lost_leader if now_ns - self.lost_leader[0] <= _LATELY_NS else _NO_LOSS

    def commit_request(self) -> MsgAppResp:
        """What makes the leader repeat its commit index, which may have been lost on its way: an
        old acknowledgement. Like every one it vouches for nothing that is not durable here."""
        node = self.node
        index = min(node.commit, node.stable)
        return MsgAppResp(to=node.lead, from_=node.id, term=node.term, index=index)

    def propose(self, entry: Entry) -> None:
        """Append an entry to the leader's log. Raises ProposalDropped, then nothing changed."""
        # While everybody is in step: ticks that passed at rest, counted only after the entry put
        # all out of step, would make heartbeats due before its answers can be here.
        self.catch_up(self._tick())
        self.node.propose([entry])

    # --- the turn ----------------------------------------------------------------------------
    def pump(self, outbox: Outbox) -> None:
        """Do what the core wants done, until it wants nothing more without a disk or a peer."""
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
            self._note_role()  # it may have led at the turn's beginning: an owner stops first
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
        """Replace log and state by what a leader sent (§7). Both are in one journal record."""
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
        """The state came from another replica."""
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
        """Take the state in pieces. A crash in between leaves what there was before, or, of a
        snapshot, what the journal has of it."""

        def loaded() -> None:
            self.owner.installed()
            self._loaded()
            outbox.mark_dirty(self)

        self._encodings.add(self._state.load(state.pieces, loaded))
        if self.on_loading is not None:
            self.on_loading()

    def _loaded(self) -> None:
        """The state is loaded: apply what waited for that."""
        self._note_whole()
        for message in self._state.take_unapplied():
            self.apply(message)
        if self.on_loading is not None:
            self.on_loading()

    def take_state(self, snapshot: Snapshot, taken: Callable[[], None]) -> bool:
        """Take the state that another replica made of entries which this one has and cannot read,
        while nobody else has them any more either; the log stays as it is. False when that is not
        possible now. Until the next checkpoint it is in memory only: a crash in between leaves
        what there was, and a commit index that tells how much was acted on. Hence it is taken, and
        `taken` called, only once that is durable. Raises DecodeError."""
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
        """Have the commit index that a coming state stands on made durable. Members may reflect
        more than the state's index: that their index is committed comes by itself."""
        coming = self._coming
        assert coming is not None, self.group_id
        members = coming.state.members
        is_same = members.conf_state == self.node.membership.conf_state()
        if not self._may_take(coming.snapshot, coming.state):
            self._coming = None  # the entries could be read after all, or a snapshot came
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
        """Read again what is to be applied next, if that failed: a damaged range may have been
        repaired, or the disk have room."""
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
        """The state for a replica that lacks entries from `first` on, which are cut off here; None
        when it cannot be given now."""
        if not self.is_whole or first >= self.log.first_index:
            return None
        try:
            return self._snapshot()
        except SnapshotTemporarilyUnavailable:
            return None

    def _snapshot(self) -> Snapshot:
        """What a replica gets that is behind the log's start. Raises
        SnapshotTemporarilyUnavailable."""
        log, owner, snapshot_cache, tick = self.log, self.owner, self.snapshot_cache, self.tick
        if self._state.loading is not None:
            raise SnapshotTemporarilyUnavailable
        is_short = owner.snapshots_are_short
        kept = snapshot_cache.kept(first_index=log.first_index, tick=tick, is_short=is_short)
        if kept is not None:
            return kept
        # The core asks at each sign of life.
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
            # Of the index: who reads there, the scrubber too, rebuilds it.
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
        """The state as snapshots hold it, in one piece: it is a small one."""
        members = members_of(conf_state, reflects=reflects, revision=self.revision)
        data = encode_snapshot(members, items)
        uncompressed = sum(len(key) + len(value) for key, value in items)
        self.snapshot_cache.measured(self.owner.item_count, len(data), uncompressed)
        return data

    @property
    def snapshot_bytes_max(self) -> int:
        """How large a snapshot may be."""
        return PARTS_BYTES_MAX if self.snapshots_in_parts else SNAPSHOT_BYTES_MAX

    @property
    def snapshots_in_parts(self) -> bool:
        """See `LargeState.snapshots_in_parts`."""
        large = self._state.large
        return large is not None and large.snapshots_in_parts

    def snapshot_bytes(self, *, limit: int, anew: bool) -> int | None:
        """How large a snapshot would be now, as far as the last one tells, and certainly if it may
        have passed the limit since; `anew`: encode one. None: that takes more than this turn, to be
        asked again."""
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
        """The encoding of a state that is too large for one turn, which has begun; None: it is
        not."""
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
        """What was read is the state as it is now."""
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
        for entry in message.entries:  # a generator costs, for each commit
            if entry.kind in CONF_CHANGE_KINDS and entry.index > self.reflects:
                return True
        return False

    def _hold(self, message: MsgStorageApply, outbox: Outbox) -> None:
        """Wait until the commit index is durable here, and have what follows wait too. Members
        change only then: a quorum counted with new members must not be forgotten in a crash, or the
        old ones would be asked again, of whom one may be gone for good."""
        self._held += 1
        outbox.staged = True
        outbox.urgent = True
        outbox.after_append.append((self, True, [message]))

    def apply_held(self, message: MsgStorageApply) -> None:
        """`apply` what waited for the disk; without entries it is a state from elsewhere."""
        self._held -= 1
        assert self._held >= 0, self.group_id
        if message.entries:
            self.apply(message)
        else:
            self._take_coming()

    def apply(self, message: MsgStorageApply) -> None:
        """Apply committed entries, in order; not those that waited until a snapshot, which always
        stands for more than what was committed before, had brought what comes of them. While a
        state is loaded, later."""
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
        """Entries a peer, or this replica's own applier, needs that left memory."""
        if want.peer != self.replica_id:
            self._feed(want, outbox)
            return

        def done(found: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(found, storage.StorageError):
                # At once it would fail again: it waits until that may have changed.
                self.apply_stalled = True
                return
            self.node.entries_ready(want.peer, [as_entry(stored) for stored in found])
            outbox.mark_dirty(self)

        self.store.entries_cold(self.log, want.first, want.end, want.bytes_max, done)

    def _feed(self, want: ColdRead, outbox: Outbox) -> None:
        """Read what a peer needs, when it is its turn, if it needs it then."""
        peer = want.peer
        key = (self, peer)
        throttle: RecoveryThrottle | MoveThrottle = self._throttle
        if self._move_throttle.is_paced(key):
            throttle = self._move_throttle
        began_ns = 0

        def done(found: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(found, storage.StorageError):
                found = []  # asked again at the peer's next sign of life
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
        """Whether the core still waits for these entries: a peer that is probed anew, as after the
        reset of its link, is not sent them, nor does one who leads no more send any."""
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
        """The replica is taken out of service: nobody is to be fed by it."""
        self._state.encoding = self._state.loading = None
        for peer in self._cold_first:
            self._withdraw(peer)
        self._cold_first.clear()

    def _withdraw(self, peer: NodeId) -> None:
        self._throttle.withdraw((self, peer))
        self._move_throttle.withdraw((self, peer))

    # --- checkpoints -------------------------------------------------------------------------
    def collect_meta(self) -> storage.MetaBatch | None:
        """What changed since the last checkpoint. None when nothing did, when the state is being
        loaded, and when there is more than one turn has time for: that is taken to pieces first."""
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
        # Compared by identity, for a thousand groups that rest: a change makes a new one.
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
        """Tell the owner what changed since the last turn, in the order it needs it."""
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
    """How every node here runs: writes are asynchronous, votes are durable before they count."""
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
        # One that was removed does not know it before it has applied that, and may be elected.
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
