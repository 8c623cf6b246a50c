"""A log stream: one replica of one topic partition, as the front end uses it.

`append` assigns offset, term and index and appends to the leader's log in one call, or refuses;
it never waits in between. A batch that cannot be appended yet (the leader's own-term entry is not
applied, a transfer is under way, there is no room) is held in arrival order until its deadline.

An append is acknowledged only when the commit index reaches its entry and the number of voters set
by the topic (`min.insync.replicas`) hold it durably. When leadership ends, all waiting requests are
answered at once; "never appended" only if that is certain.

Does not depend on the wire format of requests, other partitions or the disk.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from struct import Struct

import segments.api as storage
from ids import NO_INDEX, NO_OFFSET, GroupId, Index, NodeId, Offset, ServerId, Term
from raft.errors import DropReason, ProposalDropped
from raft.types import NONE, Entry
from rpc.hello import (
    VERSION_OF_LARGE_FRAMES,
    VERSION_OF_LATE_FIRST_NUMBERS,
    VERSION_OF_SHORT_SNAPSHOTS,
    Hello,
)
from vdl.clock import MS, NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group.appends import Appended, HeldAppend, Verify, Waiter
from vdl.logstream.group.group import Group
from vdl.logstream.group.in_sync_replicas import InSyncReplicas, copied
from vdl.logstream.group.large_room import LargeRoom
from vdl.logstream.group.offset_for_time import (
    NO_TIME,
    TimedOffset,
    find_offset_for_time,
    find_offset_of_largest_time,
)
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.pending import Pending, end_all, take_late
from vdl.logstream.group.producer_expiry import IdleProducers
from vdl.logstream.group.push_back import PushBack
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.retention import (
    RetentionPolicy,
    UntimedSegments,
    held_starts,
    retention_start,
)
from vdl.logstream.group.snapshots import Items
from vdl.logstream.group.spoken_version import speaks_less
from vdl.logstream.group.state_group import (
    NOT_APPENDED,
    TOO_LARGE,
    UNKNOWN,
    Outcome,
    OutcomeKind,
)
from vdl.logstream.group.transactions import Transactions, transaction_ended
from vdl.logstream.options import LARGE_BATCH_BYTES, HostOptions
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    patch_position,
)
from vdl.records.markers import read_marker
from vdl.state.aborted import AbortedRange, AbortedTransactions
from vdl.state.partition import (
    AdvanceLogStart,
    Compact,
    DecodeError,
    EndTransactionMarker,
    ExpireProducers,
    PartitionCommand,
    PartitionState,
    decode_command,
    encode_command,
)
from vdl.state.producers import ActiveProducer, Duplicate, Overlay

DELETIONS_MAX = 100
"""Maximum number of deletions of one partition that wait to be applied."""
COMMANDS_MAX = 10_000
"""Maximum number of commands of other groups that wait to be applied to one partition."""

UNSHORTENED_MAX = 100_000
"""Maximum number of aborted transactions in a snapshot for an older version: its own limit."""

_PRODUCER = Struct(">qhi")
_PRODUCER_POSITION = 43
_ATTRIBUTES_POSITION = 22
"""Position of the low byte of the attributes."""
_SAID_FOR_CERTAIN = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


class Wait:
    """A long poll for records.

    It waits for committed ones at or beyond `offset`, or stable ones at or beyond `stable_offset`.
    """

    __slots__ = ("callback", "offset", "stable_offset")

    def __init__(self, offset: int, stable_offset: int, callback: Callable[[], None]) -> None:
        self.offset = offset
        self.stable_offset = stable_offset
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class LogStream:
    """One replica of one topic partition. The host sets `group` right after construction."""

    __slots__ = (
        "_agreed_ms",
        "_alive",
        "_asked",
        "_commands",
        "_deletions",
        "_expiry_index",
        "_gaps",
        "_held",
        "_idle_producers",
        "_in_sync",
        "_large_room",
        "_next_producer_id",
        "_options",
        "_outbox",
        "_overlay",
        "_proved",
        "_push_back",
        "_taken",
        "_uncopied",
        "_untimed",
        "_waiters",
        "_waits",
        "_waits_for_stable",
        "group",
        "high_watermark",
        "partition",
        "state",
        "topic",
        "transactions",
    )

    group: Group

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        state: PartitionState,
        options: HostOptions,
        outbox: Outbox,
        in_sync: InSyncReplicas,
        gaps: LoopGaps,
        agreed_ms: Callable[[], int],
        next_producer_id: Callable[[], int] = int,
        alive: Mapping[ServerId, Hello],
        large_room: LargeRoom,
    ) -> None:
        """Create the stream of a replica.

        `in_sync`, `gaps` and `large_room` are the server's. `agreed_ms` returns the time.
        `next_producer_id` returns the least id that is not assigned yet. `alive`: the other servers
        linked now.
        """
        self.topic = topic
        self.partition = partition
        self.state = state
        self.high_watermark = Offset(0)
        self._options = options
        self._outbox = outbox
        self._in_sync = in_sync
        self._gaps = gaps
        self._agreed_ms = agreed_ms
        self._next_producer_id = next_producer_id
        self._alive = alive
        self._large_room = large_room
        self._proved = gaps.count
        """Value of `gaps.count` when a quorum last confirmed the leader here. Initially the count
        at opening: this replica did not lead before."""
        self._overlay = Overlay()
        self.transactions = Transactions(
            self,
            state=state,
            overlay=self._overlay,
            outbox=outbox,
            agreed_ms=agreed_ms,
        )
        self._uncopied: list[Waiter] = []
        """Waiters whose entries are committed, but not durable on as many replicas as requested."""
        self._waiters: deque[Waiter] = deque()
        self._held: deque[HeldAppend] = deque()
        self._waits: list[Wait] = []
        self._waits_for_stable = False
        """True if any of them may wait for stable records."""
        self._asked: list[Pending[bool]] = []
        self._commands: deque[Pending[Outcome]] = deque()
        """Commands of other groups that wait to be applied, by index."""
        self._deletions: deque[Pending[ErrorCode]] = deque()
        self._untimed = UntimedSegments()
        self._push_back: PushBack | None = None
        self._taken: dict[NodeId, Index] = {}
        """Match index of each follower in this term, when retention last ran and had something to
        delete."""
        self._idle_producers = IdleProducers(options.producer_expiration_ms * MS)
        self._expiry_index = 0
        """Index of the newest `ExpireProducers` that was appended here."""

    # --- what the front end reads ------------------------------------------------------------
    @property
    def group_id(self) -> GroupId:
        return self.group.group_id

    @property
    def is_leader(self) -> bool:
        return self.group.node.is_leader

    @property
    def serving(self) -> bool:
        """True if this replica leads and has applied the first entry of its own term."""
        return self.group.serving

    @property
    def is_proved(self) -> bool:
        """True if the loop has run without a gap since a quorum last confirmed the leader.

        Otherwise `prove` comes before a read.
        """
        return self._proved == self._gaps.look()

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Confirm by a read index that this replica still leads."""
        gap = self._gaps.count

        def proved(passed: bool) -> None:
            if passed:
                self._proved = max(self._proved, gap)
            done(passed)

        self.read_index(deadline_ns=deadline_ns, done=proved)

    @property
    def term(self) -> Term:
        """Raft term, which is the partition's leader epoch."""
        return self.group.node.term

    @property
    def leader_server(self) -> ServerId:
        """Server id of the leader known to this replica, 0 for none."""
        return server_of(self.group.node.lead)

    @property
    def log_start_offset(self) -> Offset:
        """First offset that may be read.

        Records below it are deleted; some of them may still be on disk.
        """
        return max(self.state.log_start_offset, self.group.log.log_start_offset)

    @property
    def end_offset(self) -> Offset:
        """Offset after the last entry of this replica's log, committed or not."""
        return self.group.node.next_offset()

    @property
    def last_stable_offset(self) -> Offset:
        """Offset below which all records are committed and belong to no open transaction.

        Never moves back on replicas that lead and serve.
        """
        overlay, producers = self._overlay, self.state.producers
        if self.group.serving and not overlay.unstable and not producers.open:
            return self.high_watermark
        return self.transactions.stable()[1]

    @property
    def stable_index(self) -> Index:
        """Index of the last stable entry."""
        return self.transactions.stable()[0]

    def aborted(self, start: Offset, end: Offset) -> list[AbortedRange]:
        """Return the aborted transactions that may have records in [start, end).

        The range must be stable. Ordered by their markers (KIP-98).
        """
        return self.state.aborted.between(start, end) if self.state.aborted else []

    @property
    def aborted_age(self) -> int:
        """Age of the list of aborted transactions.

        While it is unchanged, `aborted` is complete for everything read since it was first checked.
        """
        return self.state.aborted.age

    # --- append ------------------------------------------------------------------------------
    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None = None,
        begins_epoch: bool = False,
    ) -> None:
        """Append one checked v2 batch, writable, and call `done` once with the outcome.

        It is acknowledged when a majority and `copies_min` replicas hold it durably, or all
        replicas if they are fewer. `verify` is required for a batch of a transaction;
        `begins_epoch`: that transaction began a new epoch of its producer (KIP-890).

        `done` may run before this returns. `batch` is patched in place (base offset and leader
        epoch lie outside its CRC). It may be reused after the turn, except a large one: that is
        kept as it is.
        """
        group = self.group
        if not group.node.is_leader:
            done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif len(batch) > LARGE_BATCH_BYTES and speaks_less(
            VERSION_OF_LARGE_FRAMES, group, self._alive
        ):
            done(Appended(ErrorCode.MESSAGE_TOO_LARGE))
        elif not group.accepts_appends:
            self._answer_without_room(header, copies_min, deadline_ns, done)
        elif (
            not group.serving
            or self._held
            or not self._append_now(
                batch, header, copies_min, deadline_ns, done, verify, begins_epoch
            )
        ):
            self._hold(
                HeldAppend(batch, header, copies_min, deadline_ns, done, verify, begins_epoch)
            )

    def _answer_without_room(
        self,
        header: BatchHeader,
        copies_min: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
    ) -> None:
        """Refuse new records for lack of space. A retry of an appended batch needs no space."""
        if header.producer_id >= 0 and self.group.serving:
            verdict = self.state.producers.check(
                self._overlay,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.count,
            )
            if isinstance(verdict, Duplicate):
                copies = min(copies_min, len(self.group.placement))
                self._answer_duplicate(verdict, copies, deadline_ns, done)
                return
        done(Appended(ErrorCode.KAFKA_STORAGE_ERROR))

    def _hold(self, held: HeldAppend) -> None:
        if len(self._held) >= self._options.held_appends_max:
            # Certainly not appended, and the client may retry: Kafka has no better code.
            held.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._held.append(held)
        if self._push_back is not None:
            self._outbox.mark_dirty(self.group)  # otherwise its deadline is not checked

    def _append_now(
        self,
        batch: memoryview,
        header: BatchHeader,
        copies_min: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None,
        begins_epoch: bool,
    ) -> bool:
        """Append or answer the batch.

        Return False, with nothing changed, if there is no room for it now.
        """
        producer_id = header.producer_id
        transactions = self.transactions
        if transactions.verifying and producer_id in transactions.verifying:
            transactions.hold(
                HeldAppend(batch, header, copies_min, deadline_ns, done, verify, begins_epoch)
            )
            return True
        copies = min(copies_min, len(self.group.placement))
        has_too_few = copies > 1 and not self._in_sync.may_reach(self.group, copies)
        is_transactional = header.attributes & TRANSACTIONAL_FLAG != 0
        if producer_id >= 0:
            verdict = self.state.producers.check(
                self._overlay,
                producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.count,
                begins_epoch=begins_epoch,
                may_begin_late=self._may_begin_late,
            )
            if isinstance(verdict, Duplicate):
                self._answer_duplicate(verdict, copies, deadline_ns, done)
                return True
            if verdict is not ErrorCode.NONE and not has_too_few:
                self._refuse(verdict, deadline_ns, done)
                return True
            if is_transactional and not transactions.may_join(header):
                transactions.verify(
                    HeldAppend(batch, header, copies_min, deadline_ns, done, verify, begins_epoch)
                )
                return True
            is_any_open = self._overlay.unstable or self.state.producers.open
            if (
                is_any_open
                and not is_transactional
                # Any epoch counts: a newer one would fence the marker that is still to come.
                and self.state.producers.has_transaction(self._overlay, producer_id)
            ):
                done(Appended(ErrorCode.INVALID_TXN_STATE, log_start_offset=self.log_start_offset))
                return True
        group = self.group
        if has_too_few:
            done(Appended(ErrorCode.NOT_ENOUGH_REPLICAS))
            return True
        if copies > 1 and len(self._uncopied) >= self._options.uncopied_max:
            return False
        if self._push_back is not None and not self._push_back.admits(
            last=group.node.last_index, match=self._match(self._push_back.replica)
        ):
            return False
        uncommitted = group.node.raft.uncommitted_bytes
        if uncommitted and uncommitted + len(batch) > self._options.uncommitted_bytes_max:
            return False
        is_large = len(batch) > LARGE_BATCH_BYTES
        if is_large and not self._large_room.may_append(len(batch)):
            done(Appended(ErrorCode.KAFKA_STORAGE_ERROR))
            return True
        entry = Entry(data=batch, records=header.count, timestamp=header.max_timestamp)
        try:
            group.propose(entry)
        except ProposalDropped as dropped:
            if dropped.reason in (DropReason.TRANSFERRING, DropReason.UNCOMMITTED_LIMIT):
                return False
            done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return True
        if is_large:
            self._large_room.take(len(batch))
        patch_position(batch, base_offset=entry.base_offset, leader_epoch=entry.term)
        if producer_id >= 0:
            self._overlay.append(
                producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.count,
                entry.base_offset,
                entry.index,
                entry.timestamp,
                is_transactional=is_transactional,
            )
            if is_transactional and transactions.verified:
                transactions.verified.pop(producer_id, None)  # from now on the log records it
        self._waiters.append(
            Waiter(
                index=entry.index,
                term=entry.term,
                base_offset=entry.base_offset,
                copies=copies,
                deadline_ns=deadline_ns,
                done=done,
            )
        )
        if not group.dirty:
            self._outbox.mark_dirty(group)
        return True

    def _may_begin_late(self) -> bool:
        """See `Producers.check`."""
        return not speaks_less(VERSION_OF_LATE_FIRST_NUMBERS, self.group, self._alive)

    def _refuse(
        self, verdict: ErrorCode, deadline_ns: int, done: Callable[[Appended], None]
    ) -> None:
        """Reject a batch by its sequence number or epoch.

        That batches before it are missing is reported only after a read index confirmed the leader.
        Its successor may have them, and the client would drop the batch or send it as a new one.
        """

        def confirmed(leads: bool) -> None:
            error = verdict if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
            done(Appended(error, log_start_offset=self.log_start_offset))

        if verdict in _SAID_FOR_CERTAIN:
            self.read_index(deadline_ns=deadline_ns, done=confirmed)
        else:
            confirmed(True)

    def _answer_duplicate(
        self,
        original: Duplicate,
        copies: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
    ) -> None:
        """Answer a retry with the result of its original, once that is committed.

        The number of copies requested now counts.
        """
        if original.index <= self.group.commit and (
            copies <= 1 or original.index <= copied(self.group, copies)
        ):
            done(
                Appended(
                    ErrorCode.NONE,
                    original.base_offset,
                    self.log_start_offset,
                    original.timestamp,
                )
            )
            return
        waiter = Waiter(
            index=original.index,
            term=self.term,
            base_offset=original.base_offset,
            copies=copies,
            deadline_ns=deadline_ns,
            done=done,
            duplicate_timestamp=original.timestamp,
        )
        if original.index <= self.group.commit:
            self._uncopied.append(waiter)
            self.group.awaits_copies = True
            self._outbox.mark_dirty(self.group)
            return
        # Waiters are kept in index order: the duplicate goes right behind its original.
        position = len(self._waiters)
        while position and self._waiters[position - 1].index > original.index:
            position -= 1
        self._waiters.insert(position, waiter)

    # --- read --------------------------------------------------------------------------------
    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> storage.Slices:
        """Return committed batches from `offset`, or stable ones.

        Raise NotInMemory or OffsetOutOfRange (KIP-74).
        """
        if offset < self.log_start_offset:
            raise storage.OffsetOutOfRange(f"offset {offset} is below {self.log_start_offset}")
        end = self.transactions.stable()[0] if stable else self.group.commit
        return self.group.log.read(offset, end, bytes_max)

    def read_cold(
        self,
        offset: Offset,
        bytes_max: int,
        done: Callable[[storage.Slices | storage.StorageError], None],
        *,
        stable: bool = False,
    ) -> None:
        """As `read`, from disk and off the loop. `done` may run before this returns."""
        group = self.group
        end = self.transactions.stable()[0] if stable else group.commit
        group.store.read_cold(group.log, offset, end, bytes_max, done)

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> Wait:
        """Call back once when a record is available or the leader changes; at most once a turn.

        A record at `offset` is available when committed, one at `stable_offset` when stable.
        `NEVER`: do not wait for it.
        """
        wait = Wait(offset, stable_offset, callback)
        self._waits_for_stable = self._waits_for_stable or stable_offset != NEVER
        self._waits.append(wait)
        return wait

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Start a read index (§8).

        True: `high_watermark` covers everything acknowledged before this call.
        """
        if not self.group.node.is_leader:
            done(False)
            return
        self.group.reads.ask(deadline_ns, done)
        self._outbox.mark_dirty(self.group)

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Call `done` with True once this leader may serve, possibly at once.

        With False if it does not lead, stops leading, or reaches the deadline.
        """
        if not self.group.node.is_leader:
            done(False)
        elif self.group.serving:
            done(True)
        else:
            self._asked.append(Pending(deadline_ns, done))

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        """Find the leader epoch of the log's first record (KIP-320).

        The present epoch if there is no record, -1 if it is unknown now.
        """
        group = self.group
        start = self.log_start_offset
        if start >= self.high_watermark:
            done(group.node.term)
            return

        def found(index: Index | storage.StorageError) -> None:
            known = not isinstance(index, storage.StorageError) and (
                group.log.first_index <= index <= group.log.last_index
            )
            done(group.log.term(index) if known and isinstance(index, int) else -1)

        group.store.index_of_offset(group.log, start, found)

    def producers(self) -> Iterable[ActiveProducer]:
        """Return the idempotent producers of committed batches as applied here; by id.

        See `Producers.active`.
        """
        return self.state.producers.active()

    def stored_bytes(self, done: Callable[[int | storage.StorageError], None]) -> None:
        """Find the number of bytes of committed entries that this replica keeps."""

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            done(spans if isinstance(spans, storage.StorageError) else sum(s.bytes for s in spans))

        self.group.store.segment_spans(self.group.log, found)

    def segment_starts(
        self, done: Callable[[list[tuple[Offset, int]] | storage.StorageError], None]
    ) -> None:
        """Find the start of each segment, oldest first.

        A start is its first offset that is not deleted, and the largest timestamp up to its end
        (ms, -1 while there is none).
        """

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if isinstance(spans, storage.StorageError):
                done(spans)
                return
            starts: list[tuple[Offset, int]] = []
            start, newest_ms = self.log_start_offset, -1
            for span in spans:
                newest_ms = max(newest_ms, span.max_timestamp)
                if span.end_offset > start:
                    starts.append((start, newest_ms))
                    start = span.end_offset
            done(starts)

        self.group.store.segment_spans(self.group.log, found)

    def offset_for_time(
        self, timestamp_ms: int, done: Callable[[TimedOffset | storage.StorageError], None]
    ) -> None:
        """Find the least committed, undeleted offset with a timestamp ≥ `timestamp_ms` (KIP-79)."""
        group = self.group

        def found(answer: TimedOffset | storage.StorageError) -> None:
            if isinstance(answer, TimedOffset) and 0 <= answer.offset < self.log_start_offset:
                # It was deleted during the search. The timestamp of the next one is unknown.
                self.offset_for_time(timestamp_ms, done)
            else:
                done(answer)

        find_offset_for_time(
            group.log,
            group.store,
            timestamp_ms,
            start_offset=self.log_start_offset,
            commit=group.commit,
            done=found,
        )

    # --- delete ------------------------------------------------------------------------------
    def offset_of_largest_time(
        self, done: Callable[[TimedOffset | storage.StorageError], None]
    ) -> None:
        """Find the first committed, undeleted record with the largest timestamp (KIP-734)."""

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if isinstance(spans, storage.StorageError):
                done(spans)
            else:
                bound_ms = max((span.max_timestamp for span in spans), default=NO_TIME)
                find_offset_of_largest_time(bound_ms, self.offset_for_time, done)

        self.group.store.segment_spans(self.group.log, found)

    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Delete everything below `offset`; -1: everything committed (KIP-107).

        `done` runs once this is committed and applied here. The records are then gone on every
        replica that can ever lead.
        """
        if not self.serving:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            done(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif offset <= self.log_start_offset:
            done(ErrorCode.NONE)
        elif len(self._deletions) >= DELETIONS_MAX or not self._advance_log_start(offset):
            done(ErrorCode.REQUEST_TIMED_OUT)
        else:
            last = self.group.node.last_index
            self._deletions.append(Pending(deadline_ns, done, index=last))

    def retain(
        self,
        spans: Sequence[storage.SegmentSpan],
        policy: RetentionPolicy,
        *,
        settled_ms: int,
        stamp_ms: int,
        fed: Collection[ServerId],
    ) -> None:
        """Delete records that the policy no longer keeps.

        Times are those of `ClusterTime`. `fed`: servers whose replicas may still need some of the
        records.
        """
        self._untimed.look(spans, stamp_ms)
        if retention_start(spans, policy, settled_ms, self._untimed) <= self.log_start_offset:
            self._taken = {}
            self._end_push_back()
            return
        try:
            needed, replica = self._needed_by(fed)
        except OSError:  # no descriptor or memory is left: keeping the records loses nothing
            return
        patient, impatient = held_starts(spans, policy, settled_ms, self._untimed, needed=needed)
        before, match = self._taken.get(replica, -1), self._match(replica)
        progress = self.group.node.raft.progress
        self._taken = {follower: known.match for follower, known in progress.items()}
        start = impatient
        if patient < impatient and match > before:
            # It takes entries, or it is not known yet whether it does.
            start = patient
            if before >= 0 and (self._push_back is None or self._push_back.replica != replica):
                last = self.group.node.last_index
                self._push_back = PushBack(replica, last=last, match=match)
        else:
            self._end_push_back()
        offset = min(start, self.high_watermark)
        if self.serving and not self._deletions and offset > self.log_start_offset:
            self._advance_log_start(offset)

    def _needed_by(self, servers: Collection[ServerId]) -> tuple[Offset, NodeId]:
        """Return the least committed offset that a replica on `servers` lacks, and that replica.

        As far as this leader knows; (`NEVER`, 0) if none lacks any. May read a file. Raise
        ReadRefused if the read is refused.
        """
        log, raft = self.group.log, self.group.node.raft
        needed = Offset(NEVER), NONE
        for replica, progress in raft.progress.items():
            if server_of(replica) in servers and progress.match < self.group.commit:
                match = max(progress.match, log.first_index - 1)
                # Damage gets repaired: until then nothing is kept for the replica.
                with contextlib.suppress(storage.CorruptRecord):
                    needed = min(needed, (log.offset_after(match), replica))
        return needed

    def _match(self, replica: NodeId) -> Index:
        """Return a follower's match index as known to this leader; 0 if it is no member."""
        progress = self.group.node.raft.progress.get(replica)
        return NO_INDEX if progress is None else progress.match

    def _end_push_back(self) -> None:
        if self._push_back is not None:
            self._push_back = None
            self._outbox.mark_dirty(self.group)

    def expire_producers(self, now_ns: int, *, kept: int, may_append: bool) -> None:
        """Have idle producers forgotten, earlier if there are more than `kept`.

        Called on every replica, so that a new leader knows how long each has been idle. Only the
        leader decides, if it `may_append`.
        """
        producers = self.state.producers
        self._idle_producers.note(producers, now_ns)
        idle_index = self._idle_producers.index(producers, now_ns, kept=kept)
        oldest = producers.oldest_index
        if oldest is None or oldest > idle_index or not may_append or not self.serving:
            return
        is_under_way = self._expiry_index > self.group.applied
        if is_under_way or not self.group.accepts_appends:
            return
        if self._propose(ExpireProducers(idle_index)):
            self._expiry_index = self.group.node.last_index

    def compact(self, *, upto: Index, markers_upto: Index) -> None:
        """Propose compaction up to these indexes if there is room for the entry: see `Compact`.

        Each replica compacts in its own time.
        """
        if self.serving and self.group.store.accepts_appends:
            self._propose(Compact(upto, markers_upto))

    def _advance_log_start(self, offset: Offset) -> bool:
        return self._propose(AdvanceLogStart(offset))

    def command(self, data: bytes, *, deadline_ns: int, done: Callable[[Outcome], None]) -> None:
        """Append a command of another group, and return its result when it is applied here.

        It may be appended again: see `peers/group_commands.py`.
        """
        try:
            command = decode_command(data)
        except DecodeError:
            done(TOO_LARGE)
            return
        if isinstance(command, EndTransactionMarker):
            ended = partial(transaction_ended, done)
            self.transactions.end(command, deadline_ns=deadline_ns, done=ended)
        elif (
            not self.serving
            or len(self._commands) >= COMMANDS_MAX
            or not self.group.accepts_appends
            or not self._propose_entry(Entry(data=data))
        ):
            done(NOT_APPENDED)
        else:
            self._commands.append(Pending(deadline_ns, done, index=self.group.node.last_index))

    def _propose(self, command: PartitionCommand) -> bool:
        return self._propose_entry(Entry(data=encode_command(command)))

    def _propose_entry(self, entry: Entry) -> bool:
        try:
            self.group.propose(entry)
        except ProposalDropped:
            return False
        self._outbox.mark_dirty(self.group)
        return True

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, Offset]:
        """Return (largest epoch ≤ `epoch` in the log, offset where the next larger one starts).

        (-1, -1) if `epoch` is above all of them (KIP-101, KIP-279). Use: on a leader that serves.

        An epoch whose records are deleted ended at the log's start at the latest. It is returned
        under its own number, as Kafka does. A consumer that read to the end of records deleted
        later is at the right position; an answer without that epoch would make it assume a
        truncation.
        """
        group = self.group
        log = group.log
        term = group.node.term
        if epoch == term:
            return term, self.high_watermark
        if not 0 <= epoch < term:
            return -1, NO_OFFSET
        first, end = log.first_index, group.commit + 1
        while first < end:  # the first index whose term is above `epoch`
            middle = (first + end) // 2
            if log.term(middle) > epoch:
                end = middle
            else:
                first = middle + 1
        last = first - 1
        end_offset = log.offset_after(last)
        # Use the readable start, not that of this replica's files: all replicas give the same
        # answer.
        log_start = self.log_start_offset
        if end_offset <= log_start:
            return epoch, log_start
        return log.term(last), end_offset

    # --- the group's owner -------------------------------------------------------------------
    @property
    def entries_are_state(self) -> bool:
        return True  # records are kept as they are

    @property
    def is_remembered(self) -> bool:
        return False  # only reads follow from the applied state

    def load(self, items: Items, listed: AbortedTransactions | None = None) -> None:
        """Load the stored state, before the replica runs. `listed`: see `PartitionState.load`."""
        self.state.load(items, listed)
        self.state.producers.ids_given_out(self._next_producer_id())

    def replay(self, entries: Sequence[Entry]) -> None:
        self.apply(entries)

    def install(self, items: Items) -> None:
        self.load(items)

    def items(self) -> Items:
        return self.state.items()

    def snapshot_items(self, start: Offset, *, is_short: bool) -> Items | None:
        state = self.state
        if not state.lists_all:
            return None
        if is_short:
            return state.snapshot_items(start)
        return state.items() if len(state.aborted) <= UNSHORTENED_MAX else None

    @property
    def snapshots_are_short(self) -> bool:
        """True if all linked servers read short snapshots.

        Servers that are away are not counted: they must not keep a lost replica from being
        replaced. A snapshot is made anew if one returns with an older version.
        """
        return not speaks_less(VERSION_OF_SHORT_SNAPSHOTS, self.group, self._alive)

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None:
        """Build the list of aborted transactions from entries, if the snapshot had none."""
        state = self.state
        if state.lists_all:
            return
        for entry in entries:
            if not entry.records or not len(entry.data):
                continue
            (producer_id, *_) = _PRODUCER.unpack_from(entry.data, _PRODUCER_POSITION)
            attributes = entry.data[_ATTRIBUTES_POSITION]
            if attributes & CONTROL_FLAG:
                marker = read_marker(memoryview(entry.data))
                if marker is not None:
                    state.pass_marker(
                        producer_id,
                        commit=marker.commit,
                        offset=entry.base_offset,
                        index=entry.index,
                    )
            elif attributes & TRANSACTIONAL_FLAG:
                state.pass_batch(producer_id, entry.base_offset)
        if is_last:
            state.passed_all()
            if self._waits_for_stable:
                self._outbox.wake(self)

    def scan(self) -> None:
        """Return None: a partition's state is read in one piece."""

    @property
    def item_count(self) -> int:
        return self.state.item_count

    def start(self) -> None:
        """Make committed records readable, once the group exists."""
        self.high_watermark = self.group.log.offset_after(self.group.commit)

    def committed(self, commit: Index) -> None:
        """Complete the waiters up to `commit`: a majority holds their entries durably.

        A waiter that requires more copies is completed when these are durable. If too few replicas
        are left in sync, it fails: its entry is committed, but with fewer copies than requested.
        Called also when there may be more copies; `commit` is then unchanged.
        """
        log = self.group.log
        self.high_watermark = log.offset_after(commit)
        waiters = self._waiters
        if waiters and waiters[0].index <= commit:
            log_start = self.log_start_offset
            node = self.group.node
            leads_in = node.term if node.is_leader else 0
            while waiters and waiters[0].index <= commit:
                waiter = waiters.popleft()
                # A leader deposed in this turn may see its entry overwritten by one of a later term
                # at the same index. Such an entry will certainly never be read.
                if waiter.term == leads_in or log.term(waiter.index) == waiter.term:
                    if waiter.copies > 1:
                        self._uncopied.append(waiter)
                        continue
                    waiter.done(
                        Appended(
                            ErrorCode.NONE,
                            waiter.base_offset,
                            log_start,
                            waiter.duplicate_timestamp,
                        )
                    )
                else:
                    waiter.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if self._uncopied:
            self._answer_copied()
        if self._waits:
            self._outbox.wake(self)

    def _answer_copied(self) -> None:
        """Complete committed waiters by the number of voters that hold their entries durably."""
        group = self.group
        if not group.node.is_leader:
            return  # unknown here from now on; `leadership_lost` answers in this turn
        reached: dict[int, int] = {}
        left: list[Waiter] = []
        waiters, self._uncopied = self._uncopied, left
        log_start = self.log_start_offset
        for waiter in waiters:
            copies = waiter.copies
            if copies not in reached:
                reached[copies] = copied(group, copies)
            if waiter.index <= reached[copies]:
                waiter.done(
                    Appended(
                        ErrorCode.NONE, waiter.base_offset, log_start, waiter.duplicate_timestamp
                    )
                )
            elif self._in_sync.may_reach(group, copies):
                left.append(waiter)
            else:
                waiter.done(Appended(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        group.awaits_copies = bool(left)

    def wake(self) -> None:
        """Run the long polls whose offsets became committed or stable. Use: once a turn."""
        end = self.high_watermark
        stable_end = self.last_stable_offset if self._waits_for_stable else 0
        ready = [
            wait for wait in self._waits if wait.offset < end or wait.stable_offset < stable_end
        ]
        if ready:
            self._waits = [
                wait
                for wait in self._waits
                if wait.offset >= end
                and wait.stable_offset >= stable_end
                and wait.callback is not None
            ]
            self._waits_for_stable = any(wait.stable_offset != NEVER for wait in self._waits)
            for wait in ready:
                if wait.callback is not None:
                    wait.callback()

    def apply(self, entries: Sequence[Entry]) -> None:
        """Update producer windows and transactions from committed batches."""
        if self._waits_for_stable:
            self._outbox.wake(self)
        transactions = self.transactions
        for entry in entries:
            if not entry.records:
                if len(entry.data):
                    self._apply_command(entry)
                continue
            if not len(entry.data):
                continue  # compacted away, and in no producer's window any more
            producer_id, epoch, sequence = _PRODUCER.unpack_from(entry.data, _PRODUCER_POSITION)
            if producer_id >= 0:
                attributes = entry.data[_ATTRIBUTES_POSITION]
                if attributes & CONTROL_FLAG:
                    self._apply_marker(entry)
                    continue
                self.state.producers.apply(
                    producer_id,
                    epoch,
                    sequence,
                    entry.records,  # includes records that compaction removed
                    entry.base_offset,
                    entry.index,
                    entry.timestamp,
                    is_transactional=attributes & TRANSACTIONAL_FLAG != 0,
                )
                self._overlay.committed(producer_id, entry.index)
                if transactions.endings:
                    transactions.answer_endings(entry.index)

    def _apply_marker(self, entry: Entry) -> None:
        marker = read_marker(memoryview(entry.data))
        if marker is None:
            return  # a control batch of another type
        self.state.apply_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            commit=marker.commit,
            offset=entry.base_offset,
            index=entry.index,
            timestamp=marker.timestamp,
            number=marker.number,
        )
        self._overlay.committed(marker.producer_id, entry.index)
        self.transactions.answer_endings(entry.index)

    def _apply_command(self, entry: Entry) -> None:
        log_start = self.state.log_start_offset
        answer = self.state.apply(entry.data, end_offset=entry.base_offset)
        while self._commands and self._commands[0].index <= entry.index:
            # No other leader can have overwritten it: the queue would have been emptied.
            self._commands.popleft().done(Outcome(OutcomeKind.APPLIED, answer))
        while self._deletions and self._deletions[0].index <= entry.index:
            self._deletions.popleft().done(ErrorCode.NONE)
        if self._waits and self.state.log_start_offset != log_start:
            self.leader_changed()  # the log start moved: long polls have to check it

    def serving_started(self) -> None:
        self._append_held()
        asked, self._asked = self._asked, []
        for one in asked:
            one.done(True)

    @property
    def holds_proposals(self) -> bool:
        return bool(self._held)

    def room_available(self) -> None:
        if self._held:
            self._append_held()

    def append_verified(self, held: Sequence[HeldAppend]) -> None:
        # Before the held ones, which may include a later batch of the same producer.
        self._held.extendleft(reversed(held))
        self._append_held()

    def _append_held(self) -> None:
        held = self._held
        while held:
            first = held.popleft()  # the call may change the queue
            if not self.group.accepts_appends:
                self._answer_without_room(
                    first.header, first.copies_min, first.deadline_ns, first.done
                )
            elif not self._append_now(
                first.batch,
                first.header,
                first.copies_min,
                first.deadline_ns,
                first.done,
                first.verify,
                first.begins_epoch,
            ):
                held.appendleft(first)
                return

    def leadership_lost(self) -> None:
        """Answer every request.

        Held batches were never appended; appended ones have an unknown outcome.
        """
        self._overlay.clear()
        held, self._held = self._held, deque()
        waiters, self._waiters = [*self._uncopied, *self._waiters], deque()
        self._uncopied = []
        self.group.awaits_copies = False
        self._expiry_index = 0
        self._push_back = None
        self._taken = {}
        asked, self._asked = self._asked, []
        commands, self._commands = self._commands, deque()
        for command in commands:
            command.done(UNKNOWN)
        deletions, self._deletions = self._deletions, deque()
        for deletion in deletions:
            deletion.done(ErrorCode.REQUEST_TIMED_OUT)
        held.extend(self.transactions.leadership_lost())
        for append in held:
            append.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for waiter in waiters:
            waiter.done(Appended(ErrorCode.REQUEST_TIMED_OUT))
        for one in asked:
            one.done(False)

    def leader_changed(self) -> None:
        """Run every long poll: the leader, the term or the log start changed."""
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.callback is not None:
                wait.callback()

    def expire(self, now_ns: int) -> None:
        """Answer requests past their deadline.

        A held batch was not appended; an appended one may still commit.
        """
        slow = self._push_back
        if slow is not None and not slow.goes_on(now_ns, match=self._match(slow.replica)):
            self._end_push_back()
        is_open = Appended(ErrorCode.REQUEST_TIMED_OUT)
        # `iter` keeps `end_all` from searching the queue for an answer.
        end_all(iter(take_late(self._held, now_ns)), is_open)
        self.transactions.expire(now_ns)
        for waiter in [one for one in self._waiters if one.deadline_ns <= now_ns]:
            # It stays in the queue to keep the order of the others; its result is discarded.
            waiter.deadline_ns = NEVER
            done, waiter.done = waiter.done, _nobody
            done(is_open)
        end_all(iter(take_late(self._uncopied, now_ns)), is_open)
        end_all(iter(take_late(self._asked, now_ns)), False)
        end_all(iter(take_late(self._commands, now_ns)), UNKNOWN)
        end_all(iter(take_late(self._deletions, now_ns)), ErrorCode.REQUEST_TIMED_OUT)
        if self._waits:
            self._waits = [wait for wait in self._waits if wait.callback is not None]

    @property
    def busy(self) -> bool:
        """True if any request with a deadline waits here."""
        return bool(
            self._held
            or self._waiters
            or self._uncopied
            or self._asked
            or self._waits
            or self._commands
            or self._deletions
            or self.transactions.verifying
            or self.transactions.endings
        )

    def close(self) -> None:
        """Answer every request: the replica is deleted or the server stops."""
        self.leadership_lost()
        self.leader_changed()

    def takes_on_full_disk(self, entry: Entry) -> bool:
        """Return True for deletions, Raft's entries and ends of transactions, not for records."""
        return not entry.records or _is_control(entry)

    def stopped(self) -> None:
        """Do nothing: `close` has answered every request."""

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        return self.state.take_dirty()

    @property
    def large(self) -> None:
        """None: the state is small."""

    def installed(self) -> None:
        """Do nothing."""


def _is_control(entry: Entry) -> bool:
    is_batch = bool(entry.records) and len(entry.data) > _ATTRIBUTES_POSITION
    return is_batch and entry.data[_ATTRIBUTES_POSITION] & CONTROL_FLAG != 0


def _nobody(_: Appended) -> None:
    """Discard the result of a batch whose client was already answered."""
