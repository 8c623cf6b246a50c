"""Share-partition and its durable state, against a record-by-record model (KIP-932)."""

from __future__ import annotations

import random

import pytest

from vdl.errors import ErrorCode
from vdl.kafka.share.share_partition import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRange,
    AcquireMode,
    FoundBatch,
    Limits,
    Lock,
    SharePartition,
)
from vdl.state.commands import ClaimSharePartition, ShareWrite
from vdl.state.share_states import (
    ClaimedShareState,
    RecordState,
    ShareState,
    ShareStates,
)

TOPIC = b"t" * 16
KEY = ("g", TOPIC, 0)
ROOM = 1 << 30
SECOND = 1_000_000_000


def fresh(start: int = 0, **limits: int) -> SharePartition:
    return SharePartition(
        ClaimedShareState(1, start, []), 0, Limits(**{"lock_ns": 30 * SECOND, **limits})
    )


def acquire(
    share: SharePartition,
    batches: list[FoundBatch],
    *,
    member: str = "a",
    records_max: int = 500,
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    now_ns: int = 0,
    read_end: int = -1,
) -> tuple[Lock, list[AcquiredRange]]:
    """Acquire records as a fetch does, from the first available offset."""
    start = share.next_offset
    found = [batch for batch in batches if batch.last >= start]
    if read_end < 0:
        read_end = found[-1].last + 1 if found else start
    return share.acquire(
        member,
        found,
        read_from=start,
        read_end=read_end,
        records_max=records_max,
        mode=mode,
        now_ns=now_ns,
    )


def test_records_are_given_out_once_and_again_when_given_back() -> None:
    share = fresh()
    log = [FoundBatch(0, 9), FoundBatch(10, 19)]
    assert acquire(share, log)[1] == [AcquiredRange(0, 19, 1)]
    assert acquire(share, log, member="b")[1] == []
    assert share.acknowledge("a", [Acknowledgement(0, 4, [AcknowledgeType.ACCEPT])], 0) == 0
    assert share.start_offset == 5
    assert share.acknowledge("a", [Acknowledgement(8, 9, [AcknowledgeType.RELEASE])], 0) == 0
    assert acquire(share, log, member="b")[1] == [AcquiredRange(8, 9, 2)]
    assert share.acknowledge("a", [Acknowledgement(8, 9, [AcknowledgeType.ACCEPT])], 0) == (
        ErrorCode.INVALID_RECORD_STATE
    )


def test_a_type_for_each_record_splits_what_was_given_together() -> None:
    share = fresh()
    acquire(share, [FoundBatch(0, 4)])
    kinds = [1, 2, 3, 0, 1]
    assert share.acknowledge("a", [Acknowledgement(0, 4, kinds)], 0) == ErrorCode.NONE
    assert [(first, last) for first, last, _ in share.holders()] == [(1, 1), (2, 4)]
    assert share.next_offset == 1


@pytest.mark.parametrize(
    "bad",
    [
        [Acknowledgement(5, 4, [1])],
        [Acknowledgement(0, 4, [1, 1])],
        [Acknowledgement(0, 4, [])],
        [Acknowledgement(0, 4, [5])],
        [Acknowledgement(0, 4, [-1])],
        [Acknowledgement(0, 10, [1])],
        [Acknowledgement(3, 4, [1]), Acknowledgement(0, 1, [1])],
        [Acknowledgement(0, 4, [1]), Acknowledgement(4, 6, [1])],
        [Acknowledgement(-1, 4, [1])],
    ],
)
def test_what_makes_no_sense_changes_nothing(bad: list[Acknowledgement]) -> None:
    share = fresh()
    acquire(share, [FoundBatch(0, 9)])
    before = share.holders()
    assert share.acknowledge("a", bad, 0) == ErrorCode.INVALID_REQUEST
    assert share.holders() == before


def test_the_limit_of_records_in_flight_cuts_a_batch() -> None:
    share = fresh(locks_max=100)
    assert acquire(share, [FoundBatch(0, 149)])[1] == [AcquiredRange(0, 99, 1)]
    assert acquire(share, [FoundBatch(0, 149)])[1] == []
    share.acknowledge("a", [Acknowledgement(50, 59, [1])], 0)
    assert acquire(share, [FoundBatch(0, 149)])[1] == [AcquiredRange(100, 109, 1)]


def test_record_limit_cuts_a_batch_where_batch_optimized_does_not() -> None:
    share = fresh()
    log = [FoundBatch(0, 9), FoundBatch(10, 19), FoundBatch(20, 29)]
    taken = acquire(share, log, records_max=3, mode=AcquireMode.RECORD_LIMIT)[1]
    assert taken == [AcquiredRange(0, 2, 1)]
    assert acquire(share, log, records_max=8)[1] == [AcquiredRange(3, 19, 1)]


