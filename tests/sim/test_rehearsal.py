"""Rehearsals of a change: one that can end does, under faults, and one that cannot is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ids import ServerId
from vdl.sim.rehearsal import Scene, rehearse

SERVERS = [ServerId(n) for n in (1, 5, 9, 2, 6)]
RACKS = dict(zip(SERVERS, "abcab", strict=True))
REMOVAL = Scene(
    SERVERS[:3], SERVERS[3:], RACKS, [SERVERS[:3], [*SERVERS[3:], ServerId(9)]], {}, ServerId(2)
)
REMOVAL_OF_VOTER = replace(REMOVAL, removed=ServerId(5))
MOVES = replace(REMOVAL, moves={0: SERVERS[2:], 1: SERVERS[:3]}, removed=None)


@pytest.mark.parametrize(
    "scene", [REMOVAL, REMOVAL_OF_VOTER, MOVES], ids=["removal", "removal of a voter", "moves"]
)
def test_change_of_a_cluster_ends_under_faults_and_loses_nothing(scene: Scene) -> None:
    """The replicas are placed as in the scene, under other numbers of servers."""
    found = rehearse(1, scene)
    assert not found.violations
    assert found.faults
    assert found.acknowledgements


def test_change_that_cannot_end_is_a_violation() -> None:
    """A server is not removed while a partition has as many replicas as there are servers."""
    found = rehearse(1, replace(REMOVAL, replicas=[SERVERS]))
    assert [text.partition(":")[0] for text in found.violations] == ["no-end"]
