"""Starvation: all servers get a small part of their processors for a while."""

from __future__ import annotations

from random import Random

from vdl.clock import MS
from vdl.sim.faults import STARVED_US, Starvation
from vdl.sim.options import Options, draw
from vdl.sim.world import World

COST_NS = 20_000


def test_starved_servers_take_long_until_it_is_over_and_also_if_they_restart() -> None:
    world = World(1, Options(turn_cost_us=COST_NS // 1_000))
    assert world._birth()
    fault, other = Starvation(), Starvation()
    assert fault.begin(world, Random(1))
    assert not other.begin(world, Random(1))
    other.end(world)
    for machine in world.machines:
        assert STARVED_US[0] * 1_000 <= machine.turn_cost_ns <= STARVED_US[1] * 1_000
    restarted = world.machines[0]
    restarted.kill()
    restarted.start()
    world.run_for(1_000 * MS)
    assert all(m.life is not None and m.life.clock.meter is not None for m in world.machines)
    fault.end(world)
    assert [machine.turn_cost_ns for machine in world.machines] == [COST_NS] * 3


def test_world_in_which_servers_starve_passes_all_rules() -> None:
    world = World(3, Options(starvations=0.5, kills=0.2, seconds=8))
    outcome = world.run()
    assert outcome.violations == []
    assert outcome.faults


def test_some_seeds_draw_starvation_and_most_do_not() -> None:
    drawn = [draw(Random(seed)).starvations for seed in range(200)]
    assert 10 < sum(rate > 0 for rate in drawn) < 60
