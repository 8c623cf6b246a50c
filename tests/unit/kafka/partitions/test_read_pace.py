"""Read throttle driven by acknowledgement times: in virtual time, on modelled machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from vdl.kafka.partitions.read_pace import (
    PAUSE_EVERY_NS,
    PAUSE_NS,
    RATE_MAX,
    WORSE_PERCENT,
    ReadPace,
)
from vdl.kafka.partitions.read_throttle import GAIN, READ_BYTES_MAX, Admission, Reader, ReadThrottle

SECOND = 1_000_000_000
MS = 1_000_000
STEP = 10 * MS
MB = 1_000_000
FLOOR = 8 * MB
INGEST = 20 * MB
MAY_BE = WORSE_PERCENT / 100
"""Allowed acknowledgement time beside readers, as a multiple of that without readers."""


@dataclass(slots=True)
class Acknowledged:
    requests: int = 0
    total_ns: int = 0


def no_cost(now_ns: int, read: int) -> int:
    """Return the same acknowledgement time under any read load."""
    return 2 * MS


def queue_of(capacity: int) -> Callable[[int, int], int]:
    """Return a model of a server with this capacity in bytes a second, slower the busier it is."""

    def taken_ns(now_ns: int, read: int) -> int:
        left = max(capacity // 50, capacity - INGEST - read)
        return 2 * MS * capacity // left

    return taken_ns


@dataclass(slots=True)
class Machine:
    """Server with producers and readers.

    `taken_ns(now, bytes a second read lately)` is the time of an acknowledgement then; `takes` is
    the number of bytes a second that each reader can take.
    """

    taken_ns: Callable[[int, int], int]
    takes: dict[Reader, int]
    ingest: dict[int, int] = field(default_factory=lambda: {1: INGEST})
    asks: dict[Reader, int] = field(default_factory=dict)
    """Largest read of some readers."""
    acknowledgements: int = 5
    """Number in each step."""
    now_ns: int = 0
    lately: list[int] = field(default_factory=lambda: [0] * 10)
    read_ns: int = 0
    """Duration of a read."""
    due: dict[Reader, tuple[int, Admission | None]] = field(default_factory=dict)
    """Time of each reader's next request, or its admission."""
    under_way: set[Reader] = field(default_factory=set)
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    throttle: ReadThrottle = field(default_factory=lambda: ReadThrottle(FLOOR))

    def __post_init__(self) -> None:
        self.throttle.pace.watch(self.acknowledged)

    def run(self, seconds: float) -> tuple[dict[Reader, int], int]:
        """Return (bytes a second that each reader got, mean time of an acknowledgement)."""
        given = dict.fromkeys(self.takes, 0)
        requests, total_ns = self.acknowledged.requests, self.acknowledged.total_ns
        end_ns = self.now_ns + int(seconds * SECOND)
        while self.now_ns < end_ns:
            taken_ns = self.taken_ns(self.now_ns, sum(self.lately) * SECOND // (10 * STEP))
            self.acknowledged.requests += self.acknowledgements
            self.acknowledged.total_ns += self.acknowledgements * taken_ns
            for group, rate in self.ingest.items():
                self.throttle.produced(group, rate * STEP // SECOND, self.now_ns)
                self.throttle.waiting -= 1
            self.lately = [*self.lately[1:], 0]
            while due := self._first_due():
                self._go_on(*due, given)
            self.now_ns += STEP
        count = self.acknowledged.requests - requests
        return (
            {reader: int(count / seconds) for reader, count in given.items()},
            (self.acknowledged.total_ns - total_ns) // max(1, count),
        )

    def _first_due(self) -> tuple[Reader, int] | None:
        """Return (reader, time) of the first that acts in this step, if any."""
        due = {reader: max(self.due.get(reader, (0,))[0], self.now_ns) for reader in self.takes}
        first = min(due, key=lambda reader: (due[reader], reader), default=None)
        if first is None or due[first] >= self.now_ns + STEP:
            return None
        return first, due[first]

    def _go_on(self, reader: Reader, at_ns: int, given: dict[Reader, int]) -> None:
        """Take the reader's next step: request admission, begin to read, or finish a read."""
        _, admission = self.due.get(reader, (0, None))
        if admission is None:
            admission = self.throttle.ask(reader, self.asks.get(reader, READ_BYTES_MAX), at_ns)
            self.due[reader] = at_ns + admission.wait_ns, admission
            return
        if reader not in self.under_way:
            self.under_way.add(reader)
            self.throttle.begin(admission, at_ns)
            if self.read_ns:
                self.due[reader] = at_ns + self.read_ns, admission
                return
        self.under_way.remove(reader)
        given[reader] += admission.bytes
        self.lately[-1] += admission.bytes
        self.throttle.found(admission, admission.bytes, at_ns)
        self.due[reader] = at_ns + admission.bytes * SECOND // self.takes[reader], None


def test_reader_that_nobody_feels_gets_all_it_takes() -> None:
    """Work-conserving: neither the floor nor the produce rate limits readers if there is room."""
    machine = Machine(no_cost, {})
    machine.run(3)
    machine.takes[1, 1] = 500 * MB
    machine.run(3)
    given, _ = machine.run(20)
    assert given[1, 1] >= 0.95 * 500 * MB


def test_reader_that_is_there_before_the_first_producer_is_not_held_back() -> None:
    """Without a baseline of acknowledgements beside no readers, a reader is not slowed."""
    machine = Machine(lambda now_ns, read: 20 * MS, {(1, 1): 400 * MB})
    machine.acknowledgements = 0
    machine.run(0.02)
    machine.acknowledgements = 5
    machine.run(0.5)
    given, _ = machine.run(8)
    assert machine.throttle.pace.usual_ns == 20 * MS
    assert given[1, 1] >= 0.5 * 400 * MB


@pytest.mark.parametrize("read_ms", [30, 45, 60, 80, 110])
def test_reads_that_take_long_are_not_taken_for_none(read_ms: int) -> None:
    """Acknowledgements beside a slow read, or begun beside one, do not count as without readers."""

    def taken_ns(now_ns: int, read: int) -> int:
        nonlocal felt_ns
        if machine.throttle.pace.reading:
            felt_ns = now_ns + 60 * MS
        return 60 * MS if now_ns < felt_ns else 5 * MS

    felt_ns = 0
    machine = Machine(taken_ns, {}, read_ns=read_ms * MS)
    machine.run(3)
    machine.takes[1, 1] = 400 * MB
    machine.run(30)
    assert machine.throttle.pace.usual_ns <= 6 * MS


@pytest.mark.parametrize("capacity", [150 * MB, 300 * MB, 1_000 * MB])
def test_reader_gets_what_producers_leave(capacity: int) -> None:
    """Converges to the allowed acknowledgement time, reached at another rate on each machine."""
    machine = Machine(queue_of(capacity), {})
    _, alone_ns = machine.run(3)
    machine.takes[1, 1] = 10_000 * MB
    machine.run(10)
    for _ in range(4):
        given, beside_ns = machine.run(10)
        assert beside_ns <= (MAY_BE + 0.1) * alone_ns + MS
        # Half of the remaining capacity doubles the acknowledgement time.
        assert given[1, 1] >= 0.9 * (capacity - INGEST) / 2


def test_reader_that_is_felt_too_much_still_gains() -> None:
    """Producers affected by every read do not starve a reader: it gets twice the produce rate."""
    machine = Machine(lambda now_ns, read: 2 * MS + read, {})
    machine.run(3)
    machine.takes[1, 1] = 10_000 * MB
    machine.run(5)
    given, _ = machine.run(30)
    assert 0.99 * GAIN * INGEST <= given[1, 1] <= 1.2 * GAIN * INGEST


def test_readers_share_fairly_whatever_they_ask_for() -> None:
    """Ten readers on ten partitions, some busier, and some requesting fifty times as much."""
    ingest = {group: (5 if group == 1 else 1) * MB for group in range(1, 11)}
    takes = {(group, group): 10_000 * MB for group in ingest}
    asks = {reader: 50 << 20 for reader in takes if reader[0] % 2}
    machine = Machine(queue_of(300 * MB), {}, ingest, asks)
    machine.run(3)
    machine.takes |= takes
    machine.run(5)
    given, _ = machine.run(20)
    assert max(given.values()) <= 1.1 * min(given.values())
    for (_, group), rate in given.items():
        assert rate >= GAIN * ingest[group]


def test_disk_that_became_slow_by_itself_does_not_hold_readers_up() -> None:
    """The baseline is measured again where there are always readers."""
    slow_from_ns = 20 * SECOND

    def taken_ns(now_ns: int, read: int) -> int:
        return (20 if now_ns >= slow_from_ns else 1) * 2 * MS

    machine = Machine(taken_ns, {})
    machine.run(3)
    machine.takes[1, 1] = 400 * MB
    machine.run(17)
    machine.run(6 * PAUSE_EVERY_NS / SECOND)
    given, _ = machine.run(20)
    assert given[1, 1] >= 0.9 * 400 * MB


def test_producers_that_became_faster_are_heard_again() -> None:
    """The time of a server that was slow when readers came does not remain the baseline."""
    slow_until_ns = 20 * SECOND
    quick = queue_of(200 * MB)

    def taken_ns(now_ns: int, read: int) -> int:
        return 200 * MS if now_ns < slow_until_ns else quick(now_ns, read)

    machine = Machine(taken_ns, {})
    machine.run(3)
    machine.takes[1, 1] = 10_000 * MB
    machine.run(17 + 3 * PAUSE_EVERY_NS / SECOND)
    _, beside_ns = machine.run(20)
    assert beside_ns <= 3 * quick(0, 0)


def test_reader_is_fed_though_nobody_knows_what_is_usual() -> None:
    """Covers a server that has just started, with readers from the beginning."""
    machine = Machine(no_cost, {(1, 1): 400 * MB})
    machine.run(10)
    given, _ = machine.run(10)
    assert given[1, 1] >= 0.95 * 400 * MB


def test_clock_that_jumps_changes_nothing_for_long() -> None:
    """After an hour of sleep earlier measurements do not count, and readers continue."""
    machine = Machine(queue_of(300 * MB), {})
    machine.run(3)
    machine.takes[1, 1] = 10_000 * MB
    machine.run(20)
    before, _ = machine.run(20)
    machine.now_ns += 3_600 * SECOND
    machine.acknowledged.requests += 1
    machine.acknowledged.total_ns += 3_600 * SECOND
    machine.run(5)
    after, _ = machine.run(20)
    assert after[1, 1] >= 0.7 * before[1, 1]


def test_readers_that_nobody_feels_are_not_held_up_by_noise() -> None:
    """Acknowledgement times vary by themselves, one in twenty by very much."""
    rng = Random(5)

    def taken_ns(now_ns: int, read: int) -> int:
        return int(4 * MS * rng.uniform(0.5, 1.5) * (10 if rng.random() < 0.05 else 1))

    machine = Machine(taken_ns, {})
    machine.run(3)
    machine.takes[1, 1] = 400 * MB
    machine.run(10)
    given, _ = machine.run(60)
    assert given[1, 1] >= 2.5 * GAIN * INGEST


@pytest.mark.parametrize("seed", range(5))
def test_times_that_vary_by_themselves_change_nothing(seed: int) -> None:
    """Each tenth of a second the disk has another speed.

    Readers get what they would get if it always had its average speed, and so do producers.
    """
    rng = Random(seed)
    factors = [rng.lognormvariate(0, 0.6) for _ in range(2_000)]
    even = queue_of(300 * MB)

    def taken_ns(now_ns: int, read: int) -> int:
        return int(factors[now_ns // (100 * MS)] * even(now_ns, read))

    machine = Machine(taken_ns, {})
    machine.acknowledgements = 1
    _, alone_ns = machine.run(20)
    machine.takes[1, 1] = 10_000 * MB
    machine.run(10)
    given, beside_ns = machine.run(100)
    assert given[1, 1] >= 0.8 * (300 * MB - INGEST) / 2
    assert beside_ns <= 1.3 * MAY_BE * alone_ns


def test_servers_that_share_what_is_left_do_not_drive_each_other() -> None:
    """The baseline is the time while no server has readers.

    Each server waits for the disks and processors of the others, and feeds readers of its own.
    """
    all_three: list[Machine] = []

    def taken_ns(now_ns: int, read: int) -> int:
        total = sum(sum(one.lately) for one in all_three) * SECOND // (10 * STEP)
        return queue_of(600 * MB)(now_ns, total)

    all_three += [Machine(taken_ns, {}) for _ in range(3)]

    def run(seconds: int) -> int:
        times = []
        for _ in range(seconds * SECOND // STEP):
            times += [machine.run(STEP / SECOND)[1] for machine in all_three]
        return sum(times) // len(times)

    alone_ns = run(3)
    for machine in all_three:
        machine.takes[1, 1] = 10_000 * MB
        run(3)
    run(30)
    assert run(60) <= (MAY_BE + 0.1) * alone_ns + MS


def test_rare_acknowledgements_are_waited_for() -> None:
    """Two a second carry as much information, but later: a harmful reader is still slowed."""
    machine = Machine(lambda now_ns, read: 2 * MS + read, {}, {1: 1_000})
    machine.acknowledgements = 0
    pace = machine.throttle.pace

    def two_a_second(seconds: int) -> dict[Reader, int]:
        given: dict[Reader, int] = {}
        for _ in range(2 * seconds):
            machine.acknowledgements = 1
            machine.run(0.01)
            machine.acknowledgements = 0
            given, _ = machine.run(0.49)
        return given

    two_a_second(5)
    assert pace.usual_ns
    machine.takes[1, 1] = 10_000 * MB
    given = two_a_second(20)
    assert given[1, 1] <= 2 * FLOOR


def test_acknowledgements_that_do_not_come_are_no_sign_of_room() -> None:
    """Covers a journal that hangs: everything waits, and nothing completes to be measured."""
    machine = Machine(queue_of(1_000 * MB), {})
    machine.run(3)
    machine.takes[1, 1] = 10_000 * MB
    machine.run(10)
    machine.acknowledgements = 0
    for _ in range(10):
        machine.throttle.waiting += 1
        machine.run(0.5)
    assert machine.throttle.pace.rate <= 2.5 * GAIN * INGEST


def test_pauses_are_short_and_rare_and_made_up_for() -> None:
    """No reader is held for longer than `PAUSE_NS`, also while nothing is acknowledged."""
    pace = ReadPace()
    paused = 0
    for now_ns in range(0, 100 * SECOND, STEP):
        pace.look(now_ns, FLOOR, is_waited_for=True)
        assert pace.pause_end_ns <= now_ns + PAUSE_NS
        if now_ns >= pace.pause_end_ns:
            pace.fed(now_ns)
        else:
            paused += STEP
    assert paused <= 100 * SECOND * PAUSE_NS // PAUSE_EVERY_NS * 1.2 + PAUSE_NS


@pytest.mark.parametrize("ahead_ns", [0, 3_700 * MS, 8_100 * MS])
def test_pauses_begin_when_those_of_all_servers_do(ahead_ns: int) -> None:
    """Applies for any offset of the local clock and any arrival of readers."""
    pace = ReadPace(lambda now_ns: now_ns + ahead_ns)
    pace.usual_ns = MS
    ends: set[int] = set()
    for now_ns in range(2 * SECOND, 100 * SECOND, STEP):
        pace.look(now_ns, FLOOR, is_waited_for=True)
        if now_ns >= pace.pause_end_ns:
            pace.fed(now_ns)
        else:
            ends.add(pace.pause_end_ns)
    assert len(ends) >= 9
    for end_ns in ends:
        assert (end_ns - PAUSE_NS + ahead_ns) % PAUSE_EVERY_NS < STEP


def test_agreed_time_that_goes_back_does_not_pause_twice() -> None:
    behind = [0]
    pace = ReadPace(lambda now_ns: now_ns - behind[0])
    pauses = set()
    for now_ns in range(0, 100 * SECOND, STEP):
        behind[0] = (now_ns // SECOND % 3) * 40 * MS
        pace.look(now_ns, FLOOR, is_waited_for=True)
        pauses.add(pace.pause_end_ns)
        if now_ns >= pace.pause_end_ns:
            pace.fed(now_ns)
    assert len(pauses) <= 12


def test_pace_of_random_loads_stays_within_its_bounds() -> None:
    """Never below the guaranteed rate of readers, never above the limit."""
    for seed in range(20):
        rng = Random(seed)
        pace, acknowledged = ReadPace(), Acknowledged()
        pace.watch(acknowledged)
        now_ns = rng.randrange(10**18)
        for _ in range(2_000):
            now_ns += rng.choice((0, 1, MS, 30 * MS, 120 * MS, 700 * MS, 3_000 * MS))
            least = rng.choice((1, FLOOR, 500 * MB))
            if rng.random() < 0.7:
                count = rng.choice((1, 3, 40))
                acknowledged.requests += count
                acknowledged.total_ns += count * rng.choice((0, MS, 90 * MS, 5 * SECOND))
            if rng.random() < 0.5:
                pace.fed(now_ns)
            if rng.random() < 0.5:
                pace.short(now_ns + rng.choice((0, 20 * MS, SECOND)))
            rate = pace.look(now_ns, least, is_waited_for=rng.random() < 0.5)
            assert least <= rate <= RATE_MAX
            assert pace.pause_end_ns <= now_ns + PAUSE_NS
