"""Damaged ranges: entries that a replica has but cannot read from its disk any more.

A damaged frame in a segment whose tail is intact costs a replica nothing but that entry: its vote
and its place in the log are in the journal. It goes on, serves the rest, and requests another
replica's copy, by index and term; any replica may have it, whoever leads. One whose state
waits for the entry (`Group.is_whole`) still gives others those that it has.

Replicas cut their logs each on its own. If the others have cut the entry off, nobody has it, and
nobody needs it: what it did is in their states. A replica that has not applied it takes such a
state, and one that has lets go of it, too.

The other way round, this answers replicas that request entries. They have committed the entry and
know its term, so an answer need not be known to be committed here.

Must not know: how damaged ranges are found or filled.
"""

from __future__ import annotations

from collections.abc import Sequence

import segments.api as storage
from ids import NO_INDEX, GroupId, Index, ServerId
from raft.types import Entry, Snapshot
from rpc.peer import FrameType
from rpc.ranges import (
    RangeAnswer,
    RangeRequest,
    decode_answer,
    decode_range,
    encode_answer,
    encode_range,
)
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.outbox import server_of
from vdl.logstream.group.snapshots import DecodeError
from vdl.logstream.group.storage import as_entry
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState

ANSWER_BYTES_MAX = 1 << 20
"""Most that one answer carries, unless one entry is larger."""

PATIENCE_NS = 2_000 * MS
"""After which a request that was not answered is dropped."""

HOPELESS_REFUSALS = 10
"""After so many vain requests for one range, or looks when the group has no other replica, an
operator is warned, and told no more of it."""

ANSWERS_AT_ONCE_MAX = 8
"""Reads for other replicas that may be under way; more are answered with nothing."""


class Request:
    """The one request of this server that is under way: for entries [start, end) of a range
    that begins at `first`."""

    __slots__ = ("end", "first", "group", "number", "peer", "start", "until_ns")

    def __init__(
        self,
        number: int,
        peer: ServerId,
        group: Group,
        *,
        first: Index,
        start: Index,
        end: Index,
        until_ns: int,
    ) -> None:
        self.number = number
        self.peer = peer
        self.group = group
        self.first = first
        self.start = start
        self.end = end
        self.until_ns = until_ns

    def is_met_by(self, from_server: ServerId, answer: RangeAnswer) -> bool:
        """Whether an answer is to this request, in all that it names."""
        return (
            (answer.request, from_server) == (self.number, self.peer)
            and answer.group in (None, self.group.group_id)
            and all(self.start <= entry.index < self.end for entry in answer.entries)
        )


