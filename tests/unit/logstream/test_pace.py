"""Feeding followers from disk: a limit in bytes, over all of them."""

from vdl.clock import MS
from vdl.logstream.pace import BURST_NS, Pace
from vdl.sim.clock import NodeClock, VirtualTime

RATE = 1_000_000


def test_reads_beyond_the_rate_wait_their_turn() -> None:
    """In order; none is lost, none before its time."""
    time = VirtualTime()
    pace = Pace(NodeClock(time), RATE)
    done: list[tuple[int, float]] = []
    for number in range(40):
        pace.run(RATE // 20, lambda n=number: done.append((n, time.now_ns)))
    time.run_until(3_000 * MS)
    assert [number for number, _ in done] == list(range(40))
    for number, at_ns in done:
        assert at_ns >= number * 50 * MS - BURST_NS
    assert done[-1][1] <= 2_000 * MS


def test_reads_that_find_little_leave_their_time_to_others() -> None:
    """A thousand groups that miss one small entry each are fed at once, not a second each."""
    time = VirtualTime()
    clock = NodeClock(time)
    pace = Pace(clock, RATE)
    done: list[int] = []

    def ended() -> None:
        done.append(time.now_ns)
        pace.found_less(RATE - 100)

    for _ in range(1_000):
        pace.run(RATE, lambda: clock.call_later(MS, ended))
    time.run_until(2_000 * MS)
    assert len(done) == 1_000


def test_read_that_finds_more_makes_others_wait() -> None:
    """A batch larger than what was asked for counts as it is."""
    time = VirtualTime()
    pace = Pace(NodeClock(time), RATE)
    done: list[int] = []
    pace.run(100, lambda: None)
    pace.found_less(100 - RATE)
    pace.run(100, lambda: done.append(time.now_ns))
    time.run_until(500 * MS)
    assert done == []
    time.run_until(2_000 * MS)
    assert len(done) == 1


def test_idle_time_is_not_saved_up() -> None:
    """After an hour of nothing the first second is like any other."""
    time = VirtualTime()
    pace = Pace(NodeClock(time), RATE)
    time.run_until(3_600_000 * MS)
    done: list[int] = []
    for _ in range(20):
        pace.run(RATE // 10, lambda: done.append(time.now_ns))
    time.run_until(time.now_ns + 1_000 * MS)
    assert 10 <= len(done) <= 12
