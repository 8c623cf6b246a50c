"""Bridges, and the watch of deposed leaders that keep serving."""

from __future__ import annotations

from random import Random

import pytest

from rpc.leaders import LeaderListReceiver
from vdl.clock import MS
from vdl.sim.bridge import BEGINS_MS, SILENT_MS, Bridge
from vdl.sim.one_fault import judge_bridge
from vdl.sim.options import Options, draw
from vdl.sim.stale_watch import BOUND_NS, UNDER_WAY_NS, StaleWatch
from vdl.sim.world import World

SEED_OF_THREE, SEED_OF_FIVE = 1, 6
"""Seeds of worlds in which the other side elects a leader."""


def bridged(seed: int, servers: int = 3) -> World:
    world = World(seed, Options(servers=servers, partitions=4, bridged=True))
    assert world._birth()
    judge_bridge(world, world._rng["bridge"])
    return world


def names(world: World) -> set[str]:
    return {violation.name for violation in world.watch.violations}


def cuts(world: World) -> set[tuple[str, str]]:
    return {pair for pair, path in world.network._paths.items() if path.cut}


@pytest.mark.parametrize(("seed", "servers"), [(SEED_OF_THREE, 3), (SEED_OF_FIVE, 5)])
def test_deposed_leader_behind_a_bridge_serves_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch, seed: int, servers: int
) -> None:
    """With denials of claims the time is bounded. Without them the watch reports it."""
    world = bridged(seed, servers)
    assert world.watch.violations == []
    assert world.watch.stale.longest_ns <= BOUND_NS
    assert cuts(world) == set()
    monkeypatch.setattr(LeaderListReceiver, "denials", lambda receiver, peer: [])
    world = bridged(seed, servers)
    assert names(world) == {"stale-leader"}


@pytest.mark.parametrize("servers", [3, 5])
def test_bridge_leaves_each_side_a_majority_with_the_middle(servers: int) -> None:
    world = World(1, Options(servers=servers))
    near = world.machines[0].name
    bridge = Bridge(near)
    assert bridge.begin(world, Random(1))
    before = cuts(world)
    assert len({one for one, other in before if other == near}) == servers // 2
    assert len(before) == 2 * (servers // 2) ** 2
    (middle,) = {machine.name for machine in world.machines} - {one for one, _ in before}
    assert middle != near
    world.run_for((BEGINS_MS[1] + SILENT_MS[1]) * MS)
    assert cuts(world) == before
    bridge.end(world)
    assert cuts(world) == set()


def test_bridge_that_ends_early_silences_nobody_later() -> None:
    world = World(1, Options())
    bridge = Bridge()
    assert bridge.begin(world, Random(1))
    bridge.end(world)
    world.run_for(BEGINS_MS[1] * MS)
    assert cuts(world) == set()


def test_two_servers_have_no_bridge() -> None:
    world = World(1, Options(servers=1))
    assert not Bridge().begin(world, Random(1))
    judge_bridge(world, Random(1))
    assert world.watch.violations == []


def test_seeds_draw_bridges() -> None:
    """Some worlds of three and of five servers have bridges, in spells and alone."""
    drawn = [draw(Random(f"options {seed}")) for seed in range(1, 201)]
    assert {world.servers for world in drawn if world.bridges} >= {3, 5}
    assert {world.servers for world in drawn if world.bridged} >= {3, 5}


def test_time_in_which_a_process_stands_does_not_count_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quarter of the time in which its loop is late counts. A new process starts at zero."""
    world = World(1, Options(coordinators=1, partitions=1))
    assert world._birth()
    leader = max(world.machines, key=world.watch.led)
    host = leader.server.host if leader.server is not None else None
    assert host is not None
    told: list[str] = []
    watch = StaleWatch(world.machines, world.watch.raft, lambda name, detail: told.append(name))
    outlived = [(1, 1)]
    monkeypatch.setattr(watch, "_outlived", lambda other: outlived if other is host else [])
    now_ns = world.time.now_ns

    def look(passed_ns: int, lost_ns: int = 0) -> int:
        nonlocal now_ns
        now_ns += passed_ns
        host.loop_time.lost_ns += lost_ns
        watch.look(now_ns)
        return watch.longest_ns

    assert look(0) == 0
    assert look(400 * MS) == 400 * MS
    assert look(400 * MS, lost_ns=300 * MS) == 500 * MS
    assert leader.life is not None
    leader.life.clock.paused = True
    assert look(5_000 * MS) == 500 * MS
    leader.life.clock.paused = False
    assert look(100 * MS) == 500 * MS
    assert look(BOUND_NS + UNDER_WAY_NS - 500 * MS) == BOUND_NS + UNDER_WAY_NS
    assert told == []
    look(1)
    look(1)
    assert told == ["stale-leader"]
