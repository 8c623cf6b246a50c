"""Clusters that migrate to encrypted links amid all other faults.

The steps are plain, accepted, preferred and required, two neighbours of these at a time
(deploy/runbook.md).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from rpc.tls_context import LinkEncryption
from vdl.sim.going_over import STEPS, GoingOver
from vdl.sim.options import draw
from vdl.sim.world import World

SEEDS = (2, 3)


def test_processes_go_no_further_than_one_step_beyond_any_other() -> None:
    """Each start is a step, unless another machine is behind. A new one takes the lowest step."""
    going = GoingOver()
    assert [going.begin(name) for name in ("a", "b", "a", "a", "c")] == [
        None, None, LinkEncryption.ACCEPTED, LinkEncryption.ACCEPTED, None,
    ]  # fmt: skip
    for _ in range(10):
        for name in "abc":
            going.begin(name)
    assert set(going.steps.values()) == {len(STEPS) - 1}
    assert all(high - low <= 1 for low, high in going.met)


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize("seed", SEEDS)
def test_set_goes_over_amid_faults_and_nothing_is_lost(seed: int) -> None:
    drawn = draw(Random(f"options {seed}"))
    world = World(seed, replace(drawn, encrypted=False, intruders=0, goes_over=True))
    outcome = world.run()
    assert outcome.violations == [], "\n".join([*outcome.trace.tail, *map(str, outcome.violations)])
    assert max(world.going_over.steps.values()) >= 1
