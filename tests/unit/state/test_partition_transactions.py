"""Transactions of a partition's producers: open, aborted and fenced ones."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass, field

import pytest

from vdl.errors import ErrorCode
from vdl.state.aborted import (
    BLOCK_ENTRIES,
    RUN_RANGES,
    AbortedRange,
    AbortedTransactions,
    _Run,
)
from vdl.state.partition import (
    AdvanceLogStart,
    Compact,
    EndTransactionMarker,
    ExpireProducers,
    PartitionState,
    decode_command,
    encode_command,
)
from vdl.state.producers import PRODUCERS_MAX, Overlay


def write(
    state: PartitionState, producer_id: int, offset: int, *, epoch: int = 0, sequence: int = 0
) -> None:
    """Apply a transactional batch of one record, in the entry of the same number."""
    state.producers.apply(
        producer_id, epoch, sequence, 1, offset, offset + 1, 5, is_transactional=True
    )


def end(
    state: PartitionState, producer_id: int, offset: int, *, epoch: int = 0, commit: bool = False
) -> None:
    state.apply_marker(
        producer_id, epoch, 1, commit=commit, offset=offset, index=offset + 1, timestamp=6
    )


def open_offset(state: PartitionState) -> int | None:
    oldest = state.producers.oldest_open
    return None if oldest is None else oldest.first_offset


def verdict(
    state: PartitionState, epoch: int, coordinator_epoch: int, version: int, number: int = 0
) -> bool | ErrorCode:
    return state.producers.check_marker(
        Overlay(), 7, epoch, coordinator_epoch, transaction_version=version, number=number
    )


def test_marker_command_survives_its_bytes() -> None:
    command = EndTransactionMarker(7, 3, 12, commit=True, transaction_version=2, number=9)
    assert decode_command(encode_command(command)) == command


def test_open_transactions_end_in_any_order() -> None:
    """KIP-98: records before the oldest open transaction are stable."""
    state = PartitionState()
    write(state, 7, 0)
    write(state, 8, 1)
    write(state, 7, 2, sequence=1)
    assert open_offset(state) == 0
    end(state, 7, 3)
    assert open_offset(state) == 1
    write(state, 7, 4, sequence=2)
    end(state, 8, 5, commit=True)
    assert open_offset(state) == 4
    assert list(state.aborted) == [AbortedRange(7, 0, 3, 4)]


@pytest.mark.parametrize(
    ("epoch", "coordinator_epoch", "version", "expected"),
    [
        (3, 5, 1, True),
        (4, 5, 1, True),
        (2, 5, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 5, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, 5, 2, True),
        (4, 4, 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_marker_of_an_open_transaction_is_judged_by_its_epochs(
    epoch: int, coordinator_epoch: int, version: int, expected: bool | ErrorCode
) -> None:
    """KIP-1228: from version 2 on a marker's epoch is newer than its transaction's."""
    state = PartitionState()
    state.apply_marker(7, 2, 5, commit=True, offset=0, index=1, timestamp=0)
    write(state, 7, 1, epoch=3)
    assert verdict(state, epoch, coordinator_epoch, version) is expected


def test_marker_without_a_transaction_is_needed_only_for_its_epoch() -> None:
    """A repeated marker ends nothing; a newer epoch fences the producer."""
    state = PartitionState()
    assert verdict(state, 0, 1, 2) is False
    write(state, 7, 0)
    end(state, 7, 1, epoch=1)
    assert verdict(state, 1, 1, 2) is False
    assert verdict(state, 1, 1, 1) is False
    assert verdict(state, 2, 1, 2, number=1) is True
    assert verdict(state, 2, 1, 2) is False, "an administrator's fences nobody"
    assert verdict(state, 0, 1, 1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_marker_of_the_first_version_is_noted_though_it_ends_nothing() -> None:
    """A marker of the first version is stored.

    Only its transaction number distinguishes it from the next transaction's marker.
    """
    state = PartitionState()
    for seen in range(2):
        told = [
            state.producers.check_marker(Overlay(), 7, 0, 5, transaction_version=v, number=number)
            for v, number in [(1, 1), (1, 2), (1, 0), (2, 2)]
        ]
        assert told == [not seen, True, False, False]
        state.apply_marker(7, 0, 5, commit=False, offset=0, index=1, timestamp=0, number=1)


def test_numbers_go_on_behind_a_marker_of_the_same_epoch() -> None:
    """Version 1: sequence numbers belong to the epoch, not to the transaction."""
    state, overlay = PartitionState(), Overlay()
    write(state, 7, 0)
    overlay.append_marker(7, 0, 1, 2)
    check = state.producers.check
    assert check(overlay, 7, 0, 1, 1) is ErrorCode.NONE
    assert check(overlay, 7, 0, 5, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    end(state, 7, 1)
    overlay.committed(7, 2)
    assert check(overlay, 7, 0, 1, 1) is ErrorCode.NONE
    assert not overlay.producers


def test_numbers_begin_anew_behind_a_marker_of_a_newer_epoch() -> None:
    state, overlay = PartitionState(), Overlay()
    write(state, 7, 0)
    overlay.append_marker(7, 1, 1, 2)
    check = state.producers.check
    for _ in range(2):
        assert check(overlay, 7, 1, 0, 1) is ErrorCode.NONE
        assert check(overlay, 7, 1, 1, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert check(overlay, 7, 0, 1, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
        end(state, 7, 1, epoch=1)
        overlay.committed(7, 2)


def test_overlay_says_what_the_newest_entry_makes_of_the_transaction() -> None:
    state, overlay = PartitionState(), Overlay()
    is_open = state.producers.has_transaction
    assert not is_open(overlay, 7, 0)
    overlay.append(7, 0, 0, 1, 0, 1, 5, is_transactional=True)
    assert is_open(overlay, 7, 0)
    assert not is_open(overlay, 7, 1)
    overlay.append_marker(7, 0, 1, 2)
    assert not is_open(overlay, 7, 0)
    assert list(overlay.unstable) == [(1, 0)]
    write(state, 7, 0)
    overlay.committed(7, 1)
    assert not is_open(overlay, 7, 0)
    assert not overlay.unstable


@pytest.mark.parametrize("epoch", [0, 1])
def test_marker_without_a_coordinators_epoch_survives_a_restart(epoch: int) -> None:
    """A marker without a coordinator epoch, such as an administrator's, survives a restart.

    DescribeProducers returns -1 where no marker was written yet.
    """
    state = PartitionState()
    write(state, 7, 0)
    write(state, 8, 1)
    state.apply_marker(7, epoch, -1, commit=False, offset=2, index=3, timestamp=6)
    restarted = PartitionState()
    restarted.load(state.items())
    assert restarted.items() == state.items()
    assert restarted.producers.newest_index == state.producers.newest_index == 3


def test_producer_with_an_open_transaction_is_not_forgotten() -> None:
    """Neither time nor the number of producers removes one with an outstanding marker."""
    state = PartitionState()
    write(state, 7, 0)
    state.apply(encode_command(ExpireProducers(1 << 40)), end_offset=1)
    for number in range(PRODUCERS_MAX + 5):
        state.producers.apply(1_000 + number, 0, 0, 1, 1 + number, 2 + number, 5)
    assert state.producers.get(7) is not None
    assert len(state.producers) == PRODUCERS_MAX
    assert state.producers.oldest_index is not None
    assert state.producers.oldest_index > 1
    end(state, 7, 9_000)
    state.apply(encode_command(ExpireProducers(1 << 40)), end_offset=1)
    assert len(state.producers) == 0


def test_aborted_transactions_below_the_log_start_are_forgotten() -> None:
    """Aborted transactions are removed once their marker is deleted, too.

    Records above the log's start may belong to them.
    """
    state = PartitionState()
    write(state, 7, 0)
    write(state, 8, 1)
    end(state, 7, 2)
    end(state, 8, 5)
    state.apply(encode_command(AdvanceLogStart(2)), end_offset=6)
    assert [one.producer_id for one in state.aborted.between(2, 6)] == [7, 8]
    state.apply(encode_command(AdvanceLogStart(3)), end_offset=6)
    assert [one.producer_id for one in state.aborted] == [8]
    state.apply(encode_command(Compact(7, 5)), end_offset=6)
    assert len(state.aborted) == 1
    state.apply(encode_command(Compact(7, 6)), end_offset=6)
    assert not state.aborted


@dataclass
class Model:
    """Reference model: evaluates the log from its beginning each time."""

    log: list[tuple[str, int]] = field(default_factory=list)
    """(kind, producer) by offset; kinds: data, plain, commit, abort."""

    def open(self) -> dict[int, int]:
        first: dict[int, int] = {}
        for offset, (kind, producer) in enumerate(self.log):
            if kind == "data":
                first.setdefault(producer, offset)
            elif kind in ("commit", "abort"):
                first.pop(producer, None)
        return first

    def aborted_records(self, start: int, end: int) -> set[int]:
        found: set[int] = set()
        written: dict[int, list[int]] = {}
        for offset, (kind, producer) in enumerate(self.log):
            if kind == "data":
                written.setdefault(producer, []).append(offset)
            elif kind in ("commit", "abort"):
                records = written.pop(producer, [])
                found.update(records if kind == "abort" else ())
        return {offset for offset in found if start <= offset < end}


def dropped_by_consumer(
    log: list[tuple[str, int]], listed: list[AbortedRange], start: int, end: int
) -> set[int]:
    """Return the offsets of [start, end) that a client drops, as all of them do (KIP-98)."""
    queue = sorted(listed, key=lambda one: one.first_offset)
    active: set[int] = set()
    dropped: set[int] = set()
    for offset in range(start, end):
        kind, producer = log[offset]
        while queue and queue[0].first_offset <= offset:
            active.add(queue.pop(0).producer_id)
        if kind == "abort":
            active.discard(producer)
        elif kind == "data" and producer in active:
            dropped.add(offset)
    return dropped


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_are_those_of_the_model(seed: int) -> None:
    """Open transactions, and the records dropped by readers of any range, equal the model's.

    The state is restarted from stored items.
    """
    rng = random.Random(seed)
    state, model = PartitionState(), Model()
    stored: dict[bytes, bytes] = {}
    sequences: dict[int, int] = {}
    start = 0
    for offset in range(300):
        producer = rng.randrange(1, 6)
        draw = rng.random()
        is_open = producer in model.open()
        if draw < 0.25 and is_open:
            commit = rng.random() < 0.4
            end(state, producer, offset, commit=commit)
            model.log.append(("commit" if commit else "abort", producer))
        elif draw < 0.35 and not is_open:
            sequence = sequences.get(producer, 0)
            state.producers.apply(producer, 0, sequence, 1, offset, offset + 1, 5)
            sequences[producer] = sequence + 1
            model.log.append(("plain", producer))
        else:
            sequence = sequences.get(producer, 0)
            write(state, producer, offset, sequence=sequence)
            sequences[producer] = sequence + 1
            model.log.append(("data", producer))
        if rng.random() < 0.03:
            start = rng.randint(start, offset)
            state.apply(encode_command(AdvanceLogStart(start)), end_offset=offset + 1)
        if rng.random() < 0.1:
            for key, value in state.take_dirty():
                stored.pop(key, None) if value is None else stored.__setitem__(key, value)
            assert sorted(stored.items()) == state.items()
            state = PartitionState()
            state.load(sorted(stored.items()))
        opened = model.open()
        stable = min(opened.values(), default=offset + 1)
        assert open_offset(state) == (min(opened.values()) if opened else None)
        if stable > start:
            begin = rng.randrange(start, stable)
            until = rng.randint(begin, stable)
            listed = state.aborted.between(begin, until)
            assert dropped_by_consumer(model.log, listed, begin, until) == model.aborted_records(
                begin, until
            )


@pytest.mark.parametrize("seed", range(5))
def test_aborted_list_is_what_a_look_at_all_of_it_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list equals one computed from all transactions, also with widely overlapping ranges.

    It covers blocks and runs.
    """
    monkeypatch.setattr("vdl.state.aborted.RUN_RANGES", 4)
    rng = random.Random(seed)
    aborted = AbortedTransactions()
    offset = 0
    for _ in range(400):
        offset += rng.choice((1, 1, 7, BLOCK_ENTRIES))
        first = max(0, offset - rng.choice((1, 5, 50, 2_000)))
        aborted.add(AbortedRange(rng.randrange(9), first, offset, offset + 1))
        if rng.random() < 0.05:
            aborted.remove_below(rng.randrange(offset))
        begin = rng.randrange(offset)
        until = begin + rng.choice((0, 1, 100, 10_000))
        assert aborted.between(begin, until) == [
            one for one in aborted if one.last_offset >= begin and one.first_offset < until
        ]
    again = AbortedTransactions()
    again.load(aborted.items())
    assert list(again) == list(aborted)
    assert len(again) == len(list(again))
    assert again.items() == aborted.items()
    assert again.between(0, offset) == aborted.between(0, offset)


