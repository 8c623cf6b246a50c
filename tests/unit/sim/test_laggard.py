"""Worlds with a lagging consumer: it reads from disk, and a starving one is reported."""

from __future__ import annotations

import pytest

from vdl.clock import MS
from vdl.kafka.partitions.read_pace import ReadPace
from vdl.kafka.partitions.read_throttle import ReadThrottle
from vdl.sim.options import Options
from vdl.sim.world import World

pytestmark = pytest.mark.takes_turns(parts=2)

S = 1_000 * MS
BEHIND = Options(
    partitions=2, members=0, readers=0, sends_per_second=25, records_max=4, record_bytes_max=400,
    cache_kib=512, behind_kib=32,
)  # fmt: skip


def lived() -> tuple[World, list[str]]:
    """Run a calm world of this kind; return it and its violations."""
    world = World(1, BEHIND)
    outcome = world.live(lambda: world.run_for(10 * S))
    return world, sorted({violation.name for violation in outcome.violations})


def test_consumer_behind_catches_up_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads were throttled, as intended, and nothing is violated."""
    waits: list[int] = []
    ask = ReadThrottle.ask

    def asked(*arguments: object) -> object:
        admission = ask(*arguments)  # type: ignore[arg-type]
        if admission.is_paced:
            waits.append(admission.wait_ns)
        return admission

    monkeypatch.setattr(ReadThrottle, "ask", asked)
    _, violations = lived()
    assert violations == []
    assert len(waits) > 10
    assert any(waits)


def test_consumer_that_does_not_gain_on_producers_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rate ignores the producers' writes and their latency."""
    monkeypatch.setattr("vdl.kafka.partitions.read_throttle.GAIN", 0)
    monkeypatch.setattr(ReadPace, "look", lambda pace, now_ns, least, **_: least)
    _, violations = lived()
    assert violations == ["reader-starved"]
