"""Machines that come back with older copies of their disks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from vdl.sim.machine import Machine
from vdl.sim.options import draw, rolled_back
from vdl.sim.run import run_seed

pytestmark = pytest.mark.takes_turns(parts=3)


@pytest.mark.parametrize("seed", [4, 5, 12])
def test_world_with_old_copies_keeps_what_was_acknowledged(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No replica of an older copy takes part, and all are replaced."""
    machines: list[str] = []
    roll_back = Machine.roll_back

    def counted(machine: Machine, *arguments: object) -> None:
        machines.append(machine.name)
        roll_back(machine, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Machine, "roll_back", counted)
    rng = Random(f"options {seed}")
    drawn = rolled_back(draw(rng), rng)
    outcome = run_seed(seed, options=replace(drawn, servers=3, seconds=16, old_copies=8.0))
    assert outcome.violations == []
    assert machines
