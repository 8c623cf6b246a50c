"""Members of a world's groups, and the recorded results of their commits."""

from __future__ import annotations

import pytest

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers import offsets as handler
from vdl.sim.options import Options
from vdl.sim.world import World
from vdl.state.commands import OffsetCommit

S = 1_000 * MS


def test_a_commit_that_one_partition_refuses_counts_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the whole commit counted as failed, the other partitions' offsets would seem lost."""
    position_of = handler.position_of

    def refuses_one(
        ctx: RequestContext, key: str | bytes, index: int, offset: int, epoch: int, metadata: str
    ) -> OffsetCommit | ErrorCode:
        if index == 1:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return position_of(ctx, key, index, offset, epoch, metadata)

    monkeypatch.setattr(handler, "position_of", refuses_one)
    world = World(1, Options(partitions=3, readers=0, members=1))
    outcome = world.live(lambda: world.run_for(8 * S))
    assert not outcome.violations
    commits = [op for op in world.recorder.ops if op.f == "commit"]
    refused = [op for op in commits if op.err == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert {op.type for op in refused} == {"fail"}
    assert {mark.key for op in refused for mark in op.marks} == {"orders-1"}
    assert {mark.key for op in commits if op.ok for mark in op.marks} == {"orders-0", "orders-2"}