def test_gaps_and_control_batches_are_done_with() -> None:
    share = fresh()
    log = [FoundBatch(3, 5), FoundBatch(6, 6, has_records=False), FoundBatch(9, 9)]
    taken = acquire(share, log, read_end=12)[1]
    assert taken == [AcquiredRange(3, 5, 1), AcquiredRange(9, 9, 1)]
    share.acknowledge("a", [Acknowledgement(3, 9, [1])], 0)
    # 6 to 8 were acquired by no member: nothing of the request counts.
    assert share.start_offset == 3
    share.acknowledge("a", [Acknowledgement(3, 5, [1]), Acknowledgement(9, 9, [1])], 0)
    assert share.start_offset == share.end_offset == 12


def test_records_that_compaction_removed_meanwhile_are_done_with() -> None:
    share = fresh()
    acquire(share, [FoundBatch(0, 9)])
    share.acknowledge("a", [Acknowledgement(0, 9, [AcknowledgeType.RELEASE])], 0)
    assert acquire(share, [FoundBatch(4, 5), FoundBatch(12, 12)])[1] == [
        AcquiredRange(4, 5, 2),
        AcquiredRange(12, 12, 1),
    ]
    assert share.next_offset == 13


def test_a_record_is_given_up_after_its_last_delivery() -> None:
    share = fresh(deliveries_max=2)
    log = [FoundBatch(0, 0), FoundBatch(1, 1)]
    for count in (1, 2):
        assert acquire(share, log, records_max=1)[1] == [AcquiredRange(0, 0, count)]
        share.acknowledge("a", [Acknowledgement(0, 0, [AcknowledgeType.RELEASE])], 0)
    assert share.start_offset == 1


def test_locks_end_by_themselves_and_can_be_renewed() -> None:
    share = fresh()
    acquire(share, [FoundBatch(0, 9)], now_ns=0)
    assert share.due_ns == 30 * SECOND
    renew = [Acknowledgement(5, 9, [AcknowledgeType.RENEW])]
    assert share.acknowledge("a", renew, 20 * SECOND) == ErrorCode.NONE
    assert share.expire(30 * SECOND) == 5
    assert share.next_offset == 0
    assert share.due_ns == 50 * SECOND
    assert share.expire(50 * SECOND) == 5
    assert share.due_ns == -1


def test_a_member_that_goes_gives_back_only_its_own() -> None:
    share = fresh()
    acquire(share, [FoundBatch(0, 4)])
    acquire(share, [FoundBatch(5, 9)], member="b")
    assert share.release_member("a") == 5
    assert acquire(share, [FoundBatch(0, 9)], member="c")[1] == [AcquiredRange(0, 4, 2)]


def test_deleted_records_are_nobodys() -> None:
    share = fresh()
    acquire(share, [FoundBatch(0, 9)])
    share.move_start(5)
    assert share.acknowledge("a", [Acknowledgement(0, 9, [1])], 0) == ErrorCode.NONE
    assert share.start_offset == 10
    assert share.in_flight == 0
    assert share.due_ns == -1
    share.move_start(20)
    assert (share.start_offset, share.end_offset, share.next_offset) == (20, 20, 20)


