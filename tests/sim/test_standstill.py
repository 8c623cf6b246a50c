"""A server of a cluster with a thousand groups is paused for longer than its links last.

When it resumes, its peers' messages to all its replicas arrive at once, and turns of loops take
time. It must handle them while its peers still hear from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.sim.test_mass_failover import MANY
from vdl.clock import MS
from vdl.logstream.host import Host
from vdl.sim.world import World

pytestmark = pytest.mark.takes_turns(parts=2)

S = 1_000 * MS
GROUPS = 1_000
TURN_COST_US = 1_000
STOOD_NS = 5 * S
HANDLED = 48
"""Limit on the messages that all servers send and receive, for each group: log agreement is probed
twice, and some of the groups are elected and transferred, a few of them again. The actual number is
19.
"""


def hosts_of(world: World) -> Iterator[Host]:
    for machine in world.machines:
        assert machine.server is not None
        assert machine.server.host is not None
        yield machine.server.host


def is_calm(world: World) -> bool:
    """Return True if all replicas are equal and no server is overloaded."""
    is_late = any(host.overload.is_overloaded for host in hosts_of(world))
    return not is_late and not world.watch.settled()


def handled(world: World) -> int:
    """Return the number of messages that all servers have sent and received."""
    return sum(host.stats.messages_in + host.stats.messages_out for host in hosts_of(world))


def test_server_that_stood_still_is_in_step_again_in_the_time_that_takes() -> None:
    """Probes of a group must not be repeated with each new link and ten times a second.

    Otherwise a late server never comes to answer, and its links fail again.
    """
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
