"""The comparison of replicas at the end of a world."""

from __future__ import annotations

from tests.unit.sim.test_raft_watch import CALM, S, followers, led
from vdl.sim.world import World


def test_replicas_that_begin_at_other_offsets_are_noticed() -> None:
    """Deleted entries cannot be compared; a partition's log start is state."""
    world = World(1, CALM)

    def story() -> None:
        world.run_for(1 * S)
        leader = world.leader()
        assert leader is not None
        group = led(world, leader)
        machine, _ = followers(world, group)[0]
        assert machine.server is not None
        assert machine.server.host is not None
        stream = machine.server.host.stream(group.group_id)
        assert stream is not None
        assert stream.state.log_start_offset == 0
        stream.state.log_start_offset = 1

    names = [violation.name for violation in world.live(story).violations]
    assert "states-differ" in names
