"""Permitted cost of a single fault, by its kind."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.clock import MS
from vdl.logstream.group.campaigning import Campaigning
from vdl.sim.one_fault import BOUNDS, EARLIEST_NS, LATEST_NS, election_ns, judge_one_fault
from vdl.sim.options import KINDS, Options
from vdl.sim.world import World, fed_in_ns


def world_of(kind: str, seed: int = 1) -> World:
    world = World(seed, Options(one_fault=kind, partitions=4))
    assert world._birth()
    return world


def test_every_kind_that_is_drawn_has_a_bound() -> None:
    assert list(KINDS) == list(BOUNDS)


@pytest.mark.parametrize("kind", KINDS)
def test_fault_costs_what_its_bound_says(kind: str) -> None:
    world = world_of(kind)
    judge_one_fault(world)
    assert world.watch.violations == []


def test_kill_is_noticed_before_an_election_timeout_and_silence_is_not() -> None:
    """Otherwise the bound of one kind would hide a violation of the other."""
    assert BOUNDS["kill"].noticed_ns < LATEST_NS
    assert BOUNDS["pause"].noticed_ns > EARLIEST_NS


def test_failover_that_takes_longer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("kill")
    ignored: Any = lambda *_, **__: None  # noqa: E731 - accepts any arguments
    monkeypatch.setattr(Campaigning, "take_turn", ignored)
    judge_one_fault(world)
    assert [violation.name for violation in world.watch.violations] == ["slow-failover"]


def test_election_takes_longer_where_turns_and_syncs_do() -> None:
    quick = Options(delay_us=0, jitter_us=0, turn_us=0, sync_us=0)
    assert election_ns(quick, 10) == 0
    assert election_ns(Options(delay_us=0, jitter_us=0, turn_us=0, sync_us=1_000), 10) == 30 * MS
    slow = Options(delay_us=0, jitter_us=0, turn_us=0, sync_us=0, turn_cost_us=100)
    assert election_ns(slow, 10) == 8 * 2 * 8 * 10 * 100_000


def test_followers_that_are_fed_slowly_have_longer_to_catch_up() -> None:
    assert fed_in_ns(Options(), 1_000) == 0
    slow = Options(catch_up_kib=1, records_max=1, record_bytes_max=774)
    assert fed_in_ns(slow, 100) == 100_000 * MS
