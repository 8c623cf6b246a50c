"""One share-partition on the leader of its partition: the delivery state of its records (KIP-932).

        start_offset                        end_offset
    ────────┼──────────────┬─────────┬──────────┼──────────────
     done   │  ACQUIRED 2  │ DONE    │ AVAILABLE│  never delivered

`acquire` delivers records, each range under a lock with a time limit. `acknowledge` takes a
member's acknowledgements. A record that is released, or whose lock ended, is available again until
it was delivered as often as the group allows; then it is done. The start moves over records that
are done.

Rules:

* All changes are collected, and made durable by the coordinator before a client sees them. So a
  delivery is counted before it happens, and acknowledgements survive a change of leader. If a write
  fails, the whole object is dropped, and the state claimed again.
* Records in flight, which are acquired or available again, never exceed the group's limit
  (`share.partition.max.record.locks`). Done records between them form runs of offsets, so memory
  has the same bound, however long the first of them is held.
* Offsets without records (removed by compaction, control batches, aborted transactions) are done
  when they are found.

Does not depend on the log, sessions, requests or the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from vdl.errors import ErrorCode
from vdl.state.runs import Runs
from vdl.state.share_states import DONE, ClaimedShareState, RecordState


class AcknowledgeType(IntEnum):
    """A member's acknowledgement of a record."""

    GAP = 0
    """There is no record at this offset."""
    ACCEPT = 1
    RELEASE = 2
    """The record is to be delivered again."""
    REJECT = 3
    """The record is never to be delivered again."""
    RENEW = 4
    """The member needs more time (KIP-1222)."""


class AcquireMode(IntEnum):
    """Meaning of `max_records`."""

    BATCH_OPTIMIZED = 0
    """The last batch is delivered as a whole."""
    RECORD_LIMIT = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """A group's present settings."""

    locks_max: int = 2_000
    """`share.partition.max.record.locks`."""
    deliveries_max: int = 5
    """`share.delivery.count.limit`."""
    lock_ns: int = 30_000_000_000
    """`share.record.lock.duration.ms`."""


class Lock:
    """Lock of records that were delivered to a member together. Compared by identity."""

    __slots__ = ("due_ns", "held", "member_id")

    def __init__(self, member_id: str, due_ns: int) -> None:
        self.member_id = member_id
        self.due_ns = due_ns
        self.held = 0
        """Number of records that it holds."""


@dataclass(frozen=True, slots=True)
class Held:
    """State of the offsets of a run."""

    state: RecordState
    count: int
    """Deliveries so far, that of an ACQUIRED record included."""
    lock: Lock | None = None
    """Lock of ACQUIRED records."""


_DONE = Held(RecordState.DONE, 0)


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch that was read from the log: its offsets [first, last], and True if they are records
    for consumers."""

    first: int
    last: int
    has_records: bool = True


@dataclass(frozen=True, slots=True)
class AcquiredRange:
    """Offsets [first, last] that were delivered, for the `count`th time."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Acknowledgement of offsets [first, last]: a type for each, or one type for all of them."""

    first: int
    last: int
    types: Sequence[int]


