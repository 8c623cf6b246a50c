"""Incoming Raft messages: dispatch to replicas, and admission.

A message for a replica that is about to run is kept for a moment. Dropped are messages for a former
replica of this server, from a server that does not own their sender, and for groups that are not
here; Raft repeats all that matter. Also dropped are messages that can be decoded but are sent by no
host: a proposal would bypass the catalog and the state machines, which check commands before they
are appended.

A message that contradicts this replica's log, or itself, is dropped and reported: one of the two
replicas is faulty. The group goes on with the replicas that agree, and so do all other groups of
that server.

A server whose segments do not keep up takes no more entries as a follower, beyond a bound for all
its groups together. It does not acknowledge the refused ones, the leader's window fills, and the
leader sends again at each heartbeat. The commit index is still taken. Only entries that wait for
the own disk count: uncommitted entries wait for other servers, and two servers could wait for each
other for ever. Those are bounded at their source: a leader holds its producers back.

An append with a large entry waits until that is written ahead (`group/write_ahead.py`), and some
later appends of its leader behind it; the others are dropped.

Does not depend on frames, or on the content of messages beyond their type.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ids import NO_INDEX, GroupId, Index, ServerId
from raft.errors import Contradiction, Diverged, StepPeerNotFound
from raft.log import payload_bytes
from raft.messages import (
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgHeartbeatResp,
    MsgPreVote,
    MsgPreVoteResp,
    MsgReadIndex,
    MsgReadIndexResp,
    MsgSnap,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
    PeerMessage,
)
from raft.types import Entry
from segments.api import ENTRY_FRAME_BYTES
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import SERVER_SHIFT, server_of
from vdl.logstream.group.snapshots import DecodeError, open_snapshot
from vdl.logstream.options import LARGE_BATCH_BYTES
from vdl.logstream.peers.commit_propagation import CommitPropagation
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.peers.dissent import Dissent
from vdl.logstream.peers.early_messages import EarlyMessages
from vdl.logstream.peers.last_resort import LastResort
from vdl.logstream.peers.leader_proofs import LeaderProofs
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState

FULL_DISK_BYTES = 16 << 10
"""Bytes that a full disk takes of a group at one time, and only of entries that it has to take."""
ENTRY_OVERHEAD_BYTES = 256
"""Upper bound of an entry's space in the journal, besides its data."""
NEEDED_NS = 500 * MS
"""Time for which entries wait before a full disk takes them: longer than others need to commit
them."""
SENT_BY_HOSTS: Final[frozenset[type[PeerMessage]]] = frozenset(
    (
        MsgApp,
        MsgAppResp,
        MsgVote,
        MsgVoteResp,
        MsgPreVote,
        MsgPreVoteResp,
        MsgHeartbeat,
        MsgHeartbeatResp,
        MsgCommit,
        MsgSnap,
        MsgTimeoutNow,
        # Sent by a leader that is deposed in the turn of the request.
        MsgReadIndex,
        MsgReadIndexResp,
    )
)
"""Without MsgProp and MsgTransferLeader: commands travel in frames of their own (`forwarding.py`),
and only leaders start transfers."""


