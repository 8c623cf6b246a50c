"""Rate of readers that are far behind: faster than producers, fair, and at least a floor."""

from __future__ import annotations

from random import Random

import pytest

from vdl.kafka.partitions.ingest_rate import SLOT_NS, IngestRate
from vdl.kafka.partitions.read_throttle import (
    AT_WORK_NS,
    BURST_NS,
    GAIN,
    READ_BYTES_MAX,
    WAIT_NS_MAX,
    Reader,
    ReadThrottle,
)  # fmt: skip

SECOND = 1_000_000_000
STEP = 10_000_000
MB = 1_000_000
FLOOR = 1 * MB
PAUSED = BURST_NS * MB // SECOND
"""Bytes missed in a pause, or made up for after it, for each MB a second."""


def run(
    pace: ReadThrottle,
    seconds: int,
    *,
    ingest: dict[int, int],
    readers: dict[Reader, int],
    asking: int = READ_BYTES_MAX,
) -> dict[Reader, list[int]]:
    """Return the bytes that each reader was given in each second of virtual time.

    `ingest`: bytes a second by group. `readers`: the most bytes a second that each can take.
    Nothing is acknowledged, so readers get only their guaranteed rate.
    """
    given = {reader: [0] * seconds for reader in readers}
    due = dict.fromkeys(readers, 0)
    for now_ns in range(0, seconds * SECOND, STEP):
        for group, rate in ingest.items():
            pace.produced(group, rate * STEP // SECOND, now_ns)
        for reader in sorted(readers):
            while due[reader] < now_ns + STEP:
                at_ns = max(due[reader], now_ns)
                admission = pace.ask(reader, asking, at_ns)
                begin_ns = at_ns + admission.wait_ns
                if begin_ns < seconds * SECOND:
                    given[reader][begin_ns // SECOND] += admission.bytes
                due[reader] = begin_ns + admission.bytes * SECOND // readers[reader]
    return given


@pytest.mark.parametrize("rate", [100_000, 4 * MB, 60 * MB, 200 * MB])
def test_single_reader_gets_twice_what_is_produced(rate: int) -> None:
    """A reader that always requests more catches up with its producers at any produce rate."""
    given = run(ReadThrottle(FLOOR), 6, ingest={1: rate}, readers={(1, 1): 10_000 * MB})
    for taken in given[1, 1][1:]:
        assert taken >= GAIN * rate - READ_BYTES_MAX
        assert taken >= FLOOR - READ_BYTES_MAX
        # And no more than that: a producer waits for each acknowledgement.
        assert taken <= 1.15 * max(FLOOR, GAIN * rate) + READ_BYTES_MAX


def test_reader_beside_a_producer_of_single_records_gets_the_floor() -> None:
    """Producers that wait for each acknowledgement are protected as by a constant rate."""
    given = run(ReadThrottle(32 * MB), 4, ingest={1: 1 * MB}, readers={(1, 1): 10_000 * MB})
    for taken in given[1, 1]:
        assert abs(taken - 32 * MB) <= 2 * READ_BYTES_MAX


def test_single_reader_that_takes_less_gets_all_it_takes() -> None:
    given = run(ReadThrottle(FLOOR), 6, ingest={1: 40 * MB}, readers={(1, 1): 50 * MB})
    taken = given[1, 1][1:]
    assert sum(taken) >= 50 * MB * len(taken) - READ_BYTES_MAX - PAUSED * 50
    assert sorted(taken)[1] >= 50 * MB - READ_BYTES_MAX


def test_readers_of_random_loads_gain_each() -> None:
    """A reader of any partition gets twice its produce rate, or all it can take.

    This holds whatever others do.
    """
    for seed in range(15):
        rng = Random(seed)
        ingest = {group: rng.choice((0, 1, 5, 20)) * MB for group in range(1, 4)}
        readers = {
            (connection, rng.randint(1, 3)): rng.choice((2, 30, 10_000)) * MB
            for connection in range(rng.randint(1, 6))
        }
        asking = rng.choice((READ_BYTES_MAX // 8, READ_BYTES_MAX, 50 << 20))
        given = run(ReadThrottle(FLOOR), 4, ingest=ingest, readers=readers, asking=asking)
        for reader, takes in readers.items():
            wanted = min(takes, GAIN * ingest[reader[1]])
            paused = PAUSED * takes // MB if takes < 1.5 * wanted else 0  # cannot make up for it
            taken = sum(given[reader][1:])
            assert taken >= 3 * 0.98 * wanted - 2 * READ_BYTES_MAX - paused, (seed, reader, wanted)


def test_reader_that_asks_for_more_gets_no_larger_share() -> None:
    """Two readers without producers, one requesting fifty times as much at once."""
    pace = ReadThrottle(20 * MB)
    due, given = {1: 0, 2: 0}, {1: 0, 2: 0}
    for now_ns in range(0, 5 * SECOND, STEP):
        pace.produced(9, 1, now_ns)
        for connection, asked in ((1, 50 << 20), (2, READ_BYTES_MAX)):
            while due[connection] < now_ns + STEP:
                at_ns = max(due[connection], now_ns)
                admission = pace.ask((connection, connection), asked, at_ns)
                due[connection] = at_ns + admission.wait_ns + 1
                given[connection] += admission.bytes
    assert max(given.values()) <= 1.1 * min(given.values())
    assert given[1] + given[2] <= 100 * MB + PAUSED * 20 + 4 * READ_BYTES_MAX


def test_fast_producers_readers_do_not_take_the_share_of_others() -> None:
    """Three readers of a busy partition leave a reader of a quiet one its part of the floor."""
    readers = {(connection, 1): 10_000 * MB for connection in range(3)} | {(9, 2): 10_000 * MB}
    given = run(ReadThrottle(40 * MB), 4, ingest={1: 20 * MB}, readers=readers)
    assert min(given[9, 2][1:]) >= 40 * MB // 4 - 2 * READ_BYTES_MAX
    for connection in range(3):
        assert min(given[connection, 1][1:]) >= GAIN * 20 * MB - 2 * READ_BYTES_MAX


def test_no_reader_waits_longer_than_the_limit() -> None:
    """A thousand readers at the rate of one: each is admitted within a second."""
    pace = ReadThrottle(1_000)
    pace.produced(1, 1, 0)
    waits = [pace.ask((n, 2), READ_BYTES_MAX, 0).wait_ns for n in range(1_000)]
    assert max(waits) == WAIT_NS_MAX
    pace.produced(1, 1, SECOND // 2)
    assert pace.ask((1_001, 2), READ_BYTES_MAX, SECOND // 2).wait_ns <= WAIT_NS_MAX


def test_what_was_not_found_is_given_back() -> None:
    """Small results do not use up the share reserved for large requests."""
    pace = ReadThrottle(READ_BYTES_MAX)
    pace.produced(1, 1, 0)
    for _ in range(100):
        admission = pace.ask((1, 2), READ_BYTES_MAX, 0)
        assert admission.wait_ns == 0
        pace.give_back(admission)
    admission = pace.ask((1, 2), READ_BYTES_MAX, 0)
    pace.begin(admission, 0)
    pace.found(admission, READ_BYTES_MAX // 10, 0)
    assert abs(pace.ask((1, 2), 1, 0).wait_ns - SECOND // 10) < 1_000


def test_what_took_nothing_gives_nothing_back() -> None:
    """A reader admitted at the wait limit took no share, so it must not return one."""
    pace = ReadThrottle(READ_BYTES_MAX // 4)
    pace.produced(1, 1, 0)
    pace.ask((1, 2), READ_BYTES_MAX, 0)
    for n in range(100):
        admission = pace.ask((10 + n, 2), READ_BYTES_MAX, 0)
        assert admission.wait_ns == WAIT_NS_MAX
        pace.give_back(admission)
    assert pace.ask((3, 2), READ_BYTES_MAX, 0).wait_ns == WAIT_NS_MAX


def test_readers_are_not_paced_when_producers_have_gone() -> None:
    pace = ReadThrottle(1_000)
    pace.produced(1, 60 * MB, 0)
    pace.ask((1, 2), READ_BYTES_MAX, 0)
    for _ in range(10):
        admission = pace.ask((1, 2), 50 << 20, AT_WORK_NS)
        assert (admission.wait_ns, admission.bytes) == (0, 50 << 20)


def test_readers_are_fed_at_once_when_busy_producers_have_ended() -> None:
    """Producers that were busy have ended after a tenth of a second without a batch.

    They have not while one waits for its acknowledgement, nor if they send two batches a second.
    """
    pace = ReadThrottle(1_000)
    for now_ns in range(0, 2 * SECOND, STEP):
        pace.produced(1, 60_000, now_ns)
        pace.waiting -= 1
    last_ns = pace.produced_ns
    assert pace.ask((1, 2), READ_BYTES_MAX, last_ns + STEP).is_paced
    pace.waiting += 1
    assert pace.ask((1, 2), READ_BYTES_MAX, last_ns + SECOND // 2).is_paced
    pace.waiting -= 1
    assert not pace.ask((1, 2), READ_BYTES_MAX, last_ns + SECOND // 8).is_paced
    for now_ns in range(3 * SECOND, 13 * SECOND, SECOND // 2):
        pace.produced(1, 1_000, now_ns)
        pace.waiting -= 1
    assert pace.ask((1, 2), READ_BYTES_MAX, pace.produced_ns + SECOND // 2).is_paced


def test_very_many_readers_get_smaller_reads_and_not_more_in_all() -> None:
    """Two hundred at the floor: with whole reads a round would take six seconds."""
    readers = {(n, 2): 10_000 * MB for n in range(200)}
    given = run(ReadThrottle(32 * MB), 6, ingest={1: 1 * MB}, readers=readers)
    for second in range(2, 6):
        assert sum(given[reader][second] for reader in readers) <= 1.3 * 32 * MB
    totals = [sum(given[reader][2:]) for reader in readers]
    assert min(totals) > 0.6 * max(totals)


def test_pace_forgets_who_has_gone() -> None:
    """State of readers and partitions covers the last seconds, however long it runs."""
    pace = ReadThrottle(1_000 * MB)
    for n in range(5_000):
        pace.produced(n, 1, n * STEP)
        pace.ask((n, n), 1, n * STEP)
    assert len(pace._last) <= 3 * SECOND // STEP
    assert len(pace._by_group) <= 3 * SECOND // STEP


def test_ingest_rate_is_that_of_the_last_second() -> None:
    """Compared to the exact sum: never less than the last second's, never more than 1.1 times."""
    rng = Random(7)
    rate = IngestRate()
    came: list[tuple[int, int]] = []
    now_ns = 5 * SECOND
    for _ in range(2_000):
        now_ns += (
            rng.choice((0, 1_000, SLOT_NS // 3, SLOT_NS, 3 * SECOND)) if rng.random() < 0.3 else 1
        )
        if rng.random() < 0.5:
            count = rng.randint(1, 1_000)
            came.append((now_ns, count))
            rate.add(count, now_ns)
        found = rate.per_second(now_ns)
        assert found >= sum(count for at, count in came if at > now_ns - SECOND)
        assert found <= sum(count for at, count in came if at > now_ns - SECOND - SLOT_NS)