class EntryRepair:
    """One server's part."""

    def __init__(self, state: HostState, status: ServerStatus) -> None:
        self._state = state
        self._status = status
        self._pending: Request | None = None
        self._is_repairing = False
        """Copies are being written, which may take as long as the disk likes: others would wait
        behind them."""
        self._answering = 0
        self._turn = 0
        self._refusals: dict[tuple[GroupId, Index], int] = {}
        """How often a range (group, first index) was requested in vain."""
        self._cut_off: dict[tuple[GroupId, Index], Index] = {}
        """Where the next request for a range begins: the peer of the last one has cut off what
        lies before that."""
        self._known: set[GroupId] = set()
        """Groups that were logged as damaged."""
        self._without_room: set[GroupId] = set()
        """Those of them for whose repair the disk has had no room."""

    # --- requesting ----------------------------------------------------------------------------
    def look_around(self) -> None:
        """Request a damaged range, unless an answer is waited for. Ranges and peers take turns:
        what nobody has, or nobody can be sent a request for, must not keep the others waiting."""
        damaged = [group for group in self._state.groups.values() if group.log.damaged]
        incomplete = [group.group_id for group in self._state.groups.values() if not group.is_whole]
        self._status.note_damage(
            incomplete, [group.group_id for group in damaged if group.is_whole]
        )
        request, now_ns = self._pending, self._state.clock.now_ns()
        if self._is_repairing or (request is not None and now_ns < request.until_ns):
            return
        self._pending = None
        reachable: list[tuple[Group, Sequence[tuple[Index, Index]], list[ServerId]]] = []
        for group in damaged:
            ranges = group.log.damaged
            self._note_damaged(group, ranges[0])
            # A state of the past may know members of the past.
            replicas = {*group.members, *group.listed}
            others = {server_of(replica) for replica in replicas} - {self._state.server_id}
            if peers := sorted(others & self._state.alive.keys()):
                reachable.append((group, ranges, peers))
            elif not others:
                # There is nobody who could have a copy. A peer that is down may: it is waited for.
                self._note_refusal(group, ranges[0][0])
        if reachable:
            # Not each range is looked at: a bad medium may bring many thousands.
            turn = self._turn % sum(len(ranges) for _, ranges, _ in reachable)
            self._turn += 1
            for group, ranges, peers in reachable:
                if turn < len(ranges):
                    self._request(group, ranges[turn], peers, now_ns)
                    break
                turn -= len(ranges)
        elif not damaged:
            # Also of groups that were deleted with their damage.
            self._refusals.clear()
            self._cut_off.clear()
            self._known.clear()
            self._without_room.clear()

    def _request(
        self, group: Group, damage: tuple[Index, Index], peers: Sequence[ServerId], now_ns: int
    ) -> None:
        first, end = damage
        # A range that comes up again goes to the next peer, whatever the number of ranges.
        asked_before = self._refusals.get((group.group_id, first), 0)
        peer = peers[asked_before % len(peers)]
        wants_state = group.applied + 1 < end
        # What others have cut off must not hide what they have behind it.
        start = self._cut_off.pop((group.group_id, first), first)
        if start >= end:
            start = first
        number = next(self._state.request_numbers)
        request = RangeRequest(number, group.group_id, start, end, wants_state, _compacted(group))
        if self._state.transport.send(peer, FrameType.RANGE, encode_range(request)):
            until_ns = now_ns + PATIENCE_NS
            self._pending = Request(
                number, peer, group, first=first, start=start, end=end, until_ns=until_ns
            )

    def answer_received(self, from_server: ServerId, payload: memoryview) -> None:
        """A peer's copy, or its regrets. Raises MalformedFrame."""
        answer = decode_answer(payload, self._version_of(from_server))
        request = self._pending
        if request is None or not request.is_met_by(from_server, answer):
            return
        group = request.group
        if self._state.groups.get(group.group_id) is not group:
            self._pending = None
            return
        entries = answer.entries
        if not entries:
            self._pending = None
            if request.start == request.first < answer.log_start < request.end:
                self._cut_off[group.group_id, request.first] = answer.log_start
            if answer.log_start <= request.first or not self._does_without(group, request, answer):
                self._note_refusal(group, request.first)
            return
        for entry in entries:
            entry.data = bytes(entry.data)  # the frame's memory is used again

        def repaired(error: storage.StorageError | None) -> None:
            self._is_repairing = False
            if isinstance(error, storage.WriteRefused):
                self._note_without_room(group)
            elif error is not None:
                if self._refusals.get((group.group_id, request.first), 0) < HOPELESS_REFUSALS:
                    self._state.log.warning(
                        "repair_refused",
                        partition=self._state.told_of(group.group_id),
                        error=str(error),
                    )
                self._note_refusal(group, request.first)
            elif self._state.groups.get(group.group_id) is group:
                self._note_healed(group)

        # What was decided here says too little: a state that waits for the entry has not applied
        # what the peer's has.
        owner = group.owner
        decided = owner.state.compact_upto if isinstance(owner, LogStream) else NO_INDEX
        upto = max(decided, answer.compacted_upto)
        self._pending, self._is_repairing = None, True
        self._state.store.repair(group.log, entries, repaired, compacted_upto=upto)

    def _does_without(self, group: Group, request: Request, answer: RangeAnswer) -> bool:
        """Whether what was requested, which that replica has cut off, is needed here no more
        either: its state is taken, or the log cut behind it, now or when that is durable."""
        log, end = group.log, min(request.end, answer.log_start)
        if group.applied + 1 < end:
            return answer.state is not None and self._takes_state(group, answer.state)
        is_stored = not log.installed_state and log.applied_index + 1 >= end
        if is_stored and end > log.first_index:
            try:
                if not _holds_records(group, end):
                    group.store.trim_log(log, first_index=end)
                    self._state.outbox.note_staged(group)
            except (storage.CorruptRecord, storage.ReadRefused):
                return True  # of the index: a read there, as of the range itself, rebuilds it
        return True

    def _takes_state(self, group: Group, state: Snapshot) -> bool:
        def taken() -> None:
            self._state.log.info(
                "state_taken", partition=self._state.told_of(group.group_id), applied=group.applied
            )
            group.retry_apply(self._state.outbox)

        try:
            is_coming = group.take_state(state, taken)
        except DecodeError:  # of another version
            return False
        if is_coming:
            self._state.outbox.note_staged(group)
        return is_coming

    def _note_damaged(self, group: Group, damage: tuple[Index, Index]) -> None:
        """Log a group once, until it is whole again."""
        if group.group_id not in self._known:
            self._known.add(group.group_id)
            first, end = damage
            self._state.log.warning(
                "entries_damaged",
                partition=self._state.told_of(group.group_id),
                first=first,
                end=end,
            )

    def _note_refusal(self, group: Group, first: Index) -> None:
        """A vain request, or nobody to send one to. Another peer gets it at the next look."""
        key = (group.group_id, first)
        self._refusals[key] = refusals = self._refusals.get(key, 0) + 1
        if refusals == HOPELESS_REFUSALS:
            self._state.log.error(
                "entries_unrecoverable",
                partition=self._state.told_of(group.group_id),
                index=first,
                meaning="no replica that answers has a readable copy; bring back a server or disk "
                "that has one, or delete the records up to there",
            )

    def _note_without_room(self, group: Group) -> None:
        """A full disk has no room for a copy: it is requested again, and that says nothing about
        the copies there are. Logged once, until the group is whole again."""
        if group.group_id not in self._without_room:
            self._without_room.add(group.group_id)
            partition = self._state.told_of(group.group_id)
            self._state.log.warning("repair_awaits_room", partition=partition)

    def _note_healed(self, group: Group) -> None:
        self._refusals = {key: n for key, n in self._refusals.items() if key[0] != group.group_id}
        if not group.log.damaged:
            self._known.discard(group.group_id)
            self._without_room.discard(group.group_id)
            self._state.log.info("entries_repaired", partition=self._state.told_of(group.group_id))
        group.retry_apply(self._state.outbox)
        self.look_around()

    # --- answering -----------------------------------------------------------------------------
    def request_received(self, from_server: ServerId, payload: memoryview) -> None:
        """A peer needs entries. Raises MalformedFrame."""
        wanted = decode_range(payload)
        group = self._state.groups.get(wanted.group)
        asker = self._state.alive.get(from_server)

        def answer(entries: Sequence[Entry], state: Snapshot | None = None) -> None:
            if not self._state.answers_reach(asker):
                return
            log_start = upto = NO_INDEX
            if group is not None:
                log_start, upto = group.log.first_index, group.log.compaction.upto
            found = RangeAnswer(wanted.request, log_start, wanted.group, entries, state, upto)
            frame = encode_answer(found, self._version_of(from_server))
            self._state.transport.send(from_server, FrameType.ENTRIES, frame)

        if group is None or self._answering >= ANSWERS_AT_ONCE_MAX:
            answer([])
            return
        log = group.log
        end = min(wanted.end, log.last_index + 1)
        if wanted.first < log.first_index:
            answer([], group.snapshot_for(wanted.first) if wanted.wants_state else None)
            return
        if end <= wanted.first or not _is_compacted_as_far(wanted, group):
            answer([])
            return
        try:
            answer([as_entry(e) for e in log.entries(wanted.first, end, ANSWER_BYTES_MAX)])
        except storage.NotInMemory:
            self._answering += 1

            def found(entries: list[storage.StoredEntry] | storage.StorageError) -> None:
                self._answering -= 1
                if isinstance(entries, storage.StorageError):
                    answer([])
                else:
                    answer([as_entry(entry) for entry in entries])

            self._state.store.entries_cold(log, wanted.first, end, ANSWER_BYTES_MAX, found)
        except storage.StorageError:
            answer([])

    def _version_of(self, server_id: ServerId) -> int:
        """Of the protocol that a peer's link speaks; 0: the link is gone."""
        hello = self._state.alive.get(server_id)
        return 0 if hello is None else hello.version


def _compacted(group: Group) -> tuple[Index, Index]:
    compaction = group.log.compaction
    return compaction.upto, compaction.markers_upto


def _is_compacted_as_far(wanted: RangeRequest, group: Group) -> bool:
    """Whether nothing comes back with what was asked for that compaction removed there. That more
    is gone of it here is as good: it was decided, so it will be gone there, too. To wait for a
    replica that is compacted just as far would be to wait for ever, for damage stops compaction."""
    upto, markers_upto = wanted.compacted
    here_upto, here_markers_upto = _compacted(group)
    return wanted.first > upto or (here_upto >= upto and here_markers_upto >= markers_upto)


def _holds_records(group: Group, end: Index) -> bool:
    """Whether entries below `end` have records that are not deleted here: those are cut when their
    deletion is applied here, too. What has none, as a change of members, each replica cuts with
    what lies before it, and how far that was stored is its own matter. Raises CorruptRecord,
    ReadRefused."""
    owner = group.owner
    if not isinstance(owner, LogStream):
        return False
    return group.log.offset_after(end - 1) > owner.log_start_offset
