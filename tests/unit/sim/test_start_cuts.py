"""Interrupted starts: their remains, the restart, and the end of interruptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from segments.api import StorageError
from segments.store import DiskStore
from vdl.clock import MS
from vdl.sim.machine import RESTART_NS, Condition, Machine, StartCut
from vdl.sim.options import Options, draw
from vdl.sim.world import World

S = 1_000 * MS
ALONE = Options(servers=1, partitions=1, plain_producers=0, members=0, readers=0)


def tell(story: Callable[[World, Machine], None], options: Options = ALONE) -> World:
    """Run a world whose only machine goes through `story`; nothing may be violated."""
    world = World(1, options)
    outcome = world.live(lambda: story(world, world.machines[0]))
    assert outcome.violations == [], "\n".join([*outcome.trace.tail, *map(str, outcome.violations)])
    return world


@pytest.mark.parametrize("how", list(StartCut))
def test_cut_start_leaves_no_process_and_is_made_up_for(how: StartCut) -> None:
    """No listener, no lock and no pending write is left; after a delay it starts again."""

    def story(world: World, machine: Machine) -> None:
        world.run_for(1 * S)
        machine.power_cut()
        machine.start_and_cut(how)
        assert machine.life is None
        assert machine.server is None
        assert machine.condition is (Condition.DOWN if how is StartCut.KILL else Condition.OFF)
        assert not machine.disk.locks
        lives = machine.lives
        world.run_for(RESTART_NS - 1)
        assert machine.life is None
        world.run_for(1)
        assert machine.condition is Condition.RUNNING
        assert machine.lives == lives + 1
        world.run_for(1 * S)

    world = tell(story)
    assert world.machines[0].starts_cut == 1
    assert world.machines[0].crashes == 1, "a start that was cut had no life to lose"


def test_cut_start_that_someone_else_makes_up_for_is_not_started_twice() -> None:
    """The delayed restart finds another process, even one that has ended by then."""

    def story(world: World, machine: Machine) -> None:
        machine.kill()
        machine.start_and_cut(StartCut.POWER)
        machine.start()
        lives = machine.lives
        world.run_for(RESTART_NS // 2)
        machine.kill()
        world.run_for(RESTART_NS)
        assert (machine.condition, machine.lives) == (Condition.DOWN, lives)
        machine.start()

    tell(story)


def test_starts_are_cut_several_times_in_a_row_until_all_is_healed() -> None:
    """Each start is drawn anew; after the heal none is interrupted."""

    def story(world: World, machine: Machine) -> None:
        world.run_for(1 * S)
        machine.kill()
        machine.cuts_in_start = 1.0
        machine.start()
        for cut in range(1, 6):
            assert (machine.life, machine.starts_cut) == (None, cut)
            world.run_for(RESTART_NS)

    world = tell(story)
    assert world.machines[0].cuts_in_start == 0.0
    assert world.machines[0].starts_cut == 6


def test_world_is_born_and_lives_though_most_starts_are_cut() -> None:
    """Starts are cut in each way from the first one on; acknowledged records stay."""

    def story(world: World, machine: Machine) -> None:
        for _ in range(4):
            world.run_for(1 * S)
            machine.power_cut()
            machine.start()
            assert world.wait(60 * S, lambda: machine.life is not None)
        world.run_for(1 * S)

    world = tell(story, replace(ALONE, cuts_in_start=0.7))
    assert world.machines[0].starts_cut > 4


def test_start_that_cannot_read_its_disk_is_an_error_though_it_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that would also end the next start is not swallowed."""

    def fail(*_: object, **__: object) -> None:
        raise StorageError("unreadable")

    def story(world: World, machine: Machine) -> None:
        machine.kill()
        with monkeypatch.context() as patch:
            patch.setattr(DiskStore, "open", fail)
            with pytest.raises(StorageError):
                machine.start_and_cut(StartCut.KILL)
        machine.start()

    tell(story)


def test_knob_is_off_in_a_fifth_of_the_seeds() -> None:
    """Like every other option."""
    drawn = [draw(Random(f"options {seed}")).cuts_in_start for seed in range(1_000)]
    assert 150 < drawn.count(0.0) < 250
    assert 0.0 <= min(drawn) < max(drawn) <= 0.6
