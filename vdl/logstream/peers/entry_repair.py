"""Repair of damaged ranges: entries that a replica has but cannot read from its disk any more.

A damaged frame in a segment whose tail is intact costs a replica only that entry: its vote and its
place in the log are in the journal. It goes on, serves the rest, and requests another replica's
copy, by index and term; any replica may have it, not only the leader. A replica whose state waits
for the entry (`Group.is_whole`) still gives others those that it has.

Replicas cut their logs independently. If the others have cut the entry off, no copy is left, and
none is needed: the effect of the entry is in their states. A replica that has not applied it takes
such a state; one that has applied it cuts it off too.

In the other direction, this answers replicas that request entries. They have committed the entry
and know its term, so an answer need not be known to be committed here.
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
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.snapshots import DecodeError
from vdl.logstream.group.storage import as_entry
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState

ANSWER_BYTES_MAX = 1 << 20
"""Maximum bytes of one answer, unless one entry is larger."""

PATIENCE_NS = 2_000 * MS
"""Time after which a request without an answer is dropped."""

HOPELESS_REFUSALS = 10
"""Number of vain requests for one range, or of checks while the group has no other replica, after
which an operator is warned, once."""

ANSWERS_AT_ONCE_MAX = 8
"""Maximum number of reads for other replicas under way; more requests get an empty answer."""


class Request:
    """The server's request in flight: entries [start, end) of a range that begins at `first`."""

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
        """Return True if an answer matches this request in all that it names."""
        return (
            (answer.request, from_server) == (self.number, self.peer)
            and answer.group in (None, self.group.group_id)
            and all(self.start <= entry.index < self.end for entry in answer.entries)
        )


class EntryRepair:
    """Entry repair of one server."""

    def __init__(self, state: HostState, status: ServerStatus) -> None:
        self._state = state
        self._status = status
        self._pending: Request | None = None
        self._is_repairing = False
        """True while copies are being written, which may take any time: others would wait behind
        them."""
        self._answering = 0
        self._turn = 0
        self._refusals: dict[tuple[GroupId, Index], int] = {}
        """By range (group, first index): number of vain requests."""
        self._cut_off: dict[tuple[GroupId, Index], Index] = {}
        """By range: start of the next request, as the peer of the last one has cut off the entries
        before."""
        self._known: set[GroupId] = set()
        """Groups that were logged as damaged."""
        self._without_room: set[GroupId] = set()
        """Groups among them for whose repair the disk had no space."""

    # --- requesting ----------------------------------------------------------------------------
    def look_around(self) -> None:
        """Request a damaged range, unless a request is in flight.

        Ranges and peers take turns: a range of which no copy exists, or for which no peer can be
        reached, must not block the others.
        """
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
            others = {server_of(replica) for replica in group.holders} - {self._state.server_id}
            if peers := sorted(others & self._state.alive.keys()):
                reachable.append((group, ranges, peers))
            elif not others:
                # No replica could have a copy. A peer that is down may: the range waits for it.
                self._note_refusal(group, ranges[0][0])
        if reachable:
            # Do not iterate over the ranges: a bad medium may bring many thousands.
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
        # Each request of a range goes to the next peer, for any number of ranges.
        asked_before = self._refusals.get((group.group_id, first), 0)
        peer = peers[asked_before % len(peers)]
        wants_state = group.applied + 1 < end
        # Start where the last peer's log starts: it may have the rest of the range.
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
        """Take a peer's copy, or its report that it has none. Raise MalformedFrame if malformed."""
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
            entry.data = bytes(entry.data)  # the frame's memory is reused

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

        # The decisions applied here may be too old: a state that waits for the entry has not
        # applied those of the peer's.
        owner = group.owner
        decided = owner.state.compact_upto if isinstance(owner, LogStream) else NO_INDEX
        upto = max(decided, answer.compacted_upto)
        self._pending, self._is_repairing = None, True
        self._state.store.repair(group.log, entries, repaired, compacted_upto=upto)

    def _does_without(self, group: Group, request: Request, answer: RangeAnswer) -> bool:
        """Return True if the range, which the peer has cut off, is not needed here any more.

        Then the peer's state is taken, or the log cut behind the range, now or once that is
        durable.
        """
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
                return True  # in the index: any read there, also of the range itself, rebuilds it
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
        """Log a damaged group once, until it is whole again."""
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
        """Count a vain request, or that no peer can get one. Another peer gets the next."""
        key = (group.group_id, first)
        self._refusals[key] = refusals = self._refusals.get(key, 0) + 1
        if refusals == HOPELESS_REFUSALS:
            self._state.log.error(
                "entries_unrecoverable",
                partition=self._state.told_of(group.group_id),
                index=first,
                meaning=(
                    "no replica that answers has a readable copy; bring back a server or disk "
                    "that has one, or delete the records up to this index"
                ),
            )

    def _note_without_room(self, group: Group) -> None:
        """Log once, until the group is whole again, that a full disk has no space for a copy.

        It is requested again: the failure is no evidence about the existing copies.
        """
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
        """Answer a peer's request for entries. Raise MalformedFrame if it is malformed."""
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
        """Return the protocol version of a peer's link; 0: the link is gone."""
        hello = self._state.alive.get(server_id)
        return 0 if hello is None else hello.version


def _compacted(group: Group) -> tuple[Index, Index]:
    compaction = group.log.compaction
    return compaction.upto, compaction.markers_upto


def _is_compacted_as_far(wanted: RangeRequest, group: Group) -> bool:
    """Return True if the entries contain nothing that compaction has removed at the requester.

    They may lack more: that was decided, so it will be removed there too. The request cannot wait
    for a replica compacted equally far, because damage stops compaction.
    """
    upto, markers_upto = wanted.compacted
    here_upto, here_markers_upto = _compacted(group)
    return wanted.first > upto or (here_upto >= upto and here_markers_upto >= markers_upto)


def _holds_records(group: Group, end: Index) -> bool:
    """Return True if entries below `end` have records that are not deleted here.

    Those are cut when their deletion is applied here, too. Entries without records, such as changes
    of members, are cut by each replica together with the entries before them, depending on its own
    checkpoints. Raise CorruptRecord or ReadRefused.
    """
    owner = group.owner
    if not isinstance(owner, LogStream):
        return False
    return group.log.offset_after(end - 1) > owner.log_start_offset
