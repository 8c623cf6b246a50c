"""Damage found at a restart, and segments whose writes hang while the journal goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tests.sim.test_stories import CALM, S, tell
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.state import CATALOG_GROUP
from vdl.sim.machine import Machine
from vdl.sim.world import World

pytestmark = pytest.mark.takes_turns(parts=2)

SMALL = replace(CALM, segment_kib=8, cache_kib=256, checkpoint_kib=16, record_bytes_max=1_000)


def group_of(machine: Machine, group_id: int) -> Group | None:
    host = machine.server.host if machine.server is not None else None
    return host.groups.get(group_id) if host is not None else None


def damage_two(world: World, leader: Machine, group_id: int) -> list[Machine]:
    """Stop two machines, each with a different damaged entry of the group."""
    chosen = [leader, next(machine for machine in world.machines if machine is not leader)]
    logs = [machine.log_of(group_id) for machine in chosen]
    for place, (machine, log) in enumerate(zip(chosen, logs, strict=True)):
        assert log is not None
        index = 3 + place
        assert log.flushed_index > index + 1
        machine.kill()
        machine.open_hole(group_id, log.log_id, index, Random(place))
        assert machine.unhealed()
    return chosen


def settles(world: World, chosen: list[Machine], group_id: int) -> Callable[[], bool]:
    def whole() -> bool:
        groups = [group_of(machine, group_id) for machine in chosen]
        return all(group is not None and group.is_whole for group in groups)

    return whole


def test_two_replicas_with_different_damaged_entries_heal_from_each_other() -> None:
    """No other server runs, and neither replica is lost: every entry is intact on one of them."""

    def story(world: World, leader: Machine) -> None:
        world.run_for(8 * S)
        (group_id,) = {world.watch.raft.partitions[key] for key in world.watch.raft.partitions}
        chosen = damage_two(world, leader, group_id)
        third = next(machine for machine in world.machines if machine not in chosen)
        third.kill()
        for machine in chosen:
            machine.start()

        def opened() -> bool:
            return all(group_of(machine, group_id) is not None for machine in chosen)

        # They wait an election timeout for the third one, to compare their directories with it.
        until_ns = world.time.now_ns + 2 * S
        while not opened() and world.time.now_ns < until_ns:
            world.run_for(MS)
        for machine in chosen:
            group = group_of(machine, group_id)
            assert group is not None
            assert not group.is_whole
        assert world.wait(10 * S, settles(world, chosen, group_id))
        assert world.wait(5 * S, lambda: world.leader() in chosen)
        assert not any(machine.unhealed() for machine in chosen)
        third.start()

    tell(story, SMALL)


def test_two_servers_with_different_damaged_entries_in_the_catalog_come_back() -> None:
    """Until the catalog is intact they do not apply it; then they serve."""

    def story(world: World, leader: Machine) -> None:
        world.run_for(8 * S)
        chosen = damage_two(world, leader, CATALOG_GROUP)
        for machine in chosen:
            machine.start()
        world.run_for(20 * MS)
        for machine in chosen:
            host = machine.server.host if machine.server is not None else None
            if host is not None and not host.groups[CATALOG_GROUP].is_whole:
                assert host.state_group(CATALOG_GROUP) is None
                assert not host.is_known
        assert world.wait(10 * S, settles(world, chosen, CATALOG_GROUP))

    tell(story, SMALL)


def test_follower_whose_flush_starves_holds_no_more_than_its_bound() -> None:
    """It refuses appends, its leader goes on with the other follower.

    It catches up by itself when its segment writes continue.
    """

    def story(world: World, leader: Machine) -> None:
        follower = next(machine for machine in world.machines if machine is not leader)
        follower.starve(is_starved=True)
        world.run_for(10 * S)
        host = follower.server.host if follower.server is not None else None
        store = follower.life.store if follower.life is not None else None
        assert host is not None
        assert store is not None
        assert host.stats.appends_refused, "there was enough to refuse"
        # One entry may exceed the bound, and Raft's own entries are accepted beyond it.
        assert store.unflushed_bytes < host.state.unflushed_bytes_max + (16 << 10)
        follower.starve(is_starved=False)

    tell(story, replace(CALM, small_cache_kib=32, record_bytes_max=1_000))


def test_leader_whose_flush_hangs_gives_its_leaderships_away() -> None:
    """The journal goes on, so its followers would never depose it."""

    def story(world: World, leader: Machine) -> None:
        leader.starve(is_starved=True)
        world.run_for(7 * S)
        assert world.leader() not in {None, leader}
        leader.starve(is_starved=False)
        world.run_for(2 * S)

    tell(story, replace(CALM, checkpoint_kib=16))
