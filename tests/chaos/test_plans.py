"""Plans are carried out under load while a server dies, stands still, or has a full disk.

`plans_tried.py` has them all, with figures; here are those with a fault each.
"""

from __future__ import annotations

import pytest

from tests.chaos.harness.disks import Disks
from tests.chaos.plans_tried import TRIALS, try_plans

MEGABYTES = 1
SHORT = {
    "three partitions move": "kill",
    "a fourth replica": "pause",
    "balance": "full",
    "server 6 leaves": "kill",
    "server 6 returns": "pause",
}


def test_plans_are_carried_out_with_two_copies_whatever_happens() -> None:
    """No record is lost, and each partition keeps two durable copies."""
    missing = Disks.missing()
    if missing:
        pytest.skip(missing)
    trials = tuple(one for one in TRIALS if one.name in SHORT)
    assert {one.name: one.fault.split()[0] for one in trials} == SHORT
    rows, violations = try_plans(trials, MEGABYTES)
    assert not violations, "\n".join([*rows, *violations])
