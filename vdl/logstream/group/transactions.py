"""The transactions of one partition, on one replica of it.

A batch of a transaction is appended only to an open one (KIP-890): open here, or confirmed by the
transaction's coordinator on request. Batches of the same producer wait behind that verification, in
their order; those of other producers do not. A marker that arrives meanwhile makes the result
outdated: the coordinator is queried again. So every transaction that is opened will be ended by a
marker.

The stable part of the log ends where the oldest open transaction begins (KIP-98).

Does not depend on how batches are appended and acknowledged, or on readers.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from functools import partial
from operator import attrgetter

import segments.api as storage
from ids import Index, Offset
from raft.errors import ProposalDropped
from raft.types import Entry
from vdl.clock import NEVER
from vdl.errors import ErrorCode
from vdl.logstream.group.appends import Append, Appended
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.pending import Pending, end_all, take_late
from vdl.logstream.group.state_group import NOT_APPENDED, UNKNOWN, Outcome, OutcomeKind
from vdl.logstream.group.stream import Stream
from vdl.records.batch import BatchHeader, patch_position
from vdl.records.markers import Marker, build_marker
from vdl.state.answer import CommandAnswer
from vdl.state.empty import NO_ITEMS, NO_KEYS
from vdl.state.partition import EndTransactionMarker, PartitionState
from vdl.state.producers import NO_NUMBER, Overlay

MARKERS_MAX = 10_000
"""Maximum number of markers that wait to be applied to one partition."""

OPEN_TRANSACTIONS_MAX = 4_096
"""Maximum number of open transactions in one partition; a batch that would begin another is
refused."""

BEHIND_MAX = 4 * OPEN_TRANSACTIONS_MAX
"""Maximum number of batches behind the first ones under verification: as many as these producers
have in flight at a time, without the first one (KIP-98)."""

VERIFIED_MAX = 4_096
"""Maximum number of producers that are known to have a transaction and have written nothing of it
here."""

_MARKER_IS_REFUSED = {
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""These refusals are final: the marker must not be sent again."""

_index = attrgetter("index")


class _Verification:
    """A query about a producer's transaction, and the batches behind it, in their order."""

    __slots__ = ("held", "is_void")

    def __init__(self, first: Append) -> None:
        self.held = [first]
        self.is_void = False
        """True if a marker came after the query was sent."""


