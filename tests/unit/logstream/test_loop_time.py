"""A server whose loop is late counts less of the silence as its leader's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vdl.clock import MS, until_next
from vdl.logstream.options import TICK_NS
from vdl.logstream.time.loop_time import BEAT_NS, GRACE_NS, SLOWEST, UNREAD_NS, LoopTime


class LateClock:
    """A loop that a test can delay."""

    def __init__(self) -> None:
        self.now = 10**12
        self.due: list[tuple[int, Callable[[], None]]] = []

    def now_ns(self) -> int:
        return self.now

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> None:
        self.due.append((self.now + delay_ns, fn))

    def pass_by(self, ns: int) -> None:
        """Let time pass without running timers."""
        self.now += ns

    def run(self, ns: int) -> None:
        """Let time pass, and run timers when they are due."""
        end = self.now + ns
        while self.due and min(due[0] for due in self.due) <= end:
            first = min(self.due, key=lambda due: due[0])
            self.due.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = max(self.now, end)


@pytest.fixture
def clock() -> LateClock:
    return LateClock()


@pytest.fixture
def time(clock: Any) -> LoopTime:
    made = LoopTime(clock)
    made.start()
    return made


def test_ticks_of_a_loop_in_time_are_real_ticks(clock: LateClock, time: LoopTime) -> None:
    began = time.tick()
    for _ in range(100):
        clock.run(BEAT_NS)
        clock.pass_by(GRACE_NS - 1)  # a turn of the maximum length that is still in time
        clock.run(0)
    assert (time.tick() - began) * TICK_NS >= clock.now_ns() - 10**12 - TICK_NS
    assert time.late_ns == 0
    assert time.lost_ns == 0


def test_ticks_that_pass_while_the_loop_is_late_count_for_a_quarter(
    clock: LateClock, time: LoopTime
) -> None:
    """This holds before the beat has run, too: frames are read before timers."""
    clock.run(BEAT_NS)
    began = time.tick()
    clock.pass_by(BEAT_NS + 2_000 * MS)
    seen = time.tick() - began
    assert seen == (BEAT_NS + 2_000 * MS // SLOWEST) // TICK_NS
    clock.pass_by(400 * MS)  # and it is not over yet
    assert time.tick() - began == (BEAT_NS + 2_400 * MS // SLOWEST) // TICK_NS
    clock.run(0)
    assert time.late_ns == 2_400 * MS
    clock.run(1_000 * MS)
    assert time.tick() - began == (BEAT_NS + 2_400 * MS // SLOWEST + 1_000 * MS) // TICK_NS


def test_time_never_stands_and_never_runs_back(clock: LateClock, time: LoopTime) -> None:
    """A dead leader is replaced for any lateness of the loop."""
    began, last = time.tick(), time.tick()
    for _ in range(100):
        for _ in range(10):
            clock.pass_by(37 * MS)
            assert time.tick() >= last
            last = time.tick()
        clock.run(0)
    passed = (clock.now_ns() - 10**12) // TICK_NS
    assert passed // SLOWEST <= last - began < passed // 2


@pytest.mark.parametrize("work_ms", [30, 60, 95])
def test_work_that_begins_with_the_beat_is_no_lateness(
    clock: LateClock, time: LoopTime, work_ms: int
) -> None:
    """Its timer is the first of two that are due together."""

    def sweep() -> None:
        time.beat()
        clock.pass_by(work_ms * MS)
        clock.call_later(until_next(clock.now_ns(), BEAT_NS), sweep)

    clock.due.insert(0, (clock.due[0][0], sweep))
    clock.run(50 * BEAT_NS)
    assert (time.late_total_ns, time.lost_ns, time.late_ns) == (0, 0, 0)
    clock.pass_by(800 * MS)
    clock.run(0)
    assert time.late_ns > 500 * MS


def test_lateness_is_forgotten_once_the_loop_is_in_time(clock: LateClock, time: LoopTime) -> None:
    clock.pass_by(BEAT_NS + 800 * MS)
    clock.run(0)
    assert time.late_ns == 800 * MS
    clock.run(3 * BEAT_NS)
    assert 300 * MS < time.late_ns < 450 * MS
    clock.run(3_000 * MS)
    assert time.late_ns < 1 * MS


def test_delay_until_a_tick_allows_for_what_was_lost(clock: LateClock, time: LoopTime) -> None:
    clock.pass_by(BEAT_NS + 1_000 * MS)
    tick = time.tick()
    assert 0 < time.delay_ns(tick + 1) <= TICK_NS
    assert time.delay_ns(tick) == time.delay_ns(tick - 50) == 0
    clock.run(0)
    clock.run(time.delay_ns(tick + 2))
    assert time.tick() == tick + 2


def test_loop_that_leaves_more_unread_than_it_handles_is_late(clock: Any) -> None:
    """Its turns are short, and its beats in time; the unread data may be its leader's messages."""
    unread_ns = UNREAD_NS - 1
    time = LoopTime(clock)
    time.start(lambda: unread_ns)
    clock.run(4 * BEAT_NS)
    assert time.lost_ns == time.late_ns == 0, "that was a burst"
    unread_ns = UNREAD_NS
    clock.run(BEAT_NS)
    assert time.late_ns == 0, "it is from now on"
    began = time.tick()
    clock.run(8 * BEAT_NS)
    assert time.tick() - began == 8 * BEAT_NS // SLOWEST // TICK_NS
    assert time.late_ns == time.late_total_ns == 8 * BEAT_NS
    unread_ns = 0
    clock.run(BEAT_NS)
    began = time.tick()
    clock.run(8 * BEAT_NS)
    assert time.tick() - began == 8 * BEAT_NS // TICK_NS
    assert time.late_total_ns == 9 * BEAT_NS


