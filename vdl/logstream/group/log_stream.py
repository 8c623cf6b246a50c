"""A log stream: one replica of one topic partition, as the front end uses it.

`append` assigns offset, term and index and appends to the leader's log in one call, or refuses;
nothing is awaited in between. What cannot be appended yet (the leader's own-term entry is not
applied, a transfer is under way, no room) is held in arrival order, bounded by its deadline.

An acknowledgement is given when the commit index reaches the entry, and so many voters hold it
durably as the topic asks for (`min.insync.replicas`); for no other reason. When leadership ends,
whoever waits is answered at once: "never appended" only if that is certain.

Must not know: the wire format of requests, other partitions, the disk.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from struct import Struct

import segments.api as storage
from raft.errors import DropReason, ProposalDropped
from raft.types import Entry, Index, NodeId
from vdl.clock import MS, NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group.group import Group
from vdl.logstream.group.in_sync_replicas import InSyncReplicas, copied
from vdl.logstream.group.offset_for_time import (
    NO_TIME,
    TimedOffset,
    find_offset_for_time,
    find_offset_of_largest_time,
)
from vdl.logstream.group.outbox import Outbox, server_of
from vdl.logstream.group.pending import Pending, take_late
from vdl.logstream.group.producer_expiry import ProducerMarks
from vdl.logstream.group.push_back import PushBack
from vdl.logstream.group.retention import (
    RetentionPolicy,
    UntimedSegments,
    held_starts,
    retention_start,
)
from vdl.logstream.group.snapshots import Items
from vdl.logstream.group.state_group import (
    NOT_APPENDED,
    TOO_LARGE,
    UNKNOWN,
    Outcome,
    OutcomeKind,
)
from vdl.logstream.options import HostOptions
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import BatchHeader, patch_position
from vdl.state.partition import (
    AdvanceLogStart,
    Compact,
    ExpireProducers,
    PartitionCommand,
    PartitionState,
    encode_command,
    knows_command,
)
from vdl.state.producers import ActiveProducer, Duplicate, Overlay

DELETIONS_MAX = 100
"""Deletions of one partition that may wait to be applied."""
COMMANDS_MAX = 10_000
"""Commands of other groups that may wait to be applied to one partition."""

_PRODUCER = Struct(">qhi")
_PRODUCER_POSITION = 43
_SAID_FOR_CERTAIN = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


@dataclass(slots=True)
class Appended:
    """What became of one batch."""

    error: ErrorCode
    base_offset: int = -1
    log_start_offset: int = -1
    duplicate_timestamp: int | None = None
    """Largest timestamp of the batch as it was first appended; None: it is no duplicate."""


class Waiter:
    """A produce that waits for its entry to commit, and for `copies` of it on voters' disks."""

    __slots__ = (
        "base_offset", "copies", "deadline_ns", "done", "duplicate_timestamp", "index", "term",
    )  # fmt: skip

    def __init__(
        self,
        *,
        index: int,
        term: int,
        base_offset: int,
        copies: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
        duplicate_timestamp: int | None = None,
    ) -> None:
        self.copies = copies
        self.index = index
        self.term = term
        self.base_offset = base_offset
        self.deadline_ns = deadline_ns
        self.done = done
        self.duplicate_timestamp = duplicate_timestamp


class HeldAppend:
    """A batch that waits to be appended."""

    __slots__ = ("batch", "copies_min", "deadline_ns", "done", "header")

    def __init__(
        self,
        batch: memoryview,
        header: BatchHeader,
        copies_min: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
    ) -> None:
        self.batch = batch
        self.copies_min = copies_min
        self.header = header
        self.deadline_ns = deadline_ns
        self.done = done