@pytest.mark.parametrize("seed", range(20))
def test_stored_blocks_are_the_list_whenever_they_are_taken(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are encoded when the next one begins. Later additions and removals are included."""
    monkeypatch.setattr("vdl.state.aborted.RUN_RANGES", 4)
    rng = random.Random(seed)
    aborted = AbortedTransactions()
    stored: dict[bytes, bytes] = {}
    index = 0
    for _ in range(300):
        index += rng.choice((1, 1, 90, 5 * BLOCK_ENTRIES))
        aborted.add(AbortedRange(7, max(0, index - 9), index, index))
        drawn = rng.random()
        if drawn < 0.05:
            aborted.remove_below(index - rng.randrange(2_000))
        elif drawn < 0.1:
            aborted.remove_upto(index - rng.randrange(-5, 2_000))
        elif drawn < 0.2:
            for key, value in aborted.take_dirty():
                stored.pop(key, None) if value is None else stored.__setitem__(key, value)
            assert sorted(stored.items()) == aborted.items()
        elif drawn < 0.25:
            again = AbortedTransactions()
            again.load(aborted.items())
            assert (list(again), again.items()) == (list(aborted), aborted.items())
            assert again.take_dirty() == []
            if sorted(stored.items()) == again.items():
                aborted = again


def test_checkpoint_unpacks_nothing_however_many_were_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint unpacks nothing after a million additions, or the removal of all.

    That would block the loop for seconds.
    """
    looked: list[int] = []
    unpacked = _Run.ranges

    def ranges(run: _Run) -> list[AbortedRange]:
        looked.append(len(run))
        return unpacked(run)

    aborted = AbortedTransactions()
    count = 40 * RUN_RANGES
    for number in range(1, count):
        aborted.add(AbortedRange(7, 2 * number, 2 * number + 1, 3 * number))
    monkeypatch.setattr(_Run, "ranges", ranges)
    whole = aborted.items()
    assert aborted.take_dirty() == whole
    assert looked == []
    aborted.remove_upto(3 * count - 4)
    assert len(aborted) == 1
    left = aborted.items()
    assert aborted.take_dirty() == [(key, None) for key, _ in whole[:-1]] + left
    assert sum(looked) <= RUN_RANGES


def test_transaction_that_was_open_for_long_costs_no_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions that ended meanwhile are skipped, many at a time."""
    aborted = AbortedTransactions()
    count = 40 * RUN_RANGES
    for number in range(1, count):
        aborted.add(AbortedRange(7, 2 * number, 2 * number + 1, number))
    long = AbortedRange(8, 1, 2 * count, count)
    aborted.add(long)
    aborted.remove_below(101)
    looked: list[int] = []
    found_between = _Run.between

    def between(run: _Run, start: int, end: int) -> list[AbortedRange]:
        looked.append(len(run))
        return found_between(run, start, end)

    monkeypatch.setattr(_Run, "between", between)
    assert aborted.between(102, 104) == [AbortedRange(7, 102, 103, 51), long]
    assert aborted.between(102, 102) == [long]
    assert sum(looked) <= 4 * RUN_RANGES


def test_list_has_no_end_and_takes_little_memory() -> None:
    """Aborted transactions are listed as long as their records can be read.

    No other bound limits their number.
    """
    tracemalloc.start()
    try:
        aborted = AbortedTransactions()
        count = 20 * RUN_RANGES
        for number in range(count):
            # Some hundred producers whose transactions overlap.
            first = max(0, 3 * number - number % 900)
            aborted.add(AbortedRange(9_000 + number % 300, first, 3 * number + 2, 3 * number + 5))
        aborted.take_dirty()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(aborted) == count
    assert held < 16 * count


@pytest.mark.parametrize("seed", range(40))
def test_replica_that_began_with_a_snapshot_makes_the_list_of_the_log(seed: int) -> None:
    """A replica restored from a snapshot ends in the same state as one that applied everything.

    The snapshot may be anywhere in the log and hold the state of any later entry; the replica may
    restart at any time.
    """
    rng = random.Random(seed)
    state = PartitionState()
    entries: list[tuple[str, int]] = []
    opened: set[int] = set()
    began = stands = rng.randrange(200)
    reflects = began + rng.randint(1, 200)
    sequences: dict[int, int] = {}
    for offset in range(reflects):
        producer = rng.randrange(1, 9)
        if producer in opened and rng.random() < 0.3:
            commit = rng.random() < 0.4
            end(state, producer, offset, commit=commit)
            opened.discard(producer)
            entries.append(("commit" if commit else "abort", producer))
        else:
            write(state, producer, offset, sequence=sequences.get(producer, 0))
            sequences[producer] = sequences.get(producer, 0) + 1
            opened.add(producer)
            entries.append(("data", producer))
        if rng.random() < 0.02 and offset >= began:
            start = encode_command(AdvanceLogStart(rng.randint(began, offset)))
            state.apply(start, end_offset=offset + 1)
    if began:
        state.apply(encode_command(AdvanceLogStart(began)), end_offset=reflects)
    replica = PartitionState()
    replica.load(state.snapshot_items(began))
    stored = dict(replica.items())
    assert not replica.lists_all
    assert not replica.aborted
    passed = began
    while not replica.lists_all:
        kind, producer = entries[passed]
        if kind == "data":
            replica.pass_batch(producer, passed)
        else:
            replica.pass_marker(producer, commit=kind == "commit", offset=passed, index=passed + 1)
        passed += 1
        if passed == reflects:
            replica.passed_all()
        if rng.random() < 0.05:
            stands = passed
            for key, value in replica.take_dirty():
                stored.pop(key, None) if value is None else stored.__setitem__(key, value)
            assert sorted(stored.items()) == replica.items()
        elif rng.random() < 0.05:
            replica, passed = PartitionState(), stands
            replica.load(sorted(stored.items()))
    assert replica.items() == state.items()
    assert list(replica.aborted) == list(state.aborted)


def test_transaction_that_reaches_over_the_markers_that_go_is_listed_as_it_began() -> None:
    """A transaction that begins below the removed markers, and ends above, is listed everywhere.

    Its first batch is in an entry below, its marker above.
    """
    state = PartitionState()
    write(state, 7, 3)
    end(state, 7, 5)
    (listed,) = state.aborted
    state.apply(encode_command(Compact(listed.index, listed.index - 1)), end_offset=6)
    replica = PartitionState()
    replica.load(state.snapshot_items(0))
    replica.pass_batch(7, 3)
    replica.pass_marker(7, commit=False, offset=5, index=listed.index)
    replica.passed_all()
    assert list(replica.aborted) == list(state.aborted) == [listed]
    assert replica.items() == state.items()


def test_snapshot_is_small_however_many_were_aborted() -> None:
    """A snapshot holds only aborted transactions that extend beyond the log's start."""
    state = PartitionState()
    write(state, 8, 0)
    for number in range(5_000):
        write(state, 7, 2 * number + 1, sequence=number)
        end(state, 7, 2 * number + 2)
    end(state, 8, 10_001)
    state.apply(encode_command(AdvanceLogStart(3)), end_offset=10_002)
    assert len(state.aborted) == 5_000
    items = state.snapshot_items(3)
    assert sum(len(key) + len(value) for key, value in items) < 500
    replica = PartitionState()
    replica.load(items)
    assert replica.take_dirty() == []


def test_marker_that_comes_again_does_not_end_the_next_transaction() -> None:
    """A repeated marker does not end the next transaction.

    Under the first version both have one epoch, and a marker is identified by its transaction's
    number. This also holds on a replica restored from its log or from stored items.
    """
    state = PartitionState()
    write(state, 7, 0)
    state.apply_marker(7, 0, 5, commit=True, offset=1, index=2, timestamp=0, number=3)
    write(state, 7, 2, sequence=1)
    restarted = PartitionState()
    restarted.load(state.items())
    for one in (state, restarted):
        told = [
            one.producers.check_marker(Overlay(), 7, 0, 5, transaction_version=1, number=number)
            for number in (2, 3, 4, 0)
        ]
        assert told == [False, False, True, True], "an administrator says no number"


def test_marker_that_is_not_committed_yet_is_known_by_its_number() -> None:
    state, overlay = PartitionState(), Overlay()
    write(state, 7, 0)
    overlay.append_marker(7, 0, 5, 2, 3)
    overlay.append(7, 0, 1, 1, 2, 3, 0, is_transactional=True)
    again = state.producers.check_marker(overlay, 7, 0, 5, transaction_version=1, number=3)
    assert again is False
