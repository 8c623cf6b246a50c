"""Directed worlds with a server that runs and serves no clients: others must lead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vdl.clock import MS
from vdl.server.server import ServerState
from vdl.sim.faults import close, may_serve
from vdl.sim.machine import Machine
from vdl.sim.options import NO_CATALOG, NO_PORT, Options
from vdl.sim.world import World

S = 1_000 * MS
CALM = Options(partitions=3, plain_producers=0, members=0, sends_per_second=50)


def led_closed(machine: Machine) -> list[int]:
    """Return the groups other than the catalog that a machine leads."""
    host = machine.server.host if machine.server is not None else None
    groups = host.groups.items() if host is not None else ()
    return [number for number, group in groups if number and group.node.is_leader]


def live(world: World, story: object) -> None:
    outcome = world.live(story)  # type: ignore[arg-type]
    assert outcome.violations == [], "\n".join([*outcome.trace.tail, *map(str, outcome.violations)])


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize("why", [NO_CATALOG, NO_PORT])
def test_server_that_serves_no_clients_leads_nothing_when_another_starts_again(why: str) -> None:
    """The servers that serve are a majority, and nothing keeps them from electing one of theirs."""
    world = World(1, CALM)

    def story() -> None:
        world.run_for(2 * S)
        closed = world.leader()
        assert closed is not None
        close(closed, why)
        world.run_for(3 * S)
        again = world.leader()
        assert again not in {None, closed}
        assert again is not None
        again.kill()
        again.start()
        others = [machine for machine in world.machines if machine is not closed]
        assert world.wait(5 * S, lambda: not world.watch.leaderless(others))
        world.run_for(5 * S)
        assert not world.watch.leaderless(others)
        assert led_closed(closed) == []
        may_serve(closed)
        assert world.wait(20 * S, lambda: bool(led_closed(closed)))

    live(world, story)


@pytest.mark.parametrize("servers", [1, 3, 5])
def test_set_that_starts_as_a_whole_serves(servers: int) -> None:
    """No server serves before the catalog has a leader, so a server that does not serve may lead
    it.
    """
    world = World(2, replace(CALM, servers=servers))

    def story() -> None:
        world.run_for(1 * S)
        for machine in world.machines:
            machine.power_cut()
        for machine in world.machines:
            machine.start()
        assert world.wait(10 * S, lambda: not world.watch.leaderless(world.machines))
        states = {m.server.state for m in world.machines if m.server is not None}
        assert states == {ServerState.SERVING}

    live(world, story)


def test_majority_that_starts_while_the_rest_is_away_elects_the_catalog() -> None:
    """All wait for the catalog: one of them leads it, and they serve."""
    world = World(3, CALM)

    def story() -> None:
        world.run_for(1 * S)
        for machine in world.machines:
            machine.power_cut()
        core = world.machines[1:]
        for machine in core:
            machine.start()
        assert world.wait(10 * S, lambda: not world.watch.leaderless(core))
        world.machines[0].start()

    live(world, story)
