"""A server hears that the cluster was recovered without it: perhaps from the mistaken one."""

from __future__ import annotations

import pytest

from ids import ServerId
from rpc.hello import RejectReason
from vdl.clock import MS
from vdl.logstream.options import TICK_NS
from vdl.server.server import RECOVERED_TIMEOUTS, ServerState
from vdl.sim.options import Options
from vdl.sim.world import World

S = 1_000 * MS
CALM = Options(partitions=2, coordinators=1, readers=0, members=1, sends_per_second=50)


def test_server_that_serves_alone_stays() -> None:
    """The others of the majority may be on their way up, while the mistaken one goes on talking."""
    world = World(1, CALM)
    ends: list[object] = []

    def story() -> None:
        world.run_for(1 * S)
        first, *others = world.machines
        server = first.server
        assert server is not None
        for machine in others:
            machine.kill()
        world.run_for(1 * S)
        server.on_second = lambda: ends.append(1)
        server.rejected(
            ServerId(others[-1].server_id), RejectReason.RECOVERED, "recovered", by_peer=True
        )
        world.run_for(2 * RECOVERED_TIMEOUTS * server.config.host.election_ticks * TICK_NS)
        assert server.state is ServerState.SERVING
        for machine in others:
            machine.start()
        world.run_for(1 * S)

    assert not world.live(story).violations
    assert not ends


@pytest.mark.parametrize("are_others_there", [True, False])
def test_one_word_ends_only_a_server_without_a_majority(*, are_others_there: bool) -> None:
    """A healthy majority starts again beside the mistaken server, and serves."""
    world = World(1, CALM)
    ends: list[object] = []
    states: list[ServerState] = []

    def story() -> None:
        world.run_for(1 * S)
        for machine in world.machines:
            machine.kill()
        first, *others = world.machines
        started = [first, *(others[:1] if are_others_there else [])]
        for machine in started:
            machine.start()
        server = first.server
        assert server is not None
        assert world.wait(1 * S, lambda: server.state is ServerState.STARTING)
        server.on_second = lambda: ends.append(1)
        peer = ServerId(others[-1].server_id)
        for _ in range(3):
            server.rejected(peer, RejectReason.RECOVERED, "recovered", by_peer=True)
        assert not ends
        world.run_for(2 * RECOVERED_TIMEOUTS * server.config.host.election_ticks * TICK_NS)
        states.append(server.state)
        for machine in world.machines:
            if machine not in started:
                machine.start()
        world.run_for(1 * S)

    outcome = world.live(story)
    told = [one.detail for one in outcome.violations]
    assert len(told) == len(ends)
    assert all("recovered_without_this" in one and "stop server 3" in one for one in told)
    assert ends == ([] if are_others_there else [1])
    assert states == [ServerState.SERVING if are_others_there else ServerState.STARTING]
