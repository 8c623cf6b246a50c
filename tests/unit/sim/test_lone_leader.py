"""A leader reachable by clients only: its longer, older log is back when its successor fails."""

from __future__ import annotations

from random import Random

import pytest

from vdl.clock import MS
from vdl.sim.faults import STRIKE_MS, LoneLeader
from vdl.sim.machine import Machine
from vdl.sim.options import Options
from vdl.sim.world import World

S = 1_000 * MS
CALM = Options(partitions=2, coordinators=1, readers=0, members=1, sends_per_second=50)


def tails(machine: Machine) -> dict[int, tuple[int, int]]:
    """Return (term, index) of the last entry of each replica."""
    host = machine.server.host if machine.server is not None else None
    assert host is not None
    logs = {group_id: group.node.raft.log for group_id, group in host.groups.items()}
    return {group_id: (log.last_term, log.last_index) for group_id, log in logs.items()}


@pytest.mark.parametrize("seed", range(4))
def test_successor_dies_and_the_older_log_is_heard_again(seed: int) -> None:
    """So for a partition; a coordinator's leader is only isolated. Neither violates anything."""
    world = World(1, CALM)
    found: list[bool] = []

    def story() -> None:
        world.run_for(1 * S)
        fault = LoneLeader()
        assert fault.begin(world, Random(seed))
        world.run_for(3 * S + STRIKE_MS[1] * MS)
        found.append(bool(fault.machines))
        assert all(machine.life is None for machine in fault.machines)
        fault.end(world)
        world.run_for(1 * S)
        assert all(tails(machine) for machine in world.machines)

    outcome = world.live(story)
    assert outcome.violations == []
    assert found == [Random(seed).random() < 0.5]


def test_where_nobody_can_take_its_place_nothing_happens() -> None:
    """A single server has no other server that could lead."""
    world = World(1, Options(servers=1, partitions=1))
    assert not LoneLeader().begin(world, Random(1))
