"""The disks of a majority fill while their leader has room."""

from __future__ import annotations

from typing import Any

import pytest

from ids import NO_INDEX
from vdl.logstream.group.group import Group
from vdl.logstream.peers.inbox import Inbox
from vdl.sim.filled_disks import judge_filled_disks
from vdl.sim.options import Options
from vdl.sim.world import World


def violations(seed: int = 0) -> list[str]:
    world = World(seed, Options(fills_disks=True, journal_kib=32))
    assert world._birth()
    judge_filled_disks(world)
    assert world._settles()
    return [violation.name for violation in world.watch.violations]


@pytest.mark.parametrize("seed", range(4))
def test_records_are_refused_and_a_deletion_is_answered(seed: int) -> None:
    assert violations(seed) == []


def test_leader_that_takes_what_others_have_no_room_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepts = property(lambda group: group.store.accepts_appends)
    monkeypatch.setattr(Group, "accepts_appends", accepts)
    assert violations() == ["records-wait"]


def test_deletion_that_waits_behind_records_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = lambda *_: NO_INDEX  # noqa: E731 - whatever waits
    monkeypatch.setattr(Inbox, "_needed_in", nothing)
    assert violations(1) == ["deletion-waits"]
