"""A principal that uses most of the loop leaves it idle for others, and only then."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.unit.kafka.connections.test_turn_budget import (
    API_VERSIONS,
    FETCH,
    PRODUCE,
    CostlyWorld,
    ask,
)
from tests.unit.kafka.fake_host import Client
from vdl.clock import MS
from vdl.kafka.api import API, Api
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections.loop_shares import (
    LOOK_NS,
    OTHERS_TIMES,
    SLICE_NS,
    USUAL_FETCH_BYTES,
    LoopShares,
    LoopUse,
)

COST_NS: Final = 2 * MS
SHARE: Final = 0.25
CROWD, OTHER = ("10.0.0.1", 5000), ("10.0.0.2", 5000)


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> CostlyWorld:
    world = CostlyWorld(KafkaOptions(loop_percent=round(100 * SHARE)))
    world.cost_ns = COST_NS
    row = API[API_VERSIONS]
    changed = Api(API_VERSIONS, row.name, row.min_version, row.max_version, "", world.handle)
    monkeypatch.setitem(API, API_VERSIONS, changed)
    return world


class Load:
    """Connections of a crowd that always ask, and one of another principal that asks at times."""

    def __init__(self, world: CostlyWorld, connections: int = 8) -> None:
        self.world = world
        self.crowd = [world.client(CROWD) for _ in range(connections)]
        self.waits: list[int] = []
        """Time from each request of the other principal to its answer, in ns."""
        for client in self.crowd:
            ask(client)
        self._repeat()

    def _repeat(self) -> None:
        for client in self.crowd:
            if not client.closed and client.answers():
                ask(client)
        self.world.clock.call_later(MS // 2, self._repeat)

    def beside(self, other: Client, ms: int) -> None:
        """Ask from another principal every 20 ms."""
        asked_ns = [0]

        def again() -> None:
            if other.answers() and asked_ns[0]:
                self.waits.append(self.world.clock.now_ns() - asked_ns[0])
                asked_ns[0] = 0

        for _ in range(ms // 20):
            asked_ns[0] = self.world.clock.now_ns()
            ask(other)
            for _ in range(100):
                self.world.run(0.2)
                again()

    def served(self, ms: int) -> int:
        """Return how many requests of the crowd start within a time."""
        before = Counter(self.world.started)
        self.world.run(ms)
        ids = {client.session.info.id for client in self.crowd}
        return sum(n for one, n in (Counter(self.world.started) - before).items() if one in ids)


def test_crowd_of_one_principal_leaves_the_loop_idle_for_others(costly: CostlyWorld) -> None:
    """Another principal waits for one slice at most. The crowd has a quarter of the loop, and
    all of it before the other one comes and after it has gone."""
    load, other = Load(costly), costly.client(OTHER)
    alone = load.served(400)
    assert alone * COST_NS >= 350 * MS
    load.beside(other, 600)  # until it is judged
    load.waits.clear()
    before = len(costly.started)
    load.beside(other, 400)
    beside = len(costly.started) - before - len(load.waits)
    assert len(load.waits) == 20
    assert max(load.waits) <= SLICE_NS + 2 * COST_NS + MS // 5
    assert 400 * MS * SHARE * 0.6 <= beside * COST_NS <= 400 * MS * SHARE * 1.4
    costly.run(4_000)
    assert load.served(400) * COST_NS >= 350 * MS


def test_connections_over_the_share_take_turns(costly: CostlyWorld) -> None:
    """Each request is answered; one connection that closes while it waits leaves the line."""
    load, other = Load(costly), costly.client(OTHER)
    load.beside(other, 600)
    line = costly.frontend.turn.resting_line
    assert len(line) >= 6
    before = Counter(costly.started)
    load.beside(other, 400)
    counts = Counter(costly.started) - before
    of_crowd = [counts[client.session.info.id] for client in load.crowd]
    assert max(of_crowd) - min(of_crowd) <= 1
    for client in load.crowd:
        client.session.connection_lost()
        client.closed = True
    assert not line


def test_use_is_judged_by_share_and_by_time() -> None:
    """Alone, alike, or with little use, a principal is not over its share."""

    def judged(*used_ms: int) -> list[bool]:
        shares = LoopShares(SHARE)
        uses = [LoopUse() for _ in used_ms]
        for _ in range(6):
            for use, ms in zip(uses, used_ms, strict=True):
                if ms:
                    if not use.is_noted:
                        shares.note(use)
                    use.used_ns += ms * MS
            shares.look(shares.looks_ns or LOOK_NS)
        return [use.is_over for use in uses]

    assert judged(250) == [False]
    assert judged(250, 0) == [False, False]
    assert judged(120, 120) == [False, False]
    assert judged(20 * OTHERS_TIMES, 20) == [False, False]
    assert judged(20, 1) == [False, False]
    assert judged(200, 1) == [True, False]
    assert judged(150, 20, 20) == [True, False, False]


def test_use_of_a_principal_is_that_of_all_its_connections() -> None:
    """It is forgotten with the last of them."""
    shares = LoopShares(SHARE)
    use = shares.of("User:a")
    assert shares.of("User:a") is use
    assert shares.of("User:b") is not use
    use.used_ns = 1
    del use
    assert shares.of("User:a").used_ns == 0


def test_records_are_not_held_back(costly: CostlyWorld) -> None:
    """Produce, and Fetch of the usual size, are cheap together."""
    admission = costly.client().session.admission
    held = admission._is_held_back
    assert not held(API[PRODUCE], 1 << 20)
    assert not held(API[FETCH], USUAL_FETCH_BYTES)
    assert held(API[FETCH], USUAL_FETCH_BYTES + 1)
    assert held(API[API_VERSIONS], 1)
