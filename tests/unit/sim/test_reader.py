"""Readers of a world: once producers have stopped, they have learned of all records."""

from __future__ import annotations

import pytest

from vdl.clock import MS
from vdl.kafka.handlers import fetch as handler
from vdl.kafka.partitions.fetch_sessions import Cached, FetchSession
from vdl.sim.options import Options
from vdl.sim.world import World

S = 1_000 * MS
READ = Options(partitions=4, readers=2, members=0, fetch_sessions=True)


def violated(options: Options = READ) -> list[str]:
    """Return the violations of a calm world of readers with sessions."""
    world = World(1, options)
    outcome = world.live(lambda: world.run_for(4 * S))
    assert outcome.polled > 100
    return sorted({violation.name for violation in outcome.violations})


def test_readers_of_a_calm_world_hear_of_everything() -> None:
    assert violated() == []


def test_a_reader_whose_session_loses_a_wake_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lost wake is for a commit between two requests of the session."""
    wake = FetchSession.wake

    def loses(self: FetchSession, target: Cached) -> None:
        if self.reader is not None:
            wake(self, target)

    monkeypatch.setattr(FetchSession, "wake", loses)
    assert violated() == ["reader-behind"]


def test_a_reader_who_is_not_told_how_the_log_stands_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader has read everything, but does not know the log's start."""
    settle = handler._Poll._settle

    def keeps_to_itself(
        self: handler._Poll, session: FetchSession, target: handler._Target
    ) -> bool:
        has_records = target.answer is not None and bool(target.answer.records)
        if has_records and target.answer is not None:
            target.answer.log_start_offset = 1
        settle(self, session, target)
        return has_records

    monkeypatch.setattr(handler._Poll, "_settle", keeps_to_itself)
    assert violated() == ["reader-behind"]
