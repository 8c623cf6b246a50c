"""Appends to one partition: sequence checks, held batches, waiters, acknowledgement.

A batch is appended at once, or held in order of arrival while it cannot be appended: the leader has
not applied an entry of its own term, transfers its leadership, has no room, or writes a large batch
ahead. Once appended, it waits for its entry. It is acknowledged only when the commit index has
reached the entry, and as many voters as the topic requires (`min.insync.replicas`) hold it durably.
When leadership ends, all batches are answered at once; "never appended" only if that is certain.

Does not depend on readers, deletions or the wire format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ids import NO_INDEX, Index, ServerId
from raft.errors import DropReason, ProposalDropped
from raft.types import NONE, Entry, StateType
from rpc.hello import VERSION_OF_LARGE_FRAMES, VERSION_OF_LATE_FIRST_NUMBERS, Hello
from vdl.clock import NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group.appends import NO_BATCH, Append, Appended
from vdl.logstream.group.in_sync_replicas import InSyncReplicas, copied
from vdl.logstream.group.large_room import LargeRoom
from vdl.logstream.group.log_start import LogStart
from vdl.logstream.group.measures import Measures, TopicTraffic
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.pending import end_all, take_late
from vdl.logstream.group.spoken_version import speaks_less
from vdl.logstream.group.stream import Stream
from vdl.logstream.group.transactions import Transactions
from vdl.logstream.options import LARGE_BATCH_BYTES, HostOptions
from vdl.records.batch import TRANSACTIONAL_FLAG, patch_position
from vdl.state.empty import NO_ITEMS
from vdl.state.partition import PartitionState
from vdl.state.producers import Duplicate, Overlay

_SAID_FOR_CERTAIN = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
}


class Appending:
    """Appends to one replica of a partition, while it leads.

    Invariant: an append succeeds only if the entry with its batch, known by index and term, is
    committed, and at least `copies` voters hold it durably.
    """

    __slots__ = (
        "_alive", "_in_sync", "_large_room", "_log_start", "_measured", "_measured_ns",
        "_measures", "_options", "_outbox", "_overlay", "_state", "_stream", "_traffic",
        "_transactions", "held", "uncopied", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        stream: Stream,
        *,
        state: PartitionState,
        overlay: Overlay,
        transactions: Transactions,
        log_start: LogStart,
        options: HostOptions,
        outbox: Outbox,
        in_sync: InSyncReplicas,
        alive: Mapping[ServerId, Hello],
        large_room: LargeRoom,
        measures: Measures,
        traffic: TopicTraffic,
    ) -> None:
        """Create the appends of a stream.

        `overlay`: batches that this leader appended and has not seen applied.
        """
        self._stream = stream
        self._state = state
        self._overlay = overlay
        self._transactions = transactions
        self._log_start = log_start
        self._options = options
        self._outbox = outbox
        self._in_sync = in_sync
        self._alive = alive
        self._large_room = large_room
        self._measures = measures
        self._traffic = traffic
        self._measured = NO_INDEX
        """Index of the entry whose replication is measured, appended at `_measured_ns`; NO_INDEX:
        none. Invariant: this leader appended it, in its present term."""
        self._measured_ns = 0
        self.held: list[Append] = NO_ITEMS
        """Batches that are not appended yet, in order of arrival. Invariant: none of them is in the
        log."""
        self.waiters: list[Append] = NO_ITEMS
        """Appends whose entries are not known to be committed. Invariant: ordered by index; each
        was appended in a term that this replica led, or is a retry of such a batch."""
        self.uncopied: list[Append] = NO_ITEMS
        """Appends whose entries are committed, but not durable on as many replicas as requested.
        Invariant: at the end of a turn, the group's `awaits_copies` is set while there are any."""

    # --- append ------------------------------------------------------------------------------
    def begin(self, append: Append) -> None:
        """Append the batch, hold it or refuse it."""
        group = self._stream.group
        if group.node.raft.state is not StateType.LEADER:
            append.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif len(append.batch) > LARGE_BATCH_BYTES and speaks_less(
            VERSION_OF_LARGE_FRAMES, group, self._alive
        ):
            append.done(Appended(ErrorCode.MESSAGE_TOO_LARGE))
        elif not group.accepts_appends:
            self._answer_without_room(append)
        elif not group.serving or self.held or not self._append(append):
            self._hold(append)

    def _answer_without_room(self, append: Append) -> None:
        """Refuse new records for lack of space. A retry of an appended batch needs no space."""
        header, group = append.header, self._stream.group
        if header.producer_id >= 0 and group.serving:
            verdict = self._state.producers.check(
                self._overlay,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.count,
            )
            if isinstance(verdict, Duplicate):
                copies = min(append.copies, len(group.placement))
                self._answer_duplicate(append, verdict, copies)
                return
        append.done(Appended(ErrorCode.KAFKA_STORAGE_ERROR))

    def _hold(self, append: Append) -> None:
        if len(self.held) >= self._options.held_appends_max:
            # Certainly not appended, and the client may retry: Kafka has no better code.
            append.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._own_held().append(append)
        group = self._stream.group
        if len(append.batch) >= group.ahead_bytes_min:
            ahead = group.ahead
            ahead.queued = self.held
            self._large_room.note_ahead(ahead)
        if self._log_start.push_back is not None:
            # Otherwise its deadline is not checked.
            self._outbox.mark_dirty(group)

    def _own_held(self) -> list[Append]:
        if self.held is NO_ITEMS:
            self.held = []
            if (ahead := self._stream.group.writing_ahead) is not None:
                ahead.queued = self.held
        return self.held

    def _append(self, append: Append) -> bool:
        """Append or answer the batch.

        Return False, with nothing changed, if there is no room for it now.
        """
        header, group, transactions = append.header, self._stream.group, self._transactions
        producer_id = header.producer_id
        if transactions.verifying and producer_id in transactions.verifying:
            transactions.hold(append)
            return True
        copies = min(append.copies, len(group.placement))
        has_too_few = copies > 1 and not self._in_sync.may_reach(group, copies)
        is_transactional = header.attributes & TRANSACTIONAL_FLAG != 0
        if producer_id >= 0:
            verdict = self._state.producers.check(
                self._overlay,
                producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.count,
                begins_epoch=append.begins_epoch,
                may_begin_late=self._may_begin_late,
            )
            if isinstance(verdict, Duplicate):
                self._answer_duplicate(append, verdict, copies)
                return True
            if verdict is not ErrorCode.NONE and not has_too_few:
                self._refuse(append, verdict)
                return True
            if is_transactional and not transactions.may_join(header):
                transactions.verify(append)
                return True
            is_any_open = self._overlay.unstable or self._state.producers.open
            if (
                is_any_open
                and not is_transactional
                # Any epoch counts: a newer one would fence the marker that is still to come.
                and self._state.producers.has_transaction(self._overlay, producer_id)
            ):
                log_start = self._stream.log_start_offset
                append.done(Appended(ErrorCode.INVALID_TXN_STATE, log_start_offset=log_start))
                return True
        if has_too_few:
            append.done(Appended(ErrorCode.NOT_ENOUGH_REPLICAS))
            return True
        if copies > 1 and len(self.uncopied) >= self._options.uncopied_max:
            return False
        if self._log_start.push_back is not None and not self._log_start.admits():
            return False
        size = len(append.batch)
        uncommitted = group.node.raft.uncommitted_bytes
        if uncommitted and uncommitted + size > self._options.uncommitted_bytes_max:
            return False
        if size >= group.ahead_bytes_min and group.ahead.is_held(append.batch):
            return False
        is_large = size > LARGE_BATCH_BYTES
        if is_large and not self._large_room.may_append(append.batch, group.ahead):
            append.done(Appended(ErrorCode.KAFKA_STORAGE_ERROR))
            return True
        if size >= group.ahead_bytes_min and self._is_written_ahead(append):
            return False
        entry = Entry(data=append.batch, records=header.count, timestamp=header.max_timestamp)
        try:
            group.propose(entry)
        except ProposalDropped as dropped:
            if dropped.reason in (DropReason.TRANSFERRING, DropReason.UNCOMMITTED_LIMIT):
                return False
            append.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return True
        if is_large:
            self._large_room.take(size)
        patch_position(append.batch, base_offset=entry.base_offset, leader_epoch=entry.term)
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
        append.batch, append.verify = NO_BATCH, None  # its memory may be reused
        append.index, append.term, append.base_offset = entry.index, entry.term, entry.base_offset
        append.copies = copies
        waiters = self.waiters
        (self._own_waiters() if waiters is NO_ITEMS else waiters).append(append)
        traffic = self._traffic
        traffic.bytes_in += size
        traffic.records_in += header.count
        if not self._measured:
            self._measured, self._measured_ns = entry.index, self._measures.now_ns()
        if not group.dirty:
            self._outbox.mark_dirty(group)
        return True

    def _is_written_ahead(self, append: Append) -> bool:
        """Begin to write a large batch ahead. Return False if that was done, or it is too small."""
        group = self._stream.group
        if not group.ahead.begin(append.batch, append.header.max_timestamp):
            return False
        self._large_room.note_ahead(group.ahead)
        self._outbox.mark_dirty(group)
        return True

    def _may_begin_late(self) -> bool:
        """See `Producers.check`."""
        return not speaks_less(VERSION_OF_LATE_FIRST_NUMBERS, self._stream.group, self._alive)

    def _refuse(self, append: Append, verdict: ErrorCode) -> None:
        """Reject a batch by its sequence number or epoch.

        A gap before the batch is reported only after a read index has confirmed the leader. Its
        successor may have the missing batches, and the client would drop this one or send it as a
        new one.
        """
        stream, done = self._stream, append.done

        def confirmed(leads: bool) -> None:
            error = verdict if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER
            done(Appended(error, log_start_offset=stream.log_start_offset))

        if verdict in _SAID_FOR_CERTAIN:
            stream.read_index(deadline_ns=append.deadline_ns, done=confirmed)
        else:
            confirmed(True)

    def _answer_duplicate(self, append: Append, original: Duplicate, copies: int) -> None:
        """Answer a retry with the result of its original, once that is committed.

        The number of copies that this retry requests applies.
        """
        group = self._stream.group
        if original.index <= group.commit and (
            copies <= 1 or original.index <= copied(group, copies)
        ):
            log_start = self._stream.log_start_offset
            append.done(
                Appended(ErrorCode.NONE, original.base_offset, log_start, original.timestamp)
            )
            return
        append.batch, append.verify = NO_BATCH, None
        append.index, append.term, append.base_offset = (
            original.index,
            group.node.term,
            original.base_offset,
        )
        append.copies, append.duplicate_timestamp = copies, original.timestamp
        if original.index <= group.commit:
            self._own_uncopied().append(append)
            group.awaits_copies = True
            self._outbox.mark_dirty(group)
            return
        # Waiters are kept in index order: the duplicate goes right behind its original.
        position = len(self.waiters)
        while position and self.waiters[position - 1].index > original.index:
            position -= 1
        self._own_waiters().insert(position, append)

    def _own_waiters(self) -> list[Append]:
        if self.waiters is NO_ITEMS:
            self.waiters = []
        return self.waiters

    def _own_uncopied(self) -> list[Append]:
        if self.uncopied is NO_ITEMS:
            self.uncopied = []
        return self.uncopied

    # --- held batches ------------------------------------------------------------------------
    def append_verified(self, verified: Sequence[Append]) -> None:
        """Append the batches of a producer whose transaction is open, before all held ones."""
        # The held ones may include a later batch of the same producer.
        self._own_held()[:0] = verified
        self.append_held()

    def append_held(self) -> None:
        """Append the held batches, in order, up to one that there is no room for."""
        group = self._stream.group
        while held := self.held:
            first = held.pop(0)  # the call may change the queue
            batch = first.batch
            first.appended_ns = self._measures.now_ns()
            if not group.accepts_appends:
                self._answer_without_room(first)
            elif not self._append(first):
                self._own_held().insert(0, first)
                return
            if len(batch) >= group.ahead_bytes_min:
                group.ahead.drop(batch)

    # --- acknowledgement ---------------------------------------------------------------------
    def committed(self, commit: Index) -> None:
        """Complete the waiters up to `commit`: a majority holds their entries durably."""
        waiters, group = self.waiters, self._stream.group
        log, raft = group.log, group.node.raft
        log_start = max(self._state.log_start_offset, log.log_start_offset)
        leads_in = raft.term if raft.state is StateType.LEADER else 0
        acked_by = raft.committed_by if leads_in else NONE
        if self._measured and self._measured <= commit:
            if leads_in:
                measures = self._measures
                measures.replication.observe(measures.now_ns() - self._measured_ns)
            self._measured = NO_INDEX
        done = 0
        for waiter in waiters:
            if waiter.index > commit:
                break
            done += 1
        completed = waiters[:done]
        del waiters[:done]
        for waiter in completed:
            # A leader deposed in this turn may see its entry overwritten by one of a later term
            # at the same index. Such an entry will certainly never be read.
            if waiter.term == leads_in or log.term(waiter.index) == waiter.term:
                if waiter.copies > 1:
                    self._own_uncopied().append(waiter)
                    continue
                waiter.done(
                    Appended(
                        ErrorCode.NONE,
                        waiter.base_offset,
                        log_start,
                        waiter.duplicate_timestamp,
                        waiter.term,
                        acked_by,
                        waiter.appended_ns,
                    )
                )
            else:
                waiter.done(Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def answer_copied(self) -> None:
        """Complete committed appends by the number of voters that hold their entries durably."""
        group = self._stream.group
        if not group.node.is_leader:
            return  # unknown here from now on; `leadership_lost` answers in this turn
        reached: dict[int, int] = {}
        left: list[Append] = []
        waiters, self.uncopied = self.uncopied, left
        log_start = self._stream.log_start_offset
        for waiter in waiters:
            copies = waiter.copies
            if copies not in reached:
                reached[copies] = copied(group, copies)
            if waiter.index <= reached[copies]:
                waiter.done(
                    Appended(
                        ErrorCode.NONE,
                        waiter.base_offset,
                        log_start,
                        waiter.duplicate_timestamp,
                        waiter.term,
                        group.node.raft.acked_by,
                        waiter.appended_ns,
                    )
                )
            elif self._in_sync.may_reach(group, copies):
                left.append(waiter)
            else:
                waiter.done(Appended(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        group.awaits_copies = bool(left)

    # --- ends --------------------------------------------------------------------------------
    def leadership_lost(self) -> tuple[list[Append], list[Append]]:
        """Return the held batches, which were never appended, and those whose outcome is unknown.

        None of them waits here any more.
        """
        held, waiters = [*self.held], [*self.uncopied, *self.waiters]
        self.held.clear()  # `WriteAhead.queued` refers to it
        self.held = self.waiters = self.uncopied = NO_ITEMS
        self._measured = NO_INDEX
        self._stream.group.awaits_copies = False
        if (ahead := self._stream.group.writing_ahead) is not None:
            ahead.forget()
        return held, waiters

    def expire(self, now_ns: int) -> None:
        """Answer appends past their deadline.

        A held batch was not appended; an appended one may still commit.
        """
        is_open = Appended(ErrorCode.REQUEST_TIMED_OUT)
        # `iter` keeps `end_all` from searching the queue for an answer.
        late = take_late(self.held, now_ns)
        if late and (ahead := self._stream.group.writing_ahead) is not None:
            for append in late:
                ahead.drop(append.batch)
        end_all(iter(late), is_open)
        self._transactions.expire(now_ns)
        for waiter in [one for one in self.waiters if one.deadline_ns <= now_ns]:
            # It stays in the queue to keep the order of the others; its result is discarded.
            waiter.deadline_ns = NEVER
            done, waiter.done = waiter.done, _discard
            done(is_open)
        end_all(iter(take_late(self.uncopied, now_ns)), is_open)


def _discard(_: Appended) -> None:
    """Discard the result of a batch whose client was already answered."""