# --- with its durable state ----------------------------------------------------------------------
class Life:
    """Share-partition over several leaders, with the acknowledged state of each record."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.limits = Limits(locks_max=self.rng.choice((5, 20, 60)), deliveries_max=3, lock_ns=10)
        self.states = ShareStates()
        self.states.put(ShareState(KEY, 7, 1, -1))
        self.now_ns = 0
        self.epoch = 0
        self.claim = 0
        self.number = 0
        self.log: list[FoundBatch] = []
        self.end = 0
        self.acknowledged: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.has_records: set[int] = set()
        self.old_writes: list[ShareWrite] = []
        self.take_over()

    def take_over(self) -> None:
        """Take over as a new leader, or claim again as the same one."""
        if self.rng.random() < 0.6:
            self.epoch += 1
            self.claim = 0
        self.claim += 1
        self.number = 0
        command = ClaimSharePartition("g", TOPIC, 0, self.epoch, self.claim)
        claimed = self.states.claim(command)
        assert isinstance(claimed, ClaimedShareState)
        again = self.states.claim(command)
        assert claimed == again
        self.state_epoch = claimed.state_epoch
        self.share = SharePartition(claimed, 0, self.limits)

    def write(self) -> None:
        """Make the state durable; sometimes more than once."""
        if not self.share.has_changes:
            return
        start, changes = self.share.take_changes()
        self.number += 1
        write = ShareWrite(
            "g", TOPIC, 0, self.state_epoch, self.epoch, self.claim, self.number, start, changes
        )
        for _ in range(self.rng.choice((1, 1, 2))):
            assert self.states.write(write, ROOM) == ErrorCode.NONE
        if self.old_writes and self.rng.random() < 0.3:
            old = self.rng.choice(self.old_writes)
            before = self.states.items()
            self.states.write(old, ROOM)
            assert self.states.items() == before, "a late write changed something"
        self.old_writes.append(write)

    def append(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            first = self.end + self.rng.choice((0, 0, 0, 2))
            last = first + self.rng.randint(0, 9)
            batch = FoundBatch(first, last, self.rng.random() > 0.1)
            self.log.append(batch)
            if batch.has_records:
                self.has_records.update(range(first, last + 1))
            self.end = last + 1

    def fetch(self) -> None:
        start = self.share.next_offset
        found = [batch for batch in self.log if batch.last >= start][: self.rng.randint(1, 4)]
        if not found:
            return
        lock, ranges = self.share.acquire(
            self.rng.choice("abc"),
            found,
            read_from=start,
            read_end=found[-1].last + 1,
            records_max=self.rng.choice((1, 3, 500)),
            mode=self.rng.choice(list(AcquireMode)),
            now_ns=self.now_ns,
        )
        assert self.share.in_flight <= self.limits.locks_max
        if self.rng.random() < 0.1:
            self.share.release(lock)  # the client was gone
            self.write()
            return
        if self.rng.random() < 0.1:
            return self.take_over()  # before anything was durable: no record was delivered
        self.write()
        for one in ranges:
            for offset in range(one.first, one.last + 1):
                assert offset in self.has_records
                assert offset not in self.acknowledged, f"{offset} after it was acknowledged"
                before = self.deliveries.get(offset, 0)
                assert one.count > before, "a delivery that is not counted"
                assert one.count <= self.limits.deliveries_max
                self.deliveries[offset] = one.count
        return None

    def acknowledge(self) -> None:
        held = [run for run in self.share.holders() if run[2].lock is not None]
        if not held:
            return
        first, last, one = self.rng.choice(held)
        assert one.lock is not None
        first = self.rng.randint(first, last)
        last = self.rng.randint(first, last)
        kinds = [self.rng.choice((0, 1, 1, 2, 3, 4)) for _ in range(last - first + 1)]
        if self.rng.random() < 0.5:
            kinds = kinds[:1]
        error = self.share.acknowledge(
            one.lock.member_id, [Acknowledgement(first, last, kinds)], self.now_ns
        )
        assert error is ErrorCode.NONE
        if self.rng.random() < 0.1:
            self.take_over()
            return
        self.write()
        for offset in range(first, last + 1):
            if kinds[min(offset - first, len(kinds) - 1)] in (0, 1, 3):
                self.acknowledged.add(offset)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.2:
            self.append()
        elif kind < 0.55:
            self.fetch()
        elif kind < 0.85:
            self.acknowledge()
        elif kind < 0.9:
            self.now_ns += self.rng.randint(1, 12)
            self.share.expire(self.now_ns)
        elif kind < 0.94:
            self.share.release_member(self.rng.choice("abc"))
        elif kind < 0.96:
            self.share.move_start(self.share.start_offset + self.rng.randint(0, 5))
        else:
            self.take_over()
        self.check()

    def check(self) -> None:
        """Check the invariants of both sides."""
        runs = self.share.holders()
        available = [first for first, _, held in runs if held.state is RecordState.AVAILABLE]
        assert self.share.next_offset == min(available, default=self.share.end_offset)
        position = self.share.start_offset
        for first, last, _ in runs:
            assert first == position
            position = last + 1
        assert position == self.share.end_offset
        assert not runs or runs[0][2].state is not RecordState.DONE
        flying = sum(last - first + 1 for first, last, held in runs if held.state != 2)
        assert flying == self.share.in_flight
        held: dict[Lock, int] = {}
        for first, last, one in runs:
            assert (one.lock is None) == (one.state is not RecordState.ACQUIRED)
            if one.lock is not None:
                held[one.lock] = held.get(one.lock, 0) + last - first + 1
        assert all(lock.held == count for lock, count in held.items())
        assert self.share.due_ns == min((lock.due_ns for lock in held), default=-1)
        stored = ShareStates()
        stored.load([value for _, value in self.states.items()])
        assert stored.items() == self.states.items()
        assert stored.bytes == self.states.bytes


@pytest.mark.parametrize("seed", range(40))
def test_random_lives_keep_what_was_promised(seed: int) -> None:
    life = Life(seed)
    for _ in range(150):
        life.step()
    # Every remaining record is delivered or archived in the end.
    for _ in range(2_000):
        life.now_ns += 100
        life.share.expire(life.now_ns)
        if life.share.start_offset >= life.end:
            break
        life.fetch()
        life.write()
    assert life.share.start_offset >= life.end
    life.write()
    state = life.states.get(*KEY)
    assert state is not None
    assert state.start_offset == life.share.start_offset
    assert not len(state.runs)
