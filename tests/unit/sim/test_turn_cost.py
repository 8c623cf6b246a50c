"""Turns of a loop that take time: events due meanwhile, and the cost of lateness for servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vdl.clock import MS
from vdl.logstream.time import loop_time
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.options import STALL_MS, Options
from vdl.sim.turn_cost import TurnCost
from vdl.sim.world import World


def test_what_is_due_in_a_turn_waits_for_the_next_one_and_is_one_turn() -> None:
    time, seen = VirtualTime(), list[tuple[str, int]]()
    clock = NodeClock(time)
    clock.stall_ns = 10

    def at(name: str, when_ns: int) -> None:
        clock.call_later(when_ns, lambda: seen.append((name, time.now_ns)))

    at("a", 0)
    at("b", 3)
    at("c", 7)
    at("d", 12)
    time.run_until(100)
    assert seen == [("a", 0), ("b", 10), ("c", 10), ("d", 20)]


def test_turn_takes_what_its_meter_says() -> None:
    time, seen, costs = VirtualTime(), list[int](), [5, 5, 0, 7]
    clock = NodeClock(time)
    clock.meter = lambda: costs.pop(0)
    for when_ns in (0, 0, 20, 21, 22):
        clock.call_later(when_ns, lambda: seen.append(time.now_ns))
        costs.append(0)
    time.run_until(100)
    assert seen == [0, 0, 20, 21, 28]


def test_process_that_is_busy_and_paused_goes_on_when_it_is_neither() -> None:
    time, seen = VirtualTime(), list[int]()
    clock = NodeClock(time)
    clock.stall_ns = 10
    clock.call_later(0, lambda: seen.append(time.now_ns))
    clock.call_later(5, lambda: seen.append(time.now_ns))
    time.run_until(6)
    clock.pause()
    time.run_until(30)
    assert seen == [0]
    clock.resume()
    time.run_until(60)
    assert seen == [0, 30]


def test_process_that_ends_in_a_turn_runs_nothing_more() -> None:
    time, seen = VirtualTime(), list[int]()
    clock = NodeClock(time)
    clock.stall_ns = 10
    clock.call_later(0, lambda: seen.append(0))
    clock.call_later(5, lambda: seen.append(5))
    time.run_until(6)
    clock.stop()
    time.run_until(60)
    assert seen == [0]


def test_messages_requests_and_turns_have_a_price() -> None:
    stats = SimpleNamespace(turns=1, frames_out=0, messages_in=2, messages_out=3)
    frontend = SimpleNamespace(stats=SimpleNamespace(by_api={"Fetch": SimpleNamespace(requests=4)}))
    server: Any = SimpleNamespace(host=None, frontend=None)
    meter = TurnCost(server, 10)
    assert meter() == 0
    server.host = SimpleNamespace(stats=stats)
    server.frontend = frontend
    assert meter() == 100
    assert meter() == 0
    stats.messages_in += 1
    assert meter() == 10


@pytest.mark.parametrize("stall_ms", STALL_MS)
def test_servers_that_are_late_lose_no_leader(stall_ms: int) -> None:
    world = World(2, Options(stall_ms=stall_ms))
    assert world._birth()
    assert world.watch.violations == []


def test_servers_that_count_their_own_lateness_as_silence_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stalls are longer than an election timeout.

    Shorter ones are no silence to other servers, which receive something between two of them.
    """
    options = Options(stall_ms=800)
    world = World(3, options)
    assert world._birth()
    assert world.watch.violations == []
    monkeypatch.setattr(loop_time, "SLOWEST", 1)
    world = World(3, options)
    world._birth()
    assert [violation.name for violation in world.watch.violations] == ["leader-lost"]
    assert world.time.now_ns > 1_000 * MS