@pytest.mark.parametrize("ticks", [1, 2, 60])
def test_timer_of_a_loop_that_leaves_things_unread_is_not_set_again_and_again(
    clock: Any, ticks: int
) -> None:
    """Timers set a little short of the tick would end in endless timers of a nanosecond."""
    time = LoopTime(clock)
    time.start(lambda: UNREAD_NS)
    clock.run(BEAT_NS)
    due, woken = time.tick() + ticks, 0
    while time.tick() < due:
        clock.run(time.delay_ns(due))
        woken += 1
    assert woken <= 2 + ticks // 4


def test_age_leaves_out_what_was_lost_since_and_only_that(clock: LateClock, time: LoopTime) -> None:
    """Silence is measured from the leader's last message, at any time."""
    long_ago = clock.now_ns()
    clock.pass_by(BEAT_NS + 400 * MS)
    clock.run(0)
    between = clock.now_ns()
    clock.run(100 * MS)
    clock.pass_by(BEAT_NS + 400 * MS)
    middle = clock.now_ns() - 200 * MS
    assert time.age_ns(middle) == 200 * MS // SLOWEST
    assert time.age_ns(between) == 100 * MS + BEAT_NS + 400 * MS // SLOWEST
    assert time.age_ns(long_ago) == 100 * MS + 2 * (BEAT_NS + 400 * MS // SLOWEST)
    clock.run(0)
    assert time.age_ns(clock.now_ns()) == 0


def test_closed_time_beats_no_more(clock: LateClock, time: LoopTime) -> None:
    time.close()
    clock.run(10 * BEAT_NS)
    assert clock.due == []


# --- with real groups ---------------------------------------------------------------------------


def hold_up(cluster: Any, ms: int) -> None:
    """Pause all servers, as on one overloaded machine.

    Time passes, and neither timers nor messages are handled.
    """
    for node in cluster.nodes.values():
        node.clock.pause()
    cluster.run(ms)
    for node in cluster.nodes.values():
        node.clock.resume()


def test_servers_that_were_all_late_keep_their_leaders(cluster: Any) -> None:
    """For twice an election timeout no server heard another, because none ran."""
    groups = [cluster.create_topic(f"t{n}") for n in range(20)]
    cluster.run(2_000)
    before = {g: (cluster.leader(g).group.node.term, cluster.leader(g)) for g in groups}
    for _ in range(5):
        hold_up(cluster, 1_200)
        cluster.run(150)
    cluster.run(1_000)
    assert {g: (cluster.leader(g).group.node.term, cluster.leader(g)) for g in groups} == before


def test_dead_leader_is_replaced_in_the_normal_time(cluster: Any) -> None:
    """Its links stay, as with a stopped process: only silence shows it."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    old = cluster.leader(group_id)
    (silent,) = [node for node in cluster.nodes.values() if node.host.stream(group_id) is old]
    silent.clock.stop()
    cluster.run(2 * cluster.options.election_ticks * TICK_NS / MS + 100)
    assert cluster.leader(group_id) is not old
