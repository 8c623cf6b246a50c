"""All servers of a cluster get a small part of the processor time that they usually have.

Each thing that a loop handles takes a hundred times as long as usual. Elections must then take a
hundred times as long, and no longer: a server that is too slow must not begin, repeat or undo
elections faster than it completes them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.test_mass_failover import MANY
from vdl.clock import MS
from vdl.sim.world import World

pytestmark = pytest.mark.takes_turns(parts=2)

S = 1_000 * MS
GROUPS = 300
TURN_COST_US = 10_000
HANDLED = 24
"""Limit on the things that a server handles for each group; an election needs 14 of it."""
AGAIN = 1.05
"""Limit on the elections for each group that needs one."""


def starved() -> World:
    """Return a world in which all groups are led, and then all turns take long."""
    world = World(1, replace(MANY, partitions=GROUPS))
    assert world._birth()
    world.run_for(3 * S)
    for machine in world.machines:
        machine.take_time(TURN_COST_US * 1_000)
    return world


def wait_led(world: World, groups: int, elections: int) -> None:
    """Wait until the running servers lead that many groups, each after one election."""

    def are_led() -> bool:
        hosts = [m.server.host for m in world.machines if m.server is not None]
        return sum(len(host.liveness.led) for host in hosts if host is not None) >= groups

    before = world.watch.elections
    assert world.wait(HANDLED * GROUPS * TURN_COST_US * 1_000, are_led)
    assert world.watch.elections - before <= AGAIN * elections
    assert world.watch.violations == []


def test_servers_that_start_together_elect_each_group_once() -> None:
    world = starved()
    groups = GROUPS + 2
    for machine in world.machines:
        machine.kill()
    world.run_for(100 * MS)
    for machine in world.machines:
        machine.start()
    wait_led(world, groups, groups)


def test_servers_that_are_left_elect_the_groups_of_a_dead_one_and_keep_their_own() -> None:
    world = starved()
    victim = world.machines[0]
    lost = world.watch.led(victim)
    victim.kill()
    wait_led(world, GROUPS + 2, lost)


def test_servers_at_rest_keep_their_leaderships() -> None:
    world = starved()
    before = world.watch.elections
    world.run_for(30 * S)
    assert world.watch.elections == before
