"""Requests other than records have a short slice of each turn, and rest while a record passes."""

from __future__ import annotations

from collections.abc import Callable
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
from vdl.kafka.connections.admission import USUAL_FETCH_BYTES
from vdl.kafka.connections.turn_budget import (
    LOOK_NS,
    OTHERS_NS,
    PASSAGE_NS,
    REST,
    SLICE_NS,
    TURN_PARTS,
)
from vdl.kafka.connections.wide_request import PartSize
from vdl.kafka.parts import FIRST_ELEMENTS, PART_ELEMENTS, PART_NS

COST_NS: Final = MS // 5
CROWD, OTHER = ("10.0.0.1", 5000), ("10.0.0.2", 5000)


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> CostlyWorld:
    world = CostlyWorld()
    world.cost_ns = COST_NS
    row = API[API_VERSIONS]
    changed = Api(API_VERSIONS, row.name, row.min_version, row.max_version, "", world.handle)
    monkeypatch.setitem(API, API_VERSIONS, changed)
    return world


class Crowd:
    """Connections of one principal that always ask."""

    def __init__(
        self, world: CostlyWorld, connections: int = 8, address: tuple[str, int] = CROWD
    ) -> None:
        self.world = world
        self.clients = [world.client(address) for _ in range(connections)]
        for client in self.clients:
            ask(client)
        self._repeat()

    def _repeat(self) -> None:
        for client in self.clients:
            if client.answers():
                ask(client)
        self.world.clock.call_later(MS // 20, self._repeat)

    def share(self, ms: int) -> float:
        """Return the part of the next time that its requests take."""
        before = len(self.world.started)
        self.world.run(ms)
        return (len(self.world.started) - before) * COST_NS / (ms * MS)


def each_ms(world: CostlyWorld, step: Callable[[], None]) -> None:
    def again() -> None:
        step()
        world.clock.call_later(MS, again)

    again()


def test_crowd_has_all_of_the_loop_if_no_record_passes(costly: CostlyWorld) -> None:
    """Alone, and beside a principal whose last record is a while ago."""
    crowd = Crowd(costly)
    assert crowd.share(200) >= 0.9
    record_of(costly.client(OTHER), costly)
    costly.run(PASSAGE_NS / MS + 1)
    assert crowd.share(200) >= 0.9


def test_crowd_rests_only_for_records_of_others(costly: CostlyWorld) -> None:
    """It still has one part in (1 + REST) of the loop, however many records pass."""
    crowd, own, other = Crowd(costly), costly.client(CROWD), costly.client(OTHER)
    passing: list[Client] = [own]
    each_ms(costly, lambda: record_of(passing[0], costly))
    assert crowd.share(200) >= 0.9
    passing[0] = other
    share = crowd.share(400)
    assert 0.8 / (1 + REST) <= share <= 2 / (1 + REST)
    passing[0] = own
    costly.run(OTHERS_NS / MS)
    assert crowd.share(200) >= 0.9


def test_crowd_that_sends_records_rests_for_those_of_others(costly: CostlyWorld) -> None:
    """Its own records, however many, do not hide those of another principal."""
    crowd, own, other = Crowd(costly), costly.client(CROWD), costly.client(OTHER)

    def both() -> None:
        record_of(other, costly)
        record_of(own, costly)

    each_ms(costly, both)
    assert crowd.share(400) <= 2 / (1 + REST)


def test_crowd_rests_for_entries_of_other_leaders(costly: CostlyWorld) -> None:
    """A follower's disk holds up a record that this server has no request for."""
    crowd = Crowd(costly)
    record_of(costly.client(OTHER), costly)

    def arrive() -> None:
        costly.host.awaited_disk_ns = costly.clock.now_ns()

    each_ms(costly, arrive)
    assert crowd.share(400) <= 2 / (1 + REST)


def test_small_request_of_another_principal_does_not_rest_for_a_crowd(
    costly: CostlyWorld,
) -> None:
    """However many records pass. Crowds of two principals together have no more than before."""
    Crowd(costly)
    other, producer = costly.client(OTHER), costly.client(("10.0.0.3", 5000))
    each_ms(costly, lambda: record_of(producer, costly))
    costly.run(100)
    waits = []
    for _ in range(50):
        asked_ns = costly.clock.now_ns()
        ask(other)
        while not other.answers():
            assert costly.time.step()
        waits.append(costly.clock.now_ns() - asked_ns)
        costly.run(3.3)
    assert sorted(waits)[45] <= 3 * COST_NS
    Crowd(costly, address=("10.0.0.4", 5000))
    before = len(costly.started)
    costly.run(400)
    assert (len(costly.started) - before) * COST_NS <= 2 / (1 + REST) * 400 * MS


def test_other_requests_have_a_part_of_long_turns(costly: CostlyWorld) -> None:
    """With a slice of a fixed length, a long request would not end before its client gives up."""
    turn_ns = 20 * MS

    def work() -> None:
        costly.time.now_ns += turn_ns
        costly.clock.call_later(1, work)

    crowd, producer = Crowd(costly), costly.client(OTHER)
    each_ms(costly, lambda: record_of(producer, costly))
    work()
    share = crowd.share(2_000)
    assert 1 / (2 * TURN_PARTS) <= share <= 2 / TURN_PARTS
    budget = crowd.clients[0].session._turn.work_budget
    assert turn_ns // 2 <= budget.part_ns * TURN_PARTS <= 2 * turn_ns


def test_other_principal_waits_for_one_slice(costly: CostlyWorld) -> None:
    """A crowd of any size delays a request of another principal by a slice and what began."""
    Crowd(costly, 40)
    other, third = costly.client(OTHER), costly.client(("10.0.0.3", 5000))
    record_of(third, costly)
    costly.run(100)
    for _ in range(20):
        asked_ns = costly.clock.now_ns()
        ask(other)
        while not other.answers():
            assert costly.time.step()
        waited_ns = costly.clock.now_ns() - asked_ns
        assert waited_ns <= SLICE_NS + 3 * COST_NS + LOOK_NS
        costly.run(7)


@pytest.mark.parametrize("cost_ns", [MS // 10, SLICE_NS, MS])
def test_long_request_starts_beside_small_ones(costly: CostlyWorld, cost_ns: int) -> None:
    """Also if one small request takes all of a slice, while another principal sends records."""
    costly.cost_ns = cost_ns
    producer, other = costly.client(("10.0.0.3", 5000)), costly.client(OTHER)
    each_ms(costly, lambda: record_of(producer, costly))
    Crowd(costly, 2)
    costly.run(100)
    asked_ns = costly.clock.now_ns()
    ask(other, software="x" * 300)
    while not other.answers():
        assert costly.time.step()
        assert costly.clock.now_ns() - asked_ns < 1_000 * MS, "it never starts"


def record_of(client: Client, world: CostlyWorld) -> None:
    """Note a record of a client as a Produce that starts does."""
    turn, asker = world.frontend.turn, client.session.admission.asker
    if turn.produced_by != asker:
        turn.other_produces(asker)
    turn.produced_ns = world.clock.now_ns()


def test_records_have_a_budget_of_their_own(costly: CostlyWorld) -> None:
    """Produce, and Fetch of the usual size, are cheap together."""
    turn = costly.frontend.turn
    budget_of = costly.client().session.admission._budget_of
    assert budget_of(API[PRODUCE], 1 << 20) is turn.record_budget
    assert budget_of(API[FETCH], USUAL_FETCH_BYTES) is turn.record_budget
    assert budget_of(API[FETCH], USUAL_FETCH_BYTES + 1) is turn.work_budget
    assert budget_of(API[API_VERSIONS], 1) is turn.work_budget


def test_part_has_as_many_elements_as_fit_its_time() -> None:
    """Cheap elements grow the next part twofold at most; costly ones shrink it at once."""
    size = PartSize(FIRST_ELEMENTS)
    size.took(0)
    assert size.elements == 2 * FIRST_ELEMENTS
    size.took(4 * PART_NS)
    assert size.elements == FIRST_ELEMENTS // 2
    size.took(10_000 * PART_NS)
    assert size.elements == 1
    size.took(PART_NS, 2 * PART_NS)
    assert size.elements == 2
    for _ in range(20):
        size.took(0)
    assert size.elements == PART_ELEMENTS
