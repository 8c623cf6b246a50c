"""A topic that grows while clients use it: all of them use all of its partitions."""

from __future__ import annotations

import pytest

from vdl.clock import MS
from vdl.sim.options import Options
from vdl.sim.world import TOPIC, World
from vdl.state.catalog import Catalog, TopicInfo

S = 1_000 * MS
GROWS = Options(partitions=1, growth=2, readers=1, members=1, seconds=4)


def lived(seed: int = 1) -> tuple[World, list[str]]:
    """Run a calm world in which the topic grows; return it and its violations."""
    world = World(seed, GROWS)
    outcome = world.live(lambda: world.run_for(8 * S))
    return world, sorted({violation.name for violation in outcome.violations})


def test_topic_grows_and_new_partitions_are_used() -> None:
    """Producers write to them, readers and members read them, and the final drain finds all."""
    world, violations = lived()
    assert violations == []
    assert world.env.partition_count == 3
    new = {f"{TOPIC}-1", f"{TOPIC}-2"}
    sent = {send.key for op in world.recorder.ops if op.ok for send in op.sends}
    polled = {
        (op.proc[0], key)
        for op in world.recorder.ops
        for key, records in op.polls
        if records and not op.final
    }
    assert new <= sent
    assert {(kind, key) for kind in ("r", "m") for key in new} <= polled
    (final,) = [op for op in world.recorder.ops if op.final]
    assert {key for key, records in final.polls if records} >= new


def test_new_partition_that_takes_the_place_of_an_old_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records of the replaced partition are gone for its clients."""
    change = Catalog._change_topic

    def renumbers(self: Catalog, topic: TopicInfo, **fields: object) -> None:
        groups = fields["partitions"]
        assert isinstance(groups, list)
        change(self, topic, partitions=groups[::-1])

    monkeypatch.setattr(Catalog, "_change_topic", renumbers)
    _, violations = lived()
    assert violations
