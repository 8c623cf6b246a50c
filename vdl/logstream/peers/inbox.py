"""Raft messages that come from peers: which replica they are for, and whether it may have them.

A message for a replica that is about to run is kept for a moment; one for a former replica of this
server, from a server that does not speak for its sender, or of a group that is not here is dropped.
Raft repeats whatever matters. So is what no host sends, though it can be decoded: a proposal would
get past the catalog and the state machines, which look at commands before they are appended.

A message that contradicts this replica's log, or itself, is dropped and told of: one of the two is
faulty. The group goes on with whoever agrees, and all other groups of that server with it.

A server whose segments do not keep up takes no more entries as a follower, beyond a bound for all
its groups together: what it has not taken it does not acknowledge, the leader's window fills, and
it sends again at each heartbeat. The commit index it still takes. What counts is what waits for the
own disk: entries that are not committed wait for others, and two servers that waited for one
another would do so for ever. Those are bounded where they come from: a leader holds its producers
back.

Must not know: frames, what messages say beyond their kind.
"""

from __future__ import annotations

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
from vdl.logstream.group.outbox import SERVER_SHIFT, server_of
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
"""What a full disk takes of a group at one time, and then only what must be."""
ENTRY_OVERHEAD_BYTES = 256
"""More than an entry takes in the journal besides its data."""
NEEDED_NS = 500 * MS
"""How long entries wait before a full disk takes them: longer than others need to commit them."""
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
        # By a leader that is deposed in the turn in which it was asked.
        MsgReadIndex,
        MsgReadIndexResp,
    )
)
"""Not MsgProp and MsgTransferLeader: commands travel in frames of their own (`forwarding.py`), and
only leaders hand over."""


