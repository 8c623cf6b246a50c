"""Worlds with expiring producers detect producers forgotten wrongly, and never."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.logstream.group.producer_expiry import ProducerExpiry, ProducerMarks
from vdl.sim.options import Options
from vdl.sim.world import S, World
from vdl.state.producers import Producers

FORGETTING = Options(
    coordinators=1, partitions=1, members=0, plain_producers=0, producer_expiry_ms=8_000
)


def names() -> set[str]:
    """Return the violations of a world without faults."""
    world = World(1, FORGETTING)
    return {violation.name for violation in world.live(lambda: world.run_for(4 * S)).violations}


def test_producers_that_are_forgotten_and_come_back_break_nothing() -> None:
    """They continue where they were."""
    assert names() == set()


def test_servers_that_never_forget_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must be released."""
    monkeypatch.setattr(ProducerExpiry, "look", lambda self, now_ns: None)
    assert names() == {"producers-kept"}


def test_live_producers_that_are_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle means idle for the whole time."""
    monkeypatch.setattr(
        ProducerMarks, "idle_index", lambda self, now_ns: self._marks[-1][0] if self._marks else 0
    )
    assert names() == {"forgotten-early"}


def test_producer_that_comes_back_and_is_turned_away_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error must be one that clients can handle."""
    original = Producers.check

    def check(self: Any, *arguments: Any, **options: Any) -> Any:
        verdict = original(self, *arguments, **options)
        _, producer_id, _, base_sequence, _ = arguments
        is_unknown = self.get(producer_id) is None and base_sequence > 0
        return ErrorCode.INVALID_RECORD if is_unknown and not verdict else verdict

    monkeypatch.setattr(Producers, "check", check)
    assert names() == {"producer-refused"}