class SharePartition:
    """Delivery state of one share-partition: see the module. Times are monotonic ns."""

    __slots__ = (
        "_changes", "_deleted_below", "_locks", "_none_available_below", "_runs", "_start_is_due",
        "end_offset", "in_flight", "limits", "start_offset",
    )  # fmt: skip

    def __init__(self, claimed: ClaimedShareState, start_offset: int, limits: Limits) -> None:
        """`start_offset`: where to begin if the claimed state does not say it."""
        self.limits = limits
        self.start_offset = claimed.start_offset
        self._start_is_due = claimed.start_offset < 0
        if self._start_is_due:
            self.start_offset = start_offset
        self.end_offset = self.start_offset
        self.in_flight = 0
        """Records that are ACQUIRED or AVAILABLE. Invariant: ≤ `limits.locks_max`, unless that was
        lowered."""
        self._runs: Runs[Held] = Runs()
        """Invariant: exactly the offsets [start_offset, end_offset) have a value, and the first of
        them is not DONE."""
        self._changes: Runs[tuple[int, int]] = Runs()
        """Changes that are not written yet."""
        self._none_available_below = 0
        """No offset below is AVAILABLE. Saves a scan of all runs: many members look for records at
        each change."""
        self._deleted_below = 0
        """Start of the log when it was last reported."""
        self._locks: dict[Lock, None] = {}
        """Locks that hold records."""
        for first, last, state, count in claimed.runs:
            self._load(first, last, RecordState(state), count)
        self._advance()

    def _load(self, first: int, last: int, state: RecordState, count: int) -> None:
        if first > self.end_offset:
            # No leader writes such a gap. Its state is unknown, so its records are delivered.
            self._put(self.end_offset, first - 1, Held(RecordState.AVAILABLE, 0))
        assert state is not RecordState.ACQUIRED, "an acquisition removes all locks"
        if state is RecordState.DONE:
            self._put(first, last, _DONE)
        else:
            self._free(first, last, count)
        self.end_offset = max(self.end_offset, last + 1)

    # --- reading -----------------------------------------------------------------------------
    @property
    def next_offset(self) -> int:
        """First offset that may be delivered."""
        for first, _, held in self._runs.since(self._none_available_below):
            if held.state is RecordState.AVAILABLE:
                self._none_available_below = first
                return first
        self._none_available_below = self.end_offset
        return self.end_offset

    @property
    def may_acquire(self) -> bool:
        """True if records can be delivered, as far as the log has any."""
        return self.next_offset < self.end_offset or self.in_flight < self.limits.locks_max

    @property
    def due_ns(self) -> int:
        """Time at which the next lock ends; -1: there is none."""
        return min((lock.due_ns for lock in self._locks), default=-1)

    def holders(self) -> list[tuple[int, int, Held]]:
        """Return all offsets of [start_offset, end_offset), for tests and invariants."""
        return list(self._runs)

    # --- delivery ----------------------------------------------------------------------------
    def acquire(
        self,
        member_id: str,
        batches: Iterable[FoundBatch],
        *,
        read_from: int,
        read_end: int,
        records_max: int,
        mode: AcquireMode,
        now_ns: int,
    ) -> tuple[Lock, list[AcquiredRange]]:
        """Deliver records of the batches. These are all that the log has of the offsets
        [read_from, read_end), in their order; the first may begin before."""
        assert read_from <= self.end_offset, (read_from, self.end_offset)
        lock = Lock(member_id, now_ns + self.limits.lock_ns)
        acquired: list[AcquiredRange] = []
        left = records_max
        position = max(read_from, self.start_offset)
        for batch in batches:
            if left <= 0:
                break
            if batch.first > position:
                self._no_records(position, batch.first - 1)
            position = max(position, batch.first)
            if position > batch.last:
                continue
            if batch.has_records:
                limit = left if mode is AcquireMode.RECORD_LIMIT else batch.last - position + 1
                taken = self._acquire(lock, position, batch.last, limit)
                left -= sum(one.last - one.first + 1 for one in taken)
                acquired += taken
                if self.end_offset <= batch.last:
                    break  # no room for more
            else:
                self._no_records(position, batch.last)
            position = batch.last + 1
        else:
            if position < read_end:
                self._no_records(position, read_end - 1)
        self._advance()
        return lock, _joined(acquired)

    def _acquire(self, lock: Lock, first: int, last: int, limit: int) -> list[AcquiredRange]:
        taken: list[AcquiredRange] = []
        for start, end, held in self._runs.within(first, min(last, self.end_offset - 1)):
            if held.state is RecordState.AVAILABLE and limit > 0:
                end = min(end, start + limit - 1)
                limit -= end - start + 1
                taken.append(self._give(lock, start, end, held.count + 1))
        start = max(first, self.end_offset)
        room = min(limit, self.limits.locks_max - self.in_flight)
        if start <= last and room > 0:
            assert start == self.end_offset, (start, self.end_offset)
            taken.append(self._give(lock, start, min(last, start + room - 1), 1))
        return taken

    def _give(self, lock: Lock, first: int, last: int, count: int) -> AcquiredRange:
        self._put(first, last, Held(RecordState.ACQUIRED, count, lock))
        return AcquiredRange(first, last, count)

    def _no_records(self, first: int, last: int) -> None:
        """Mark offsets without records in the log as done, unless an earlier delivery holds
        them."""
        if last >= self.end_offset:
            self._put(max(first, self.end_offset), last, _DONE)
        for start, end, held in self._runs.within(first, last):
            if held.state is RecordState.AVAILABLE:
                self._put(start, end, _DONE)

    # --- acknowledgements --------------------------------------------------------------------
    def acknowledge(
        self, member_id: str, batches: Sequence[Acknowledgement], now_ns: int
    ) -> ErrorCode:
        """Take all of a member's acknowledgements, or none of them."""
        past = -1
        for batch in batches:
            error = self._check(member_id, batch, past)
            if error is not ErrorCode.NONE:
                return error
            past = batch.last
        renewed = Lock(member_id, now_ns + self.limits.lock_ns)
        for batch in batches:
            for first, last, kind in _by_type(batch):
                first = max(first, self.start_offset)
                if first <= last:
                    self._acknowledge(first, last, AcknowledgeType(kind), renewed)
        self._advance()
        return ErrorCode.NONE

    def _check(self, member_id: str, batch: Acknowledgement, past: int) -> ErrorCode:
        if not past < batch.first <= batch.last:
            return ErrorCode.INVALID_REQUEST
        if len(batch.types) not in (1, batch.last - batch.first + 1):
            return ErrorCode.INVALID_REQUEST
        if any(kind not in _TYPES for kind in batch.types):
            return ErrorCode.INVALID_REQUEST
        if batch.last >= self.end_offset:
            return ErrorCode.INVALID_REQUEST
        # The member may still hold records that were deleted from the log. Kafka takes everything
        # below the start for acknowledged, even if another member accepted it meanwhile.
        first = max(batch.first, min(self._deleted_below, self.start_offset))
        if first > batch.last:
            return ErrorCode.NONE
        if first < self.start_offset:
            return ErrorCode.INVALID_RECORD_STATE
        for _, _, held in self._runs.within(first, batch.last):
            if held.lock is None or held.lock.member_id != member_id:
                return ErrorCode.INVALID_RECORD_STATE
        return ErrorCode.NONE

    def _acknowledge(self, first: int, last: int, kind: AcknowledgeType, renewed: Lock) -> None:
        for start, end, held in self._runs.within(first, last):
            if kind is AcknowledgeType.RENEW:
                self._put(start, end, Held(held.state, held.count, renewed))
            elif kind is AcknowledgeType.RELEASE:
                self._free(start, end, held.count)
            else:
                self._put(start, end, _DONE)

    def expire(self, now_ns: int) -> int:
        """Release the locks that ended. Return the number of records freed."""
        over = {lock for lock in self._locks if lock.due_ns <= now_ns}
        return self._end_locks(over) if over else 0

    def release_member(self, member_id: str) -> int:
        """Release the locks of a member that is gone. Return the number of records freed."""
        gone = {lock for lock in self._locks if lock.member_id == member_id}
        return self._end_locks(gone) if gone else 0

    def release(self, lock: Lock) -> int:
        """Release a lock whose records did not reach the member. Return their number."""
        return self._end_locks({lock}) if lock in self._locks else 0

    def still_held(self, lock: Lock, ranges: Sequence[AcquiredRange]) -> bool:
        """Return True if all of the ranges are still under this lock."""
        return all(
            held.lock is lock
            for one in ranges
            for _, _, held in self._runs.within(max(one.first, self.start_offset), one.last)
        ) and all(one.first >= self.start_offset for one in ranges)

    def _end_locks(self, locks: set[Lock]) -> int:
        freed = 0
        for first, last, held in list(self._runs):
            if held.lock is not None and held.lock in locks:
                self._free(first, last, held.count)
                freed += last - first + 1
        self._advance()
        return freed

    def _free(self, first: int, last: int, count: int) -> None:
        """Make records available again, or done if they were delivered often enough."""
        if count >= self.limits.deliveries_max:
            self._put(first, last, _DONE)
        else:
            self._put(first, last, Held(RecordState.AVAILABLE, count))

    def move_start(self, offset: int) -> None:
        """Move the start to `offset`: the log's records below are deleted."""
        self._deleted_below = max(self._deleted_below, offset)
        if offset <= self.start_offset:
            return
        for first, last, held in self._runs.within(self.start_offset, offset - 1):
            self._uncount(held, last - first + 1)
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
        self._start_is_due = True
        self._runs.cut_below(offset)
        self._changes.cut_below(offset)
        self._advance()

    # --- changes -----------------------------------------------------------------------------
    def _put(self, first: int, last: int, held: Held) -> None:
        """Set the state of a run. All changes go through here."""
        for start, end, before in self._runs.within(first, last):
            self._uncount(before, end - start + 1)
        if held.state is not RecordState.DONE:
            self.in_flight += last - first + 1
        if held.lock is not None:
            held.lock.held += last - first + 1
            self._locks[held.lock] = None
        if held.state is RecordState.AVAILABLE:
            self._none_available_below = min(self._none_available_below, first)
        self._runs.put(first, last, held)
        self._changes.put(first, last, (held.state, held.count))
        self.end_offset = max(self.end_offset, last + 1)

    def _uncount(self, held: Held, count: int) -> None:
        """Uncount `count` records whose state changes."""
        if held.state is not RecordState.DONE:
            self.in_flight -= count
        if held.lock is not None:
            held.lock.held -= count
            if not held.lock.held:
                self._locks.pop(held.lock, None)

    def _advance(self) -> None:
        """Move the start over records that are done."""
        run = self._runs.first
        if run is not None and run[2].state is RecordState.DONE:
            self.start_offset = run[1] + 1
            self._start_is_due = True
            self._runs.cut_below(self.start_offset)
            self._changes.cut_below(self.start_offset)

    @property
    def has_changes(self) -> bool:
        """True if there are changes to write."""
        return self._start_is_due or len(self._changes) > 0

    def take_changes(self) -> tuple[int, list[tuple[int, int, int, int]]]:
        """Return (start offset, changed runs) since the last call, as in `ShareWrite`."""
        changes = [(first, last, *value) for first, last, value in self._changes]
        self._changes.clear()
        self._start_is_due = False
        return self.start_offset, changes


_TYPES = frozenset(AcknowledgeType)
assert (_DONE.state, _DONE.count) == DONE, "both sides have the same meaning"


def _by_type(batch: Acknowledgement) -> list[tuple[int, int, int]]:
    """Return (first, last, type) of a batch, with neighbours of one type joined."""
    if len(batch.types) == 1:
        return [(batch.first, batch.last, batch.types[0])]
    runs: Runs[int] = Runs()
    first = batch.first
    for i in range(1, len(batch.types) + 1):
        if i == len(batch.types) or batch.types[i] != batch.types[i - 1]:
            runs.put(first, batch.first + i - 1, batch.types[i - 1])
            first = batch.first + i
    return list(runs)


def _joined(ranges: list[AcquiredRange]) -> list[AcquiredRange]:
    """Join neighbours that have the same delivery count."""
    joined: list[AcquiredRange] = []
    for one in ranges:
        if joined and joined[-1].last + 1 == one.first and joined[-1].count == one.count:
            joined[-1] = AcquiredRange(joined[-1].first, one.last, one.count)
        else:
            joined.append(one)
    return joined
