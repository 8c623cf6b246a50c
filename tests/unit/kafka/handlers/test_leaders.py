"""Waiting for leaders."""

from __future__ import annotations

import gc

import pytest

from tests.unit.kafka.fake_host import World
from vdl.clock import MS
from vdl.kafka.answer import Later
from vdl.kafka.handlers.leaders import when_led


class Waiting:
    """Waiter for groups 1 to 3, of which the second has no leader, for a second at most."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.host.leaders |= {1: (1, 5), 3: (1, 5)}
        self.later = Later()
        deadline_ns = world.clock.now_ns() + 1_000 * MS
        when_led(
            world.context, (1, 2, 3), deadline_ns=deadline_ns, later=self.later, done=self._done
        )

    def _done(self) -> None:
        self.later.complete(self.world.clock.now_ns() // MS)


def test_wait_for_leaders_ends_when_all_are_led() -> None:
    world = World()
    waiting = Waiting(world)
    world.run(100)
    assert not waiting.later.done
    world.host.leaders[2] = (3, 5)
    world.run(10)
    assert waiting.later.done
    assert world.context.leader_waits == 0


def test_wait_for_leaders_ends_at_its_deadline() -> None:
    world = World()
    waiting = Waiting(world)
    world.run(1_001)
    assert waiting.later.response == 1_000
    assert world.context.leader_waits == 0


def test_wait_for_leaders_ends_when_its_client_has_gone() -> None:
    world = World()
    waiting = Waiting(world)
    waiting.later.cancel()
    world.run(10)
    assert world.context.leader_waits == 0
    assert not world.time.step()


def test_many_that_wait_for_leaders_look_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many waiters must not keep the server busy during a failover."""
    world = World()
    looks = 0
    leader_of = world.host.leader_of

    def counted(group_id: int) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return leader_of(group_id)

    monkeypatch.setattr(world.host, "leader_of", counted)
    waiting = [Waiting(world) for _ in range(1_000)]
    world.run(990)
    assert looks < 30_000
    world.run(20)
    assert all(one.later.done for one in waiting)


def test_who_waits_for_leaders_leaves_nothing_for_the_collector() -> None:
    """The collector runs seldom, and many requests may wait."""
    world = World()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            when_led(world.context, (2,), deadline_ns=MS, later=Later(), done=list)
        world.run(10)
        assert gc.collect() == 0
    finally:
        gc.enable()
