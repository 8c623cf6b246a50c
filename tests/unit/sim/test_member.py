"""Members of a world's groups, and the recorded results of their commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.context import RequestContext
from vdl.kafka.groups.led_consumer_groups import LedConsumerGroups
from vdl.kafka.handlers import offsets as handler
from vdl.sim.options import Options
from vdl.sim.workload import MIXED_GROUP
from vdl.sim.world import World
from vdl.state.commands import OffsetCommit
from vdl.state.coordinator import Coordinator

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


MIXED = Options(
    partitions=3,
    readers=0,
    members=2,
    epoch_members=1,
    static_members=True,
    mixed_group=True,
    groups_settle=True,
)


def test_members_of_both_protocols_share_a_group_that_settles() -> None:
    """It is converted both ways while members of both protocols go and return."""
    world = World(2, MIXED)
    kinds: list[str] = []

    def look() -> None:
        for machine in world.machines:
            host = machine.server.host if machine.server is not None else None
            group = None if host is None else host.state_group(host.coordinator_group(MIXED_GROUP))
            if group is not None and group.is_running and group.serving:
                assert isinstance(group.machine, Coordinator)
                kind = group.machine.kind_of(MIXED_GROUP)
                if kind is not None and kinds[-1:] != [kind]:
                    kinds.append(kind)
        world.time.after(100 * MS, look)

    look()
    outcome = world.live(lambda: world.run_for(25 * S))
    assert not outcome.violations
    assert kinds.count("consumer") > 1, kinds
    assert kinds.count("classic") > 1, kinds
    instances = {op.proc for op in world.recorder.ops if op.f == "rebalance"}
    assert len(instances) > 3, "members return"


def test_group_whose_targets_are_never_computed_does_not_settle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(2, replace(MIXED, mixed_group=False, static_members=False))
    monkeypatch.setattr(LedConsumerGroups, "_compute", lambda self, group_id: None)
    outcome = world.live(lambda: world.run_for(4 * S))
    assert [violation.name for violation in outcome.violations] == ["group-unsettled"]
