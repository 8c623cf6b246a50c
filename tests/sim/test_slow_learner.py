"""A world in which a replica on a slow disk is rebuilt under steady load."""

from __future__ import annotations

from vdl.clock import MS
from vdl.sim.options import Options
from vdl.sim.world import World


def test_replica_on_a_slow_disk_becomes_a_voter_under_steady_load() -> None:
    """It lacks hundreds of entries at every instant (thesis §4.2.1)."""
    options = Options(partitions=1, plain_producers=0, members=0, learner_sync_ms=100)
    world = World(1, options)
    outcome = world.live(lambda: world.run_for(1_000 * MS))
    assert outcome.violations == [], "\n".join([*outcome.trace.tail])
