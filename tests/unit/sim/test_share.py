"""Share consumers of a world: a calm one violates nothing, and a planted bug is detected."""

from __future__ import annotations

import pytest

from vdl.clock import MS
from vdl.kafka.share.share_partition import Held, SharePartition
from vdl.sim.options import Options
from vdl.sim.world import World
from vdl.state.share_states import RecordState

S = 1_000 * MS
SHARED = Options(partitions=2, readers=0, members=0, share_members=2, share_limit=2)


def violated() -> list[str]:
    """Return the violations of a calm world with share consumers."""
    world = World(1, SHARED)
    outcome = world.live(lambda: world.run_for(3 * S))
    assert sum(op.f == "deliver" for op in outcome.history) > 50
    assert sum(op.f == "acknowledge" and op.ok for op in outcome.history) > 50
    return sorted({violation.name for violation in outcome.violations})


def test_share_consumers_of_a_calm_world_see_nothing_wrong() -> None:
    assert violated() == []


def test_a_delivery_past_the_limit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released records are delivered without limit."""

    def frees(self: SharePartition, first: int, last: int, count: int) -> None:
        self._put(first, last, Held(RecordState.AVAILABLE, count))

    monkeypatch.setattr(SharePartition, "_free", frees)
    assert violated() == ["share-limit"]