class Transactions:
    """The transactions of one partition."""

    __slots__ = (
        "_agreed_ms", "_behind_count", "_due_ns", "_outbox", "_overlay", "_state", "_stream",
        "endings", "verified", "verifying",
    )  # fmt: skip

    def __init__(
        self,
        stream: Stream,
        *,
        state: PartitionState,
        overlay: Overlay,
        outbox: Outbox,
        agreed_ms: Callable[[], int],
    ) -> None:
        """Create the transactions of a stream.

        `overlay`: batches that this leader appended and has not seen applied. `agreed_ms` returns
        the time.
        """
        self._stream = stream
        self._state = state
        self._overlay = overlay
        self._outbox = outbox
        self._agreed_ms = agreed_ms
        self.verifying: dict[int, _Verification] = NO_KEYS
        """By producer id. Use: on a leader."""
        self._behind_count = 0
        """Number of batches behind the first of each producer. Invariant: their sum."""
        self._due_ns = NEVER
        """Time before which none of those batches reaches its deadline."""
        self.verified: dict[int, int] = NO_KEYS
        """Producer id → epoch of those whose transaction has this partition, as confirmed by its
        coordinator, with nothing in it yet. Invariant: no marker has come since. Use: on a
        leader."""
        self.endings: list[Pending[ErrorCode]] = NO_ITEMS
        """Requests that wait for a marker, or for the entry before it, to be applied. Invariant:
        ordered by index."""

    # --- what is stable ----------------------------------------------------------------------
    def stable(self) -> tuple[Index, Offset]:
        """Return (last stable entry, offset behind it)."""
        group = self._stream.group
        if not self._state.lists_all:
            # The aborted transactions are not all known: nothing can be called stable.
            return group.log.first_index - 1, self._stream.log_start_offset
        index, offset = group.commit, self._stream.high_watermark
        if not group.serving:
            # Committed entries that are not applied may open a transaction. A serving leader has
            # appended all of these itself.
            known = max(group.applied, group.reflects)
            if known < index:
                index, offset = self._known_stable(known)
        elif self._overlay.unstable:
            first_index, first_offset = self._overlay.unstable[0]
            if first_offset < offset:
                index, offset = first_index - 1, first_offset
        oldest = self._state.producers.oldest_open
        if oldest is not None and oldest.first_offset < offset:
            # If the transaction's beginning is deleted, none of the remaining records is stable.
            index = oldest.first_index - 1
            offset = max(oldest.first_offset, min(self._stream.log_start_offset, offset))
        return index, offset

    def _known_stable(self, known: Index) -> tuple[Index, Offset]:
        """Return (entry, offset behind it) up to which the state knows the open transactions.

        `known` is below the commit index.
        """
        group = self._stream.group
        try:
            return known, group.log.offset_after(known)
        except storage.StorageError:  # its place cannot be read now
            return group.log.first_index - 1, self._stream.log_start_offset

    # --- beginning ---------------------------------------------------------------------------
    def may_join(self, header: BatchHeader) -> bool:
        """Return True if the batch's transaction is open here, or known to be open."""
        if self.verified.get(header.producer_id) == header.producer_epoch:
            return True
        return self._state.producers.has_transaction(
            self._overlay, header.producer_id, header.producer_epoch
        )

    def verify(self, held: Append) -> None:
        """Query the transaction's coordinator; then append the batch, and those behind it."""
        producer_id = held.header.producer_id
        producers = self._state.producers
        if held.verify is None:
            held.done(Appended(ErrorCode.INVALID_TXN_STATE))
            return
        # All producers under verification may begin one. Those of the overlay may be open already.
        begun = len(producers.open) + len(self.verifying) + len(self.verified)
        is_full = (
            begun + len(self._overlay.unstable or ()) >= OPEN_TRANSACTIONS_MAX
            and begun + producers.opened_by(self._overlay) >= OPEN_TRANSACTIONS_MAX
        )
        if is_full:
            held.done(Appended(ErrorCode.CONCURRENT_TRANSACTIONS))
            return
        if self.verifying is NO_KEYS:
            self.verifying = {}
        verification = self.verifying[producer_id] = _Verification(held)
        self._due_ns = min(self._due_ns, held.deadline_ns)
        self._outbox.mark_dirty(self._stream.group)  # otherwise its deadline is not checked
        held.verify(partial(self._verification_ended, producer_id, verification))

    def hold(self, append: Append) -> None:
        """Put a batch behind the verification of its producer; refuse it if too many wait.

        The error code makes clients retry without looking for another leader. Thousands that are
        late together would request metadata, which would delay them more.
        """
        if self._behind_count >= BEHIND_MAX:
            append.done(Appended(ErrorCode.NOT_ENOUGH_REPLICAS))
            return
        self.verifying[append.header.producer_id].held.append(append)
        self._behind_count += 1
        self._due_ns = min(self._due_ns, append.deadline_ns)

    def _end_verification(self, producer_id: int) -> list[Append]:
        """End the verification. Return its batches."""
        held = self.verifying.pop(producer_id).held
        self._behind_count -= len(held) - 1
        return held

    def _verification_ended(
        self, producer_id: int, verification: _Verification, error: ErrorCode
    ) -> None:
        if self.verifying.get(producer_id) is not verification:
            return  # its batches are answered: the deadline passed, or this replica leads no more
        held = verification.held
        if verification.is_void and error is ErrorCode.NONE:
            verification.is_void = False
            verify = held[0].verify
            assert verify is not None, producer_id
            verify(partial(self._verification_ended, producer_id, verification))
            return
        self._end_verification(producer_id)
        if error is not ErrorCode.NONE:
            # Those behind the first would leave a gap.
            for one in held:
                one.done(Appended(error, log_start_offset=self._stream.log_start_offset))
            return
        if len(self.verified) >= VERIFIED_MAX:
            self.verified.clear()  # they are verified again
        if self.verified is NO_KEYS:
            self.verified = {}
        self.verified[producer_id] = held[0].header.producer_epoch
        self._stream.append_verified(held)

    # --- ending ------------------------------------------------------------------------------
    def end(
        self,
        command: EndTransactionMarker,
        *,
        deadline_ns: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Append the marker that ends a producer's transaction, and call `done` once.

        NONE: it is applied here, or a quorum confirmed that there is nothing to end.

        Final errors: TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH. After any other the
        marker is to be sent again, to the leader of that time; it may have been appended.
        """
        again = partial(self._end_again, command, deadline_ns=deadline_ns, done=done)
        if not self._stream.serving:
            self._stream.when_serving(deadline_ns=deadline_ns, done=again)
            return
        producer_id = command.producer_id
        self.verified.pop(producer_id, None)
        verification = self.verifying.get(producer_id)
        if verification is not None:
            verification.is_void = True
        verdict = self._state.producers.check_marker(
            self._overlay,
            producer_id,
            command.producer_epoch,
            command.coordinator_epoch,
            transaction_version=command.transaction_version,
            number=command.number,
        )
        pending = self._overlay.producers.get(producer_id)
        if len(self.endings) >= MARKERS_MAX:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif verdict is True:
            self._append_marker(command, deadline_ns, done)
        elif pending is not None:
            # It depends on an entry that is not committed yet, and may never be.
            retry = partial(self._ended_before, again)
            insort(
                self._own_endings(), Pending(deadline_ns, retry, index=pending.index), key=_index
            )
        else:
            error = verdict if isinstance(verdict, ErrorCode) else ErrorCode.NONE
            self._stream.read_index(
                deadline_ns=deadline_ns,
                done=lambda leads: done(error if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER),
            )

    def _end_again(
        self,
        command: EndTransactionMarker,
        serving: bool,
        *,
        deadline_ns: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        if serving and self._stream.serving:
            self.end(command, deadline_ns=deadline_ns, done=done)
        else:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _ended_before(self, again: Callable[[bool], None], error: ErrorCode) -> None:
        again(error is ErrorCode.NONE)

    def _append_marker(
        self,
        command: EndTransactionMarker,
        deadline_ns: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        producer_id, number = command.producer_id, command.number
        epoch, coordinator_epoch = command.producer_epoch, command.coordinator_epoch
        if number == NO_NUMBER:
            # Only coordinators begin epochs: this marker fences neither them nor the producer.
            epoch, coordinator_epoch = self._state.producers.epochs(self._overlay, producer_id)
        marker = Marker(
            producer_id, epoch, coordinator_epoch, command.commit, self._agreed_ms(), number
        )
        batch = build_marker(marker)
        if not self._has_room(len(batch)):
            done(ErrorCode.KAFKA_STORAGE_ERROR)
            return
        # No timestamp: the log's largest timestamps are those of records that a client may look
        # for.
        entry = Entry(data=batch, records=1)
        try:
            self._stream.group.propose(entry)
        except ProposalDropped:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        patch_position(memoryview(batch), base_offset=entry.base_offset, leader_epoch=entry.term)
        self._overlay.append_marker(producer_id, epoch, coordinator_epoch, entry.index, number)
        self._own_endings().append(Pending(deadline_ns, done, index=entry.index))
        self._outbox.mark_dirty(self._stream.group)

    def _own_endings(self) -> list[Pending[ErrorCode]]:
        if self.endings is NO_ITEMS:
            self.endings = []
        return self.endings

    def _has_room(self, entry_bytes: int) -> bool:
        """Return True if a marker may be appended.

        On a full disk no transaction begins, so there are few markers: they get some of the space
        that is left, or the stable part would stop growing until records are deleted. They do not
        use the space that deletions need.
        """
        store = self._stream.group.store
        needed = entry_bytes + self._stream.group.node.uncommitted_bytes
        return store.accepts_appends or needed < store.entry_room(is_essential=False)

    def answer_endings(self, index: Index) -> None:
        """Answer the requests that waited for entries up to `index` to be applied."""
        endings = self.endings
        if endings and endings[0].index <= index:
            count = bisect_right(endings, index, key=_index)
            reached, endings[:count] = endings[:count], []
            for one in reached:
                one.done(ErrorCode.NONE)

    # --- the log stream ----------------------------------------------------------------------
    def expire(self, now_ns: int) -> None:
        """Answer requests past their deadline.

        A batch behind one past its deadline would leave a gap: all of them are answered.
        """
        if now_ns >= self._due_ns:
            self._end_late(now_ns)
        # `iter` keeps `end_all` from searching the queue for an answer.
        end_all(iter(take_late(self.endings, now_ns)), ErrorCode.REQUEST_TIMED_OUT)

    def _end_late(self, now_ns: int) -> None:
        late: list[tuple[int, _Verification]] = []
        self._due_ns = NEVER
        for producer_id, verification in self.verifying.items():
            due_ns = min(held.deadline_ns for held in verification.held)
            if due_ns <= now_ns:
                late.append((producer_id, verification))
            elif due_ns < self._due_ns:
                self._due_ns = due_ns
        for producer_id, verification in late:
            if self.verifying.get(producer_id) is verification:
                for held in self._end_verification(producer_id):
                    held.done(Appended(ErrorCode.REQUEST_TIMED_OUT))

    def leadership_lost(self) -> list[Append]:
        """Answer all waiting requests. Return the batches that were never appended."""
        self.verified = NO_KEYS
        verifying, self.verifying = self.verifying, NO_KEYS
        self._behind_count = 0
        held = [one for verification in verifying.values() for one in verification.held]
        endings, self.endings = self.endings, NO_ITEMS
        for ending in endings:
            ending.done(ErrorCode.REQUEST_TIMED_OUT)
        return held


def transaction_ended(done: Callable[[Outcome], None], error: ErrorCode) -> None:
    """Report the outcome of a marker to another group's leader."""
    if error is ErrorCode.NONE or error in _MARKER_IS_REFUSED:
        done(Outcome(OutcomeKind.APPLIED, CommandAnswer(error)))
    else:
        done(UNKNOWN if error is ErrorCode.REQUEST_TIMED_OUT else NOT_APPENDED)