class Inbox:
    """Incoming Raft messages of one server."""

    __slots__ = (
        "_awaited",
        "_commits",
        "_contradictions",
        "_dissent",
        "_early",
        "_flushable_bytes",
        "_granted_bytes",
        "_granted_turn",
        "_groups",
        "_last_resort",
        "_proofs",
        "_state",
        "_stats",
        "_status",
        "_store",
        "_taken_bytes",
        "_taken_turn",
        "_unflushed_max",
    )

    def __init__(
        self,
        state: HostState,
        status: ServerStatus,
        proofs: LeaderProofs,
        commits: CommitPropagation,
        contradictions: Contradictions,
        dissent: Dissent,
        last_resort: LastResort,
    ) -> None:
        self._state = state
        self._last_resort = last_resort
        self._contradictions = contradictions
        self._dissent = dissent
        self._groups = state.groups
        self._stats = state.stats
        self._status = status
        self._proofs = proofs
        self._commits = commits
        self._early = EarlyMessages(
            state.options.early_messages_max, state.options.early_snapshot_bytes_max
        )
        self._awaited: dict[GroupId, tuple[int, Index, int]] = {}
        """By group id: last uncommitted entry that was sent to a full disk; as (leader's term,
        index, time since when)."""
        self._granted_bytes = 0
        """Bytes of a full disk's space granted to entries that are not staged yet, since turn
        `_granted_turn`."""
        self._granted_turn = 0
        self._store = state.store
        self._unflushed_max = state.unflushed_bytes_max
        self._taken_bytes = 0
        """Bytes, with frames, of entries that are not staged yet, since turn `_taken_turn`."""
        self._taken_turn = -1
        self._flushable_bytes = -1
        """Flushable bytes as of turn `_taken_turn`; -1: not looked up."""

    def step(
        self,
        group_id: GroupId,
        message: PeerMessage,
        server_id: ServerId,
        tick: int,
        *,
        is_admitted: bool = False,
    ) -> None:
        """Step a message into its group, keep it, or drop it."""
        stats = self._stats
        stats.messages_in += 1
        if type(message) not in SENT_BY_HOSTS or message.from_ >> SERVER_SHIFT != server_id:
            stats.messages_dropped += 1
            return
        group = self._groups.get(group_id)
        if group is None:
            self._dissent.lost(group_id, message, server_id)
            self._keep_early(group_id, message)
            return
        dissent = self._dissent
        if message.to != group.replica_id or (
            dissent.refused and dissent.refuses(group, message, server_id)
        ):
            stats.messages_dropped += 1
            return
        if type(message) is MsgApp:
            ahead = group.writing_ahead
            if not is_admitted and (message.entries or (ahead is not None and ahead.held)):
                admitted = self._admitted(message, group, server_id)
                if admitted is None:
                    return
                message = admitted
        elif type(message) is MsgSnap and not self._may_take(message, group):
            stats.messages_dropped += 1
            return
        if tick > group.last_tick:
            group.catch_up(tick)
        if isinstance(message, MsgPreVote | MsgVote) and not group.node.is_leader:
            # Leaders' liveness is looked up only when needed, as here (§6, stickiness).
            self._proofs.report_leader(group)
            self._last_resort.requested(group, message, server_id)
        elif type(message) is MsgTimeoutNow:
            group.campaigning.because("transfer", message.from_)
        try:
            group.node.step(message)
        except StepPeerNotFound:
            stats.messages_dropped += 1
            return
        except Contradiction as contradiction:
            stats.messages_dropped += 1
            if isinstance(contradiction, Diverged):
                self._dissent.diverged(group, message, contradiction.first)
            self._contradictions.found(
                server_id, group_id, message=type(message).__name__, says=str(contradiction)
            )
        else:
            if group_id in self._state.dissenting:
                self._dissent.followed(group_id, message)
        self._commits.stepped(group)

    def _admitted(self, message: MsgApp, group: Group, server_id: ServerId) -> PeerMessage | None:
        """Return the part of an append to step now. None: it is held, or dropped."""
        ahead = group.writing_ahead
        if ahead is not None and ahead.held and ahead.keeps_back(message):
            if not ahead.holds_behind(message):
                self._stats.messages_dropped += 1
            return None
        if not message.entries:
            return message
        if not self._store.accepts_appends:
            self._status.look()  # its leader sends more until it receives the status
            message.entries = self._fitting(message, group)
            if not message.entries:
                self._stats.messages_dropped += 1
                return None
            return message
        taken = self._taken_of(message, group)
        if not taken:
            return self._without_entries(message, group)
        message.entries = taken
        is_large = len(taken) == 1 and len(taken[0].data) >= group.ahead_bytes_min
        return None if is_large and self._is_held(message, group, server_id) else message

    def _is_held(self, message: MsgApp, group: Group, server_id: ServerId) -> bool:
        """Hold an admitted append until its large entry is written ahead.

        Return False if it is to be stepped.
        """
        ahead, size = group.ahead, len(message.entries[0].data)
        if not ahead.holds(message):
            return False
        self._state.large_room.note_ahead(ahead, size if size > LARGE_BATCH_BYTES else 0)
        ahead.on_release = partial(self._release, group, server_id)
        self._state.outbox.mark_dirty(group)
        return True

    def _release(self, group: Group, server_id: ServerId) -> None:
        """Step the appends of a leader that its follower has held, in order."""
        first, *held = group.ahead.take_held()
        group.ahead.forget()
        size = len(first.entries[0].data)
        large_room = self._state.large_room
        is_large = size > LARGE_BATCH_BYTES
        if self._groups.get(group.group_id) is not group or not (
            self._store.accepts_appends and (not is_large or large_room.fits_disk(size))
        ):
            self._stats.messages_dropped += 1 + len(held)  # their leader sends them again
            return
        if is_large:
            large_room.take(size)  # its room in memory was taken when it came
        tick = self._state.loop_time.tick()
        self.step(group.group_id, first, server_id, tick, is_admitted=True)
        for message in held:
            self.step(group.group_id, message, server_id, tick)

    def begin(self, group: Group, tick: int) -> None:
        """Step the early messages of a group that starts to run."""
        for message in self._early.take(group.group_id):
            self.step(group.group_id, message, server_of(message.from_), tick)

    def forget(self, group_id: GroupId) -> None:
        """Drop the messages of a group that will have no replica here."""
        self._early.take(group_id)
        self._awaited.pop(group_id, None)

    def catalog_changed(self) -> None:
        """Drop the messages of groups that turned out to have no replica here."""
        next_group_id = self._state.catalog.next_group_id
        self._early.drop_unless(lambda g: g >= next_group_id or self._is_expected(g))

    def _may_take(self, message: MsgSnap, group: Group) -> bool:
        """Return True if a snapshot can be stepped; the leader sends a refused one again.

        Snapshots of another version are refused. A full disk takes one only if there is space.
        """
        if not _is_readable(message):
            return False
        needed = len(message.snapshot.data) + ENTRY_OVERHEAD_BYTES
        return self._store.accepts_appends or self._grant(group, needed, is_essential=False)

    # --- flow control --------------------------------------------------------------------------
    def _taken_of(self, message: MsgApp, group: Group) -> list[Entry]:
        """Return the first of a leader's entries, as far as there is room for the committed ones.

        One entry may exceed the bound: a large one must not wait for ever behind a few bytes that
        are not due to be flushed. Uncommitted entries are taken beyond the bound, because no flush
        frees their room before they are committed; but not in one message with entries that a flush
        will free.
        """
        turns = self._stats.turns
        if self._taken_turn != turns:
            self._taken_turn = turns
            self._taken_bytes = 0
            self._flushable_bytes = -1
        entries = message.entries
        size = payload_bytes(entries) + ENTRY_FRAME_BYTES * len(entries)
        store = self._store
        if size > LARGE_BATCH_BYTES:
            entries = self._with_room_for_large(message, group)
            size = sum(map(_counted, entries))
        if store.unflushed_bytes + self._taken_bytes + size <= self._unflushed_max:
            self._taken_bytes += size
            return entries
        if self._flushable_bytes < 0:
            self._flushable_bytes = store.flushable_bytes
        room = self._unflushed_max - self._flushable_bytes - self._taken_bytes
        held = count = _held_of(message, group)
        for entry in entries[held:]:
            if room <= 0:
                break
            if entry.index > message.commit:
                if count == held:
                    count = len(entries)
                break
            room -= _counted(entry)
            count += 1
        self._taken_bytes += sum(map(_counted, entries[held:count]))
        return entries[:count]

    def _with_room_for_large(self, message: MsgApp, group: Group) -> list[Entry]:
        """Return the first of a leader's entries, up to the first new large one without room.

        Entries that are here already need no room. Large ones count separately: see `Store`.
        """
        entries, large_room = message.entries, self._state.large_room
        server_id = server_of(message.from_)
        for at in range(_held_of(message, group), len(entries)):
            size = len(entries[at].data)
            if size > LARGE_BATCH_BYTES:
                if not large_room.may_take(size, group, server_id):
                    return entries[:at]
                large_room.take(size)
        return entries

    def _without_entries(self, message: MsgApp, group: Group) -> PeerMessage:
        """Return the part of a leader's message that is taken without room: the commit index."""
        self._stats.appends_refused += 1
        self._store.checkpoint()  # refused appends make no checkpoint due
        log = group.node.raft.log
        is_known = log.matches(index=message.index, term=message.log_term)
        commit = min(message.commit, message.index) if is_known else NO_INDEX
        return MsgCommit(message.to, message.from_, message.term, commit)

    def _fitting(self, message: MsgApp, group: Group) -> list[Entry]:
        """Return the first entries of the message that a full disk takes.

        New records are refused. But a newly elected leader cannot commit, serve or delete anything
        before a majority has the entries before its own term: these are taken from the remaining
        space, a little at a time, when all earlier ones are durable. The space that votes need is
        not used, because no leader could be elected without it. Entries that are not committed
        without this server are taken in the same way: entries that free space may wait behind them.
        Entries that are here already are taken unchanged: the leader may not have received their
        acknowledgement.
        """
        held = _held_of(message, group)
        taken = message.entries[:held]
        if group.last_token > group.store.durable_token:
            return taken
        room = FULL_DISK_BYTES
        needed_index = self._needed_in(message, group)
        for entry in message.entries[held:]:
            room -= len(entry.data)
            is_essential = group.owner.takes_on_full_disk(entry)
            is_needed = is_essential or entry.term < message.term or entry.index <= needed_index
            if not is_needed or (room < 0 and len(taken) > held):
                break
            needed = len(entry.data) + ENTRY_OVERHEAD_BYTES
            # A marker is needed, but less than entries that free space.
            if not self._grant(group, needed, is_essential=is_essential and not entry.records):
                break
            taken.append(entry)
        return taken

    def _needed_in(self, message: MsgApp, group: Group) -> Index:
        """Return the last of the entries that wait for this server, 0 if none does.

        They were sent a while ago and are not committed yet. A majority with space commits sooner.
        """
        now_ns = self._state.clock.now_ns()
        term, index, since_ns = self._awaited.pop(group.group_id, (0, NO_INDEX, 0))
        if term != message.term or index <= message.commit:
            term, index, since_ns = message.term, message.entries[-1].index, now_ns
        if index <= message.commit:
            return NO_INDEX
        self._awaited[group.group_id] = term, index, since_ns
        return index if now_ns - since_ns >= NEEDED_NS else NO_INDEX

    def _grant(self, group: Group, needed: int, *, is_essential: bool) -> bool:
        if self._granted_turn != self._stats.turns:
            self._granted_turn = self._stats.turns
            self._granted_bytes = 0
        room = group.store.entry_room(is_essential=is_essential)
        if self._granted_bytes + needed > room:
            return False
        self._granted_bytes += needed
        return True

    def _keep_early(self, group_id: GroupId, message: PeerMessage) -> None:
        expected = group_id >= self._state.catalog.next_group_id or self._is_expected(group_id)
        if expected and self._early.keep(group_id, message):
            self._stats.early_messages += 1
        else:
            self._stats.messages_dropped += 1

    def _is_expected(self, group_id: GroupId) -> bool:
        """Return True if the group exists, as known here, and has a replica here that may run."""
        return group_id not in self._state.lost and bool(self._state.catalog.replicas(group_id))


def _counted(entry: Entry) -> int:
    """Return the bytes of an entry that count as unflushed."""
    size = len(entry.data)
    return ENTRY_FRAME_BYTES + (size if size <= LARGE_BATCH_BYTES else 0)


def _held_of(message: MsgApp, group: Group) -> int:
    """Return how many of a leader's first entries the log here has.

    They need no room, and must be acknowledged again: the leader may wait for that.
    """
    log = group.node.raft.log
    for n, entry in enumerate(message.entries):
        if not log.matches(index=entry.index, term=entry.term):
            return n
    return len(message.entries)


def _is_readable(message: MsgSnap) -> bool:
    """Return True if this version understands a peer's snapshot."""
    try:
        open_snapshot(message.snapshot.data)
    except DecodeError:
        return False
    return True
