"""Overload of a server is logged once when it begins, and once when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.logstream.front import ChosenFront
from vdl.clock import MS
from vdl.logstream.elections.overload import (
    BEGINS_PERCENT,
    ENDS_PERCENT,
    LATE_NS,
    WAIT_NS,
    WINDOW_NS,
    Overload,
)
from vdl.logstream.options import TICK_NS, HostOptions

LOOK_NS = 100 * MS
ELECTION_NS = HostOptions().election_ticks * TICK_NS


class Watched:
    """An `Overload` whose loop is late for a chosen part of the time."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now = 10**12
        self.loop_time = SimpleNamespace(late_total_ns=0, late_ns=0)
        self.campaigns = SimpleNamespace(waiting=0)
        self.front = ChosenFront()
        state: Any = SimpleNamespace(
            clock=self,
            loop_time=self.loop_time,
            log=self,
            front=self.front,
            options=HostOptions(),
        )
        campaigns: Any = self.campaigns
        self.overload = Overload(state, campaigns)

    def now_ns(self) -> int:
        return self.now

    def info(self, event: str, **_fields: object) -> None:
        self.said.append(event)

    warning = info

    def run(self, ns: int, *, late_percent: int) -> None:
        for _ in range(ns // LOOK_NS):
            self.now += LOOK_NS
            self.loop_time.late_total_ns += LOOK_NS * late_percent // 100
            self.overload.look()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_overload_is_said_once_when_it_begins_and_once_when_it_is_over(watched: Watched) -> None:
    watched.run(10 * WINDOW_NS, late_percent=0)
    assert watched.said == []
    watched.run(10 * WINDOW_NS, late_percent=90)
    assert watched.said == ["overloaded"]
    assert watched.overload.is_overloaded
    watched.run(10 * WINDOW_NS, late_percent=0)
    assert watched.said == ["overloaded", "overload_ended"]
    assert not watched.overload.is_overloaded
    assert watched.overload.times == 1


@pytest.mark.parametrize(("late_percent", "begins"), [(BEGINS_PERCENT, True), (39, False)])
def test_overload_begins_at_its_limit(watched: Watched, late_percent: int, begins: bool) -> None:
    watched.run(2 * WINDOW_NS, late_percent=late_percent)
    assert watched.overload.is_overloaded is begins
    assert watched.overload.late_percent == late_percent


def test_overload_does_not_flap(watched: Watched) -> None:
    """The state ends well below the limit at which it begins."""
    watched.run(2 * WINDOW_NS, late_percent=BEGINS_PERCENT)
    watched.run(5 * WINDOW_NS, late_percent=ENDS_PERCENT)
    watched.run(2 * WINDOW_NS, late_percent=BEGINS_PERCENT)
    assert watched.said == ["overloaded"]
    watched.run(2 * WINDOW_NS, late_percent=ENDS_PERCENT - 1)
    assert watched.said == ["overloaded", "overload_ended"]


def test_one_long_turn_is_no_overload_and_a_very_long_one_is(watched: Watched) -> None:
    """The checks may pause in the meantime."""
    watched.run(WINDOW_NS, late_percent=0)
    for late_ns, said in [(700 * MS, []), (30_000 * MS, ["overloaded"])]:
        watched.now += late_ns
        watched.loop_time.late_total_ns += late_ns
        watched.overload.look()
        assert watched.said == said
        watched.run(WINDOW_NS, late_percent=0)
    assert watched.said == ["overloaded", "overload_ended"]


def test_people_are_told_what_the_matter_is(watched: Watched) -> None:
    assert watched.overload.problem() == ""
    watched.run(WINDOW_NS, late_percent=60)
    assert watched.overload.problem() == "the event loop was late for 60 % of the last 2 s"
    watched.campaigns.waiting = 1_200
    assert watched.overload.problem().endswith("; 1200 partitions wait for an election")


def test_servers_that_are_held_up_again_and_again_say_so(cluster: Any) -> None:
    """From the host's own loop to its own status."""
    cluster.run(3_000)
    hosts = [node.host for node in cluster.nodes.values()]
    assert [host.overload.problem() for host in hosts] == ["", "", ""]
    for _ in range(10):
        for node in cluster.nodes.values():
            node.clock.pause()
        cluster.run(500)
        for node in cluster.nodes.values():
            node.clock.resume()
        cluster.run(50)
    assert all(host.overload.problem().startswith("the event loop was late") for host in hosts)
    cluster.run(5_000)
    assert [host.overload.problem() for host in hosts] == ["", "", ""]
    assert [host.overload.times for host in hosts] == [1, 1, 1]


@pytest.mark.parametrize(("wait_ns", "begins"), [(WAIT_NS, True), (WAIT_NS - 1, False)])
def test_requests_that_wait_for_long_are_an_overload_though_the_loop_is_in_time(
    watched: Watched, wait_ns: int, begins: bool
) -> None:
    """Requests of many clients wait so that nothing else is late; operators see why they wait."""
    watched.front.wait_ns = wait_ns
    watched.run(2 * WINDOW_NS, late_percent=0)
    assert watched.overload.is_overloaded is begins
    assert bool(watched.overload.problem()) is begins
    if begins:
        assert "requests wait to start, currently 0.2 s" in watched.overload.problem()
    watched.front.wait_ns = 0
    watched.run(2 * WINDOW_NS, late_percent=0)
    assert not watched.overload.is_overloaded


def test_server_is_late_for_long_after_a_minute_in_which_it_was_never_in_time(
    watched: Watched,
) -> None:
    """Each answer takes longer than a failover would."""
    watched.loop_time.late_ns = ELECTION_NS
    watched.run(LATE_NS, late_percent=100)
    assert not watched.overload.is_late_for_long
    watched.run(LOOK_NS, late_percent=100)
    assert watched.overload.is_late_for_long
    watched.loop_time.late_ns = ELECTION_NS - 1
    watched.run(LOOK_NS, late_percent=100)
    assert not watched.overload.is_late_for_long


def test_server_that_stood_still_for_minutes_is_not_late_for_long(watched: Watched) -> None:
    """A process that was stopped continues in time: its peers have replaced it in the meantime."""
    watched.run(LOOK_NS, late_percent=0)
    watched.now += 5 * LATE_NS
    watched.loop_time.late_ns = 5 * LATE_NS
    watched.run(LOOK_NS, late_percent=100)
    assert not watched.overload.is_late_for_long