class Inbox:
    """See the module."""

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
        """By group id: the last entry of what a full disk was sent and that was not committed; the
        leader's term, the index, and since when."""
        self._granted_bytes = 0
        """Of a full disk's room, to entries that are not staged yet: since turn `_granted_turn`."""
        self._granted_turn = 0
        self._store = state.store
        self._unflushed_max = state.unflushed_bytes_max
        self._taken_bytes = 0
        """Of entries that are not staged yet, with their frames: since turn `_taken_turn`."""
        self._taken_turn = -1
        self._flushable_bytes = -1
        """As of turn `_taken_turn`; -1 before it was looked up."""

    def step(self, group_id: GroupId, message: PeerMessage, server_id: ServerId, tick: int) -> None:
        """Hand a message over, keep it or drop it."""
        stats = self._stats
        stats.messages_in += 1
        if type(message) not in SENT_BY_HOSTS:
            stats.messages_dropped += 1
            return
        if message.from_ >> SERVER_SHIFT != server_id:
            stats.messages_dropped += 1
            return
        group = self._groups.get(group_id)
        if group is None:
            self._dissent.lost(group_id, message, server_id)
            self._keep_early(group_id, message)
            return
        if message.to != group.replica_id:
            stats.messages_dropped += 1
            return
        if self._dissent.refuses(group, message, server_id):
            stats.messages_dropped += 1
            return
        if not self._may_take(message, group):
            stats.messages_dropped += 1
            return
        if type(message) is MsgApp and message.entries and not self._status.is_full:
            taken = self._taken_of(message, group)
            if taken:
                message.entries = taken
            else:
                message = self._without_entries(message, group)
        if tick > group.last_tick:
            group.catch_up(tick)
        if isinstance(message, MsgPreVote | MsgVote) and not group.node.is_leader:
            # Whether a leader is alive is looked up only when needed: it is now (§6, stickiness).
            self._proofs.report_leader(group)
            self._last_resort.requested(group, message, server_id)
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

    def begin(self, group: Group, tick: int) -> None:
        """The group runs from now on: it gets what its peers have already said."""
        for message in self._early.take(group.group_id):
            self.step(group.group_id, message, server_of(message.from_), tick)

    def forget(self, group_id: GroupId) -> None:
        """No replica of the group will run here."""
        self._early.take(group_id)
        self._awaited.pop(group_id, None)

    def catalog_changed(self) -> None:
        """What is kept for groups that turned out not to be for this server goes."""
        next_group_id = self._state.catalog.next_group_id
        self._early.drop_unless(lambda g: g >= next_group_id or self._is_expected(g))

    def _may_take(self, message: PeerMessage, group: Group) -> bool:
        """Whether a peer's message can be stepped: not a snapshot of another version, and with a
        full disk only what has to be taken, as far as there is room. The leader tries again."""
        if type(message) is MsgSnap:
            if not _is_readable(message):
                return False
            needed = len(message.snapshot.data) + ENTRY_OVERHEAD_BYTES
            return not self._status.is_full or self._grant(group, needed, is_essential=False)
        if type(message) is MsgApp and message.entries and self._status.is_full:
            self._status.look()  # its leader takes more until it has heard of it
            message.entries = self._fitting(message, group)
            return bool(message.entries)
        return True

    # --- a server that is crowded --------------------------------------------------------------
    def _taken_of(self, message: MsgApp, group: Group) -> list[Entry]:
        """The first of a leader's entries, as far as there is room for those that are committed.
        One may pass the bound: a large one must not wait for ever behind little that is not due to
        be flushed. Others are taken beyond it, for no flush frees them before they are committed;
        but not in one message with some that a flush will free."""
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
        """The first of a leader's entries: those that are here already, and of the others those
        before the first large one for which there is no room. They count apart: see `Store`."""
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
        """What is taken of a leader's message for which there is no room: the commit index."""
        self._stats.appends_refused += 1
        self._store.checkpoint()  # what is not appended makes none due
        log = group.node.raft.log
        is_known = log.matches(index=message.index, term=message.log_term)
        commit = min(message.commit, message.index) if is_known else NO_INDEX
        return MsgCommit(message.to, message.from_, message.term, commit)

    def _fitting(self, message: MsgApp, group: Group) -> list[Entry]:
        """The entries of the message that a full disk takes, from the first one on.

        New records it does not. But a leader that has just been elected cannot commit, serve or
        delete anything before a majority has what came before its own term: that is taken from the
        room that is left, a little at a time, when all before it is durable; and not from the room
        that votes need, because then nobody could be elected either. In the same way it takes what
        nobody commits without this server: what makes room may wait behind it. What is here already
        is taken as it is: the leader may not have heard that.
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
            # A marker is needed, but less than what makes room again.
            if not self._grant(group, needed, is_essential=is_essential and not entry.records):
                break
            taken.append(entry)
        return taken

    def _needed_in(self, message: MsgApp, group: Group) -> Index:
        """The last of the entries that wait for this server, 0 if none does: it was sent a while
        ago and is not committed yet. A majority that has room commits sooner."""
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
        """Whether the group exists, as far as this server knows, and has a replica here that may
        run."""
        return group_id not in self._state.lost and bool(self._state.catalog.replicas(group_id))


def _counted(entry: Entry) -> int:
    """As how many bytes an entry counts that is to be flushed."""
    size = len(entry.data)
    return ENTRY_FRAME_BYTES + (size if size <= LARGE_BATCH_BYTES else 0)


def _held_of(message: MsgApp, group: Group) -> int:
    """How many of the first entries of a leader's message the log here has. They need no room, and
    the leader must hear of them again: its records may wait for that alone."""
    log = group.node.raft.log
    for n, entry in enumerate(message.entries):
        if not log.matches(index=entry.index, term=entry.term):
            return n
    return len(message.entries)


def _is_readable(message: MsgSnap) -> bool:
    """Whether a peer's snapshot is one this version understands."""
    try:
        open_snapshot(message.snapshot.data)
    except DecodeError:
        return False
    return True
