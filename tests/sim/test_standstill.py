"""A server of a set with a thousand groups stands still for longer than its links last. What its
peers have to say to each of its replicas comes at once when it goes on, and turns of loops take
time here. It must get through that, and be heard meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.sim.test_mass_failover import MANY
from vdl.clock import MS
from vdl.logstream.host import Host
from vdl.sim.world import World

S = 1_000 * MS
GROUPS = 1_000
TURN_COST_US = 1_000
STOOD_NS = 5 * S
HANDLED = 48
"""Messages that all servers send and receive, for each group: whether the logs agree is asked
twice, and some of the groups are elected and handed over, a few of them again. It takes 19."""


def hosts_of(world: World) -> Iterator[Host]:
    for machine in world.machines:
        assert machine.server is not None
        assert machine.server.host is not None
        yield machine.server.host


def is_calm(world: World) -> bool:
    """Whether all replicas are equal, and nobody has more to do than it can."""
    is_late = any(host.overload.is_overloaded for host in hosts_of(world))
    return not is_late and not world.watch.settled()


def handled(world: World) -> int:
    """Messages that all servers have sent and received."""
    return sum(host.stats.messages_in + host.stats.messages_out for host in hosts_of(world))


def test_server_that_stood_still_is_in_step_again_in_the_time_that_takes() -> None:
    """It was asked for each group, each time its link was made anew and ten times a second, until
    it answered; so it never came to answer, and its links were made anew."""
    world = World(1, replace(MANY, partitions=GROUPS))
    assert world._birth()
    for machine in world.machines:
        machine.take_time(TURN_COST_US * 1_000)
    world.run_for(S)
    life = world.machines[1].life
    assert life is not None
    life.clock.pause()
    world.run_for(STOOD_NS)
    before = handled(world)
    life.clock.resume()
    world.run_for(S)
    messages_max = HANDLED * GROUPS
    assert world.wait(messages_max * TURN_COST_US * 1_000, lambda: is_calm(world))
    assert handled(world) - before <= messages_max
    assert world.watch.violations == []
