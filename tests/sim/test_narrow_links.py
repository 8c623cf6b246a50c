"""Links of 100 Mbit/s filled by a few partitions: quiet groups beside them must not be affected."""

from __future__ import annotations

import pytest

from vdl.clock import MS
from vdl.sim.options import Options
from vdl.sim.world import World

pytestmark = pytest.mark.takes_turns(parts=2)

S = 1_000 * MS
KEPT_BYTES = 16 << 20
MBIT_100 = 12_500_000
SECONDS = 12
"""Ten election timeouts."""
QUIET = Options(
    partitions=10,
    idempotent_producers=1,
    plain_producers=0,
    readers=0,
    members=0,
    sends_per_second=2,
    segment_kib=4 << 10,
    journal_kib=16 << 10,
    checkpoint_kib=16 << 10,
    cache_kib=64 << 10,
)


@pytest.mark.parametrize("busy", [1, 3])
def test_quiet_groups_keep_their_leaders_beside_saturated_ones(busy: int) -> None:
    """Heartbeats, votes and acknowledgements do not queue behind entries."""
    world = World(1, QUIET)

    def story() -> None:
        world.narrow(MBIT_100)
        flood = world.flood(busy, MBIT_100, kept_bytes=KEPT_BYTES)
        assert world.wait(10 * S, lambda: flood.is_ready)
        flood.begin()
        world.run_for(2 * S)
        elections, before = world.watch.elections, flood.acknowledged_bytes
        world.run_for(SECONDS * S)
        flood.end()
        assert world.watch.elections == elections, "a leader was lost, and no server or link"
        carried = flood.acknowledged_bytes - before
        assert carried > MBIT_100 * SECONDS * 8 // 10, f"the links were not full: {carried} bytes"

    outcome = world.live(story)
    assert outcome.violations == [], "\n".join([*outcome.trace.tail, *map(str, outcome.violations)])