class Wait:
    """A long poll that wants records at or beyond `offset`."""

    __slots__ = ("callback", "offset")

    def __init__(self, offset: int, callback: Callable[[], None]) -> None:
        self.offset = offset
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class LogStream:
    """See the module. `group` is set by the host right after construction."""

    __slots__ = (
        "_asked",
        "_commands",
        "_deletions",
        "_expiry_index",
        "_gaps",
        "_held",
        "_in_sync",
        "_options",
        "_outbox",
        "_overlay",
        "_producer_marks",
        "_proved",
        "_push_back",
        "_taken",
        "_uncopied",
        "_untimed",
        "_waiters",
        "_waits",
        "group",
        "high_watermark",
        "partition",
        "state",
        "topic",
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
    ) -> None:
        """`in_sync` and `gaps`: the server's."""
        self.topic = topic
        self.partition = partition
        self.state = state
        self.high_watermark = 0
        self._options = options
        self._outbox = outbox
        self._in_sync = in_sync
        self._gaps = gaps
        self._proved = gaps.count
        """After so many gaps a quorum has answered here, or nobody led before the last of them."""
        self._overlay = Overlay()
        self._uncopied: list[Waiter] = []
        """Waiters whose entries are committed, but not on as many disks as requested."""
        self._waiters: deque[Waiter] = deque()
        self._held: deque[HeldAppend] = deque()
        self._waits: list[Wait] = []
        self._asked: list[Pending[bool]] = []
        self._commands: deque[Pending[Outcome]] = deque()
        """Of other groups, by index."""
        self._deletions: deque[Pending[ErrorCode]] = deque()
        self._untimed = UntimedSegments()
        self._push_back: PushBack | None = None
        self._taken: dict[NodeId, Index] = {}
        """What replicas held when retention last looked and something was to go, in this term."""
        self._producer_marks = ProducerMarks(options.producer_expiration_ms * MS)
        self._expiry_index = 0
        """The entry of the newest `ExpireProducers` that was appended here."""

    # --- what the front end reads ------------------------------------------------------------
    @property
    def group_id(self) -> int:
        return self.group.group_id

    @property
    def is_leader(self) -> bool:
        return self.group.node.is_leader

    @property
    def serving(self) -> bool:
        """Leads and has applied its own term's first entry."""
        return self.group.serving

    @property
    def is_proved(self) -> bool:
        """Whether the loop has run without a gap since a quorum last proved who leads: else `prove`
        comes before a read."""
        return self._proved == self._gaps.look()

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Have a quorum say that this replica still leads, as `read_index` does."""
        gap = self._gaps.count

        def proved(passed: bool) -> None:
            if passed:
                self._proved = max(self._proved, gap)
            done(passed)

        self.read_index(deadline_ns=deadline_ns, done=proved)

    @property
    def term(self) -> int:
        """Raft term, which is the partition's leader epoch."""
        return self.group.node.term

    @property
    def leader_server(self) -> int:
        """Server id of the leader this replica knows, 0 for none."""
        return server_of(self.group.node.lead)

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read. Records below are deleted; some of them may still be
        on disk."""
        return max(self.state.log_start_offset, self.group.log.log_start_offset)

    @property
    def end_offset(self) -> int:
        """Offset after the last entry of this replica's log, committed or not."""
        return self.group.node.next_offset()

    # --- append ------------------------------------------------------------------------------
    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[Appended], None],
    ) -> None:
        """Append one checked v2 batch, writable, and call `done` once with its fate. It is
        acknowledged when a majority and `copies_min` replicas hold it, all if they are fewer.

        `done` may run before this returns. `batch` is patched in place (base offset and leader
        epoch lie outside its CRC) and may be reused after the turn.
        """
        group = self.group
        if not group.node.is_leader:
            done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif not group.store.accepts_appends:
            done(Appended(ErrorCode.KAFKA_STORAGE_ERROR))
        elif (
            not group.serving
            or self._held
            or not self._append_now(batch, header, copies_min, deadline_ns, done)
        ):
            self._hold(HeldAppend(batch, header, copies_min, deadline_ns, done))

    def _hold(self, held: HeldAppend) -> None:
        if len(self._held) >= self._options.held_appends_max:
            # Certainly not appended, and the client may try again: Kafka has no better code.
            held.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._held.append(held)
        if self._push_back is not None:
            self._outbox.mark_dirty(self.group)  # or nobody would look at its deadline

    def _append_now(
        self,
        batch: memoryview,
        header: BatchHeader,
        copies_min: int,
        deadline_ns: int,
        done: Callable[[Appended], None],
    ) -> bool:
        """False when there is no room for it now; then nothing happened."""
        copies = min(copies_min, len(self.group.placement))
        has_too_few = copies > 1 and not self._in_sync.may_reach(self.group, copies)
        producer_id = header.producer_id
        if producer_id >= 0:
            verdict = self.state.producers.check(
                self._overlay,
                producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.count,
            )
            if isinstance(verdict, Duplicate):
                self._answer_duplicate(verdict, copies, deadline_ns, done)
                return True
            if verdict is not ErrorCode.NONE and not has_too_few:
                self._refuse(verdict, deadline_ns, done)
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
        entry = Entry(data=batch, records=header.count, timestamp=header.max_timestamp)
        try:
            group.propose(entry)
        except ProposalDropped as dropped:
            if dropped.reason in (DropReason.TRANSFERRING, DropReason.UNCOMMITTED_LIMIT):
                return False
            done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return True
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
            )
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

    def _refuse(
        self, verdict: ErrorCode, deadline_ns: int, done: Callable[[Appended], None]
    ) -> None:
        """What the producer's own past forbids. That something is missing before the batch, if only
        all of its past, is said only by a leader who knows that it still is one: its successor may
        have what is missing, and the client would give the batch up, or send it as a new one."""

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
        """A retry is answered as its original was; if that is not committed yet, when it is. The
        number of copies requested now counts."""
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
    def read(self, offset: int, bytes_max: int) -> storage.Slices:
        """Committed batches from `offset`. Raises NotInMemory, OffsetOutOfRange (KIP-74)."""
        if offset < self.log_start_offset:
            raise storage.OffsetOutOfRange(f"offset {offset} is below {self.log_start_offset}")
        return self.group.log.read(offset, self.group.commit, bytes_max)

    def read_cold(
        self,
        offset: int,
        bytes_max: int,
        done: Callable[[storage.Slices | storage.StorageError], None],
    ) -> None:
        """As `read`, from disk, off the loop. `done` may be called before this returns."""
        group = self.group
        group.store.read_cold(group.log, offset, group.commit, bytes_max, done)

    def wait_for(self, offset: int, callback: Callable[[], None]) -> Wait:
        """Call back once when a record at `offset` is committed, or when the leader changes;
        at most once a turn."""
        wait = Wait(offset, callback)
        self._waits.append(wait)
        return wait

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """True: `high_watermark` reflects everything acknowledged before this call (§8)."""
        if not self.group.node.is_leader:
            done(False)
            return
        self.group.reads.ask(deadline_ns, done)
        self._outbox.mark_dirty(self.group)

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """True now or as soon as this leader may serve; False when it is not the leader."""
        if not self.group.node.is_leader:
            done(False)
        elif self.group.serving:
            done(True)
        else:
            self._asked.append(Pending(deadline_ns, done))

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        """The leader epoch that the log's start was written in (KIP-320); the present one when
        there is no record, -1 when it cannot be told now."""
        group = self.group
        start = self.log_start_offset
        if start >= self.high_watermark:
            done(group.node.term)
            return

        def found(index: int | storage.StorageError) -> None:
            known = not isinstance(index, storage.StorageError) and (
                group.log.first_index <= index <= group.log.last_index
            )
            done(group.log.term(index) if known and isinstance(index, int) else -1)

        group.store.index_of_offset(group.log, start, found)

    def producers(self) -> list[ActiveProducer]:
        """The idempotent producers of committed batches, as this replica has applied them; by
        id."""
        return self.state.producers.active()

    def stored_bytes(self, done: Callable[[int | storage.StorageError], None]) -> None:
        """How many bytes of the log's committed entries this replica keeps."""

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            done(spans if isinstance(spans, storage.StorageError) else sum(s.bytes for s in spans))

        self.group.store.segment_spans(self.group.log, found)

    def segment_starts(
        self, done: Callable[[list[tuple[int, int]] | storage.StorageError], None]
    ) -> None:
        """Of each segment, oldest first: its first offset that is not deleted, and the largest
        timestamp up to its end (ms, -1 while there is none)."""

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if isinstance(spans, storage.StorageError):
                done(spans)
                return
            starts: list[tuple[int, int]] = []
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
        """The least committed offset, of those not deleted, whose timestamp is ≥ `timestamp_ms`
        (KIP-79)."""
        group = self.group

        def found(answer: TimedOffset | storage.StorageError) -> None:
            if isinstance(answer, TimedOffset) and 0 <= answer.offset < self.log_start_offset:
                # It was deleted while it was looked for. What the next one's time is, nobody knows.
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
        """The first committed record, of those not deleted, that has the largest timestamp of all
        (KIP-734)."""

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if isinstance(spans, storage.StorageError):
                done(spans)
            else:
                bound_ms = max((span.max_timestamp for span in spans), default=NO_TIME)
                find_offset_of_largest_time(bound_ms, self.offset_for_time, done)

        self.group.store.segment_spans(self.group.log, found)

    def delete_records(
        self, offset: int, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Delete everything below `offset`; -1: everything committed (KIP-107). `done` once it is
        decided and applied here; the records are gone then, on every replica that will ever
        lead."""
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
        fed: Collection[int],
    ) -> None:
        """Delete what the policy no longer asks to keep; times are those of `ClusterTime`. `fed`:
        the servers whose replicas may still need some of it."""
        self._untimed.look(spans, stamp_ms)
        if retention_start(spans, policy, settled_ms, self._untimed) <= self.log_start_offset:
            self._taken = {}
            self._end_push_back()
            return
        try:
            needed, replica = self._needed_by(fed)
        except OSError:  # no descriptor is left, or no memory: nothing is lost if it stays
            return
        patient, impatient = held_starts(spans, policy, settled_ms, self._untimed, needed=needed)
        before, match = self._taken.get(replica, -1), self._match(replica)
        progress = self.group.node.raft.progress
        self._taken = {follower: known.match for follower, known in progress.items()}
        start = impatient
        if patient < impatient and match > before:
            # It takes entries, or nobody knows yet whether it does.
            start = patient
            if before >= 0 and (self._push_back is None or self._push_back.replica != replica):
                last = self.group.node.last_index
                self._push_back = PushBack(replica, last=last, match=match)
        else:
            self._end_push_back()
        offset = min(start, self.high_watermark)
        if self.serving and not self._deletions and offset > self.log_start_offset:
            self._advance_log_start(offset)

    def _needed_by(self, servers: Collection[int]) -> tuple[int, NodeId]:
        """The least committed offset that a replica on one of these servers does not hold yet, as
        far as this leader knows, and that replica; (`NEVER`, 0) if all have all. May read a file;
        raises OSError."""
        log, raft = self.group.log, self.group.node.raft
        needed = NEVER, 0
        for replica, progress in raft.progress.items():
            if server_of(replica) in servers and progress.match < self.group.commit:
                match = max(progress.match, log.first_index - 1)
                # What is damaged heals: until then nobody is waited for.
                with contextlib.suppress(storage.CorruptRecord):
                    needed = min(needed, (log.offset_after(match), replica))
        return needed

    def _match(self, replica: NodeId) -> Index:
        """What a follower holds durably, as far as this leader knows; 0 if it is no member."""
        progress = self.group.node.raft.progress.get(replica)
        return 0 if progress is None else progress.match

    def _end_push_back(self) -> None:
        if self._push_back is not None:
            self._push_back = None
            self._outbox.mark_dirty(self.group)

    def expire_producers(self, now_ns: int, *, may_append: bool) -> None:
        """Have producers forgotten that have been idle for long enough. Called on every replica, so
        that whoever leads next knows for how long; decided by the leader, if it `may_append`."""
        producers = self.state.producers
        self._producer_marks.note(producers.newest_index, now_ns)
        idle_index = self._producer_marks.idle_index(now_ns)
        oldest = producers.oldest_index
        if oldest is None or oldest > idle_index or not may_append or not self.serving:
            return
        is_under_way = self._expiry_index > self.group.applied
        if is_under_way or not self.group.store.accepts_appends:
            return
        if self._propose(ExpireProducers(idle_index)):
            self._expiry_index = self.group.node.last_index

    def compact(self, *, upto: Index, markers_upto: Index) -> None:
        """Decide that the log is compacted so far, if there is room for the decision: see
        `Compact`. Each replica does it in its own time."""
        if self.serving and self.group.store.accepts_appends:
            self._propose(Compact(upto, markers_upto))

    def _advance_log_start(self, offset: int) -> bool:
        return self._propose(AdvanceLogStart(offset))

    def command(self, data: bytes, *, deadline_ns: int, done: Callable[[Outcome], None]) -> None:
        """Append a command of another group, and answer with what came of it when it is applied
        here. It may be appended again: see `peers/group_commands.py`."""
        if not knows_command(data):
            done(TOO_LARGE)
        elif (
            not self.serving
            or len(self._commands) >= COMMANDS_MAX
            or not self.group.store.accepts_appends
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

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch ≤ `epoch` in the log, offset where the next larger one starts); (-1, -1)
        when `epoch` is above all there are (KIP-101, KIP-279). Use: on a leader that serves.

        An epoch that is deleted ended at the log's start at the latest: that is answered under its
        own number, as Kafka does. A consumer that has read to the end of what was deleted later is
        where it should be; told of no such epoch, it would take its position for truncated.
        """
        group = self.group
        log = group.log
        term = group.node.term
        if epoch == term:
            return term, self.high_watermark
        if not 0 <= epoch < term:
            return -1, -1
        first, end = log.first_index, group.commit + 1
        while first < end:  # the first index whose term is above `epoch`
            middle = (first + end) // 2
            if log.term(middle) > epoch:
                end = middle
            else:
                first = middle + 1
        last = first - 1
        end_offset = log.offset_after(last)
        # By what may be read, not by what is still on this replica's disk: all answer alike.
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
        return False  # nothing but reads follows from what was applied

    def load(self, items: Items) -> None:
        """Take the stored state, before the replica runs."""
        self.state.load(items)

    def replay(self, entries: Sequence[Entry]) -> None:
        self.apply(entries)

    def install(self, items: Items) -> None:
        self.state.load(items)

    def items(self) -> Items:
        return self.state.items()

    @property
    def item_count(self) -> int:
        return self.state.item_count

    def start(self) -> None:
        """The group exists: what is committed may be read."""
        self.high_watermark = self.group.log.offset_after(self.group.commit)

    def committed(self, commit: int) -> None:
        """Complete the waiters that `commit` reaches: their entries are on a majority's
        disks. Those that wait for more copies are completed when these are durable, or when too few
        replicas are left in sync: then the entry is committed, and its fate as it was asked for
        open. Called also when more copies may be there: `commit` is then the one of before."""
        log = self.group.log
        self.high_watermark = log.offset_after(commit)
        waiters = self._waiters
        if waiters and waiters[0].index <= commit:
            log_start = self.log_start_offset
            node = self.group.node
            leads_in = node.term if node.is_leader else 0
            while waiters and waiters[0].index <= commit:
                waiter = waiters.popleft()
                # Committed, but is it still ours? A leader that was deposed in this very turn
                # may see its entry overwritten by one of a later term at the same index: then
                # it certainly never will be read.
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
        """Complete committed waiters by how many voters' disks have their entries."""
        group = self.group
        if not group.node.is_leader:
            return  # nobody knows here any more; `leadership_lost` answers in this very turn
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
        """Run the long polls that the high watermark passed. Once a turn, from the host."""
        end = self.high_watermark
        ready = [wait for wait in self._waits if wait.offset < end]
        if ready:
            self._waits = [
                wait for wait in self._waits if wait.offset >= end and wait.callback is not None
            ]
            for wait in ready:
                if wait.callback is not None:
                    wait.callback()

    def apply(self, entries: Sequence[Entry]) -> None:
        """Producer windows follow the committed batches."""
        for entry in entries:
            if not entry.records:
                if len(entry.data):
                    self._apply_command(entry)
                continue
            if not len(entry.data):
                continue  # compacted away, and in no producer's window any more
            producer_id, epoch, sequence = _PRODUCER.unpack_from(entry.data, _PRODUCER_POSITION)
            if producer_id >= 0:
                self.state.producers.apply(
                    producer_id,
                    epoch,
                    sequence,
                    entry.records,  # also of those that compaction removed
                    entry.base_offset,
                    entry.index,
                    entry.timestamp,
                )
                self._overlay.committed(producer_id, entry.index)

    def _apply_command(self, entry: Entry) -> None:
        log_start = self.state.log_start_offset
        answer = self.state.apply(entry.data, end_offset=entry.base_offset)
        while self._commands and self._commands[0].index <= entry.index:
            # No other leader can have overwritten it: then nobody would wait here any more.
            self._commands.popleft().done(Outcome(OutcomeKind.APPLIED, answer))
        while self._deletions and self._deletions[0].index <= entry.index:
            self._deletions.popleft().done(ErrorCode.NONE)
        if self._waits and self.state.log_start_offset != log_start:
            self.leader_changed()  # the log begins elsewhere: who waits has to be told

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

    def _append_held(self) -> None:
        held = self._held
        while held:
            first = held[0]
            if not self._append_now(
                first.batch, first.header, first.copies_min, first.deadline_ns, first.done
            ):
                return
            held.popleft()

    def leadership_lost(self) -> None:
        """Answer everyone: held batches were never appended, appended ones have an open fate."""
        self._overlay = Overlay()
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
        for append in held:
            append.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for waiter in waiters:
            waiter.done(Appended(ErrorCode.REQUEST_TIMED_OUT))
        for one in asked:
            one.done(False)

    def leader_changed(self) -> None:
        """Run every long poll: something else than the high watermark is new."""
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.callback is not None:
                wait.callback()

    def expire(self, now_ns: int) -> None:
        """Deadlines: a held batch was not appended, an appended one may yet commit."""
        slow = self._push_back
        if slow is not None and not slow.goes_on(now_ns, match=self._match(slow.replica)):
            self._end_push_back()
        for held in take_late(self._held, now_ns):
            held.done(Appended(ErrorCode.REQUEST_TIMED_OUT))
        for waiter in [one for one in self._waiters if one.deadline_ns <= now_ns]:
            # It stays in line, so that the order of the rest is kept; nobody listens any more.
            waiter.deadline_ns = NEVER
            done, waiter.done = waiter.done, _nobody
            done(Appended(ErrorCode.REQUEST_TIMED_OUT))
        for waiter in take_late(self._uncopied, now_ns):
            waiter.done(Appended(ErrorCode.REQUEST_TIMED_OUT))
        for one in take_late(self._asked, now_ns):
            one.done(False)
        for command in take_late(self._commands, now_ns):
            command.done(UNKNOWN)
        for deletion in take_late(self._deletions, now_ns):
            deletion.done(ErrorCode.REQUEST_TIMED_OUT)
        if self._waits:
            self._waits = [wait for wait in self._waits if wait.callback is not None]

    @property
    def busy(self) -> bool:
        """Whether anybody waits here with a deadline."""
        return bool(
            self._held
            or self._waiters
            or self._uncopied
            or self._asked
            or self._waits
            or self._commands
            or self._deletions
        )

    def close(self) -> None:
        """The replica is deleted or the server stops."""
        self.leadership_lost()
        self.leader_changed()

    def takes_on_full_disk(self, entry: Entry) -> bool:
        """Deletions, and Raft's own entries, but no records."""
        return not entry.records

    def stopped(self) -> None:
        """`close` has been called: nobody waits."""

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        return self.state.take_dirty()


def _nobody(_: Appended) -> None:
    """Receives the fate of a batch whose client was already answered."""
