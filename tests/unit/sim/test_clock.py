"""Virtual time: order, cancellation, and the effects of pause and stop on a process."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from vdl.clock import MS
from vdl.sim.clock import COMPACT_AT, NodeClock, VirtualTime
from vdl.sim.faults import CLOCK_HOLD_MS, SLEEP_MS, Sleep, WrongClock, WrongClockAtStart
from vdl.sim.options import Options
from vdl.sim.world import World


def test_events_of_one_instant_run_in_the_order_scheduled() -> None:
    """(time, sequence) is a total order, so a run is a function of its seed."""
    time, seen = VirtualTime(), list[int]()
    for i in (3, 1, 2):
        time.after(i // 3 * 5, lambda i=i: seen.append(i))  # type: ignore[misc]
    time.run_until(10)
    assert seen == [1, 2, 3]
    assert time.now_ns == 10


def test_run_until_does_not_run_what_is_due_later() -> None:
    """Skipping cancelled events never carries a run past its limit."""
    time, seen = VirtualTime(), list[str]()
    time.after(1, lambda: seen.append("cancelled")).cancel()
    time.after(5, lambda: seen.append("late"))
    time.run_until(3)
    assert seen == []
    assert time.now_ns == 3
    time.run_until(5)
    assert seen == ["late"]


def test_stopped_process_runs_nothing_more() -> None:
    """A killed process runs no timers."""
    time, seen = VirtualTime(), list[int]()
    clock = NodeClock(time)
    clock.call_later(5, lambda: seen.append(1))
    clock.stop()
    assert not time.step()
    assert seen == []


def test_paused_process_runs_what_came_due_when_resumed_in_order() -> None:
    """SIGSTOP delays everything, reorders nothing, and cancelled timers stay cancelled."""
    time, seen = VirtualTime(), list[int]()
    clock = NodeClock(time)
    clock.call_later(5, lambda: seen.append(5))
    clock.call_later(4, lambda: seen.append(4))
    taken_back = clock.call_later(6, lambda: seen.append(6))
    clock.pause()
    time.run_until(100)
    assert seen == []
    taken_back.cancel()
    clock.resume()
    time.run_until(100)
    assert seen == [4, 5]


def test_wall_clock_jump_leaves_monotonic_time_alone() -> None:
    """Only the wall clock jumps."""
    time = VirtualTime()
    clock = NodeClock(time, wall_base_ms=1000, offset_ns=7)
    time.run_until(2_000_000)
    clock.jump_wall(-500)
    assert clock.wall_ms() == 502
    assert clock.now_ns() == 2_000_007


def test_cancelled_timers_are_swept_from_the_heap() -> None:
    """Re-arming a timer forever must not grow the heap."""
    time = VirtualTime()
    kept = list[int]()
    time.after(50, lambda: kept.append(1))
    for _ in range(10 * COMPACT_AT):
        time.after(1000, lambda: None).cancel()
    assert len(time._heap) < 2 * COMPACT_AT
    time.run_until(2000)
    assert kept == [1]


def test_drifting_clock_stretches_seconds_and_timers_alike() -> None:
    """A process cannot detect drift: its timers fire by its own clock, never before."""
    for drift_ppm in (-50_000, -1, 0, 333, 50_000):
        time = VirtualTime()
        time.run_until(123_456_789)
        clock = NodeClock(time, offset_ns=5, drift_ppm=drift_ppm)
        late_ns = list[int]()

        def arm(clock: NodeClock, delay_ns: int, late_ns: list[int]) -> None:
            due_ns = clock.now_ns() + delay_ns
            clock.call_later(delay_ns, lambda: late_ns.append(clock.now_ns() - due_ns))

        for delay_ns in (0, 1, 999, 10_000_000, 1_200_000_000):
            arm(clock, delay_ns, late_ns)
        time.run_until(2_000_000_000)
        assert len(late_ns) == 5
        assert all(0 <= late <= 2 for late in late_ns), (drift_ppm, late_ns)


def test_watch_is_called_after_each_event_and_when_it_leaves_the_process() -> None:
    """One event may run in two processes: each is checked when the event leaves it."""
    time, seen = VirtualTime(), list[str]()
    one, other = NodeClock(time), NodeClock(time)
    one.watch = lambda: seen.append("one")
    other.watch = lambda: seen.append("other")

    def both() -> None:
        time.enter(one)
        time.enter(one)
        seen.append("crossing")
        time.enter(other)

    time.after(1, both)
    one.call_later(2, lambda: seen.append("event"))
    time.after(3, lambda: seen.append("world"))
    time.run_until(10)
    assert seen == ["crossing", "one", "other", "event", "one", "world"]


def _machines(count: int) -> SimpleNamespace:
    """Return a world of fake machines with wall clocks and processes."""

    class Machine:
        def __init__(self) -> None:
            self.life: object | None = object()
            self.wall_error_ms = 0
            self.kills = 0

        def kill(self) -> None:
            self.kills += 1
            self.life = None

        def start(self) -> None:
            self.life = object()

        def set_wall_error(self, error_ms: int) -> None:
            self.wall_error_ms = error_ms

    return SimpleNamespace(machines=[Machine() for _ in range(count)], time=VirtualTime())


@pytest.mark.parametrize(("servers", "wrong"), [(1, 1), (3, 1), (5, 2)])
@pytest.mark.parametrize("make", [WrongClock, WrongClockAtStart])
def test_wrong_clocks_stay_a_minority(servers: int, wrong: int, make: type[WrongClock]) -> None:
    """A majority's clocks are always right; the clock of a single server soon is."""
    world = _machines(servers)
    faults = [make() for _ in range(40)]
    rng = random.Random(servers)
    begun = [fault for fault in faults if fault.begin(world, rng)]  # type: ignore[arg-type]
    assert len(begun) == wrong
    assert sum(machine.wall_error_ms != 0 for machine in world.machines) == wrong
    assert sum(machine.kills for machine in world.machines) == (wrong if make.restarts else 0)
    assert all(machine.life is not None for machine in world.machines)
    world.time.run_until(CLOCK_HOLD_MS * MS // 2)
    still_wrong = sum(machine.wall_error_ms != 0 for machine in world.machines)
    assert still_wrong == (wrong if servers > 1 else 0)
    for fault in begun:
        fault.end(world)  # type: ignore[arg-type]
    assert not any(machine.wall_error_ms for machine in world.machines)


def test_sleep_moves_every_wall_clock_and_no_monotonic_one() -> None:
    """All wall clocks move: of servers, clients and later clients, and the world's true time."""
    world = World(1, Options(servers=3))
    client = world._client_clock()
    before = [machine.wall_base_ms for machine in world.machines]
    true_ms, now_ns = world.true_ms(), client.now_ns()
    assert Sleep().begin(world, random.Random(1))
    assert [machine.wall_base_ms for machine in world.machines] == [b + SLEEP_MS for b in before]
    assert client.wall_ms() == world._client_clock().wall_ms() == world.true_ms()
    assert world.true_ms() == true_ms + SLEEP_MS
    assert client.now_ns() == now_ns
