"""Worlds whose servers join and leave: it happens, faults hit the middle of it, nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from ids import ServerId
from rpc.peer import FrameType
from rpc.queries import Quorum
from vdl.clock import MS
from vdl.config.values import Address
from vdl.errors import ErrorCode
from vdl.logstream.host import Host
from vdl.logstream.membership.replacement import Replacement
from vdl.logstream.state import CATALOG_GROUP
from vdl.server.server import ServerState
from vdl.sim.joiners import OTHER_PEER_PORT
from vdl.sim.machine import PEER_PORT, Machine
from vdl.sim.member_faults import Apart, LostJoiner, StrikeBetween
from vdl.sim.options import Options
from vdl.sim.world import World

S = 1_000 * MS
CALM = Options(partitions=2, members=0, readers=0, joiners=1, servers=3)
"""One server waits, and is not added."""
NEW = ServerId(4)


def host_of(machine: Machine) -> Host:
    assert machine.server is not None
    assert machine.server.host is not None
    return machine.server.host


def asked(world: World, act: Callable[[Host, Callable[..., None]], None]) -> object:
    """Send a request to server 1, and return its result."""
    errors: list[object] = []
    machine = world.machines[0]
    assert machine.life is not None
    world.time.enter(machine.life.clock)
    act(host_of(machine), lambda error, message: errors.append(error))
    world.time.enter(None)
    assert world.wait(5 * S, lambda: bool(errors))
    return errors[0]


def add(world: World, port: int = PEER_PORT) -> None:
    def admit(host: Host, done: Callable[..., None]) -> None:
        deadline_ns = host.clock.now_ns() + 2 * S
        host.added_servers.admit(NEW, "s4", port, deadline_ns=deadline_ns, done=done)

    assert asked(world, admit) is ErrorCode.NONE


def remove(world: World, server_id: ServerId = NEW) -> None:
    def leave(host: Host, done: Callable[..., None]) -> None:
        host.added_servers.decommission(
            server_id, is_leaving=True, deadline_ns=host.clock.now_ns() + 2 * S, done=done
        )

    assert asked(world, leave) is ErrorCode.NONE


def serves(world: World) -> bool:
    server = world.machines[3].server
    return server is not None and server.state is ServerState.SERVING


def dialled(machine: Machine) -> tuple[str, int] | None:
    """Return the address at which a machine's server dials the new one."""
    if machine.server is None or machine.server.host is None:
        return None
    peer = host_of(machine).state.transport._peers.get(NEW)
    return None if peer is None else peer.address


def story_of(story: Callable[[World], None], options: Options = CALM) -> World:
    """Run a story in a world without other faults. Nothing may be violated."""
    world = World(1, options)
    outcome = world.live(lambda: story(world))
    assert outcome.violations == []
    return world


def test_servers_join_and_leave_and_break_nothing() -> None:
    world = World(1, replace(CALM, member_changes=2.0, moves=0.5, seconds=8))
    assert world.run().violations == []
    assert world.joiners is not None
    assert world.joiners.accepted > 3


def test_address_of_the_catalog_is_dialled_and_not_an_old_one_of_the_file() -> None:
    """It is what an operator said last; a removed server is dialled nowhere, by no file."""

    def story(world: World) -> None:
        new, first = world.machines[3], world.machines[0]
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        seeds = {**first.config.seeds, NEW: Address("s4", 1)}
        first.config = replace(first.config, seeds=seeds)
        new.kill()
        new.peer_port = OTHER_PEER_PORT
        new.start()
        world.run_for(2 * S)
        add(world, OTHER_PEER_PORT)
        first.kill()
        first.start()
        present = "s4", OTHER_PEER_PORT
        assert world.wait(10 * S, lambda: all(map(dialled, world.initial)))
        world.run_for(1 * S)
        assert {dialled(machine) for machine in world.initial} == {present}
        remove(world)
        assert world.wait(10 * S, lambda: not host_of(first).catalog.added)
        world.run_for(1 * S)
        assert {dialled(machine) for machine in world.initial} == {None}
        first.kill()
        first.start()
        world.run_for(5 * S)
        assert dialled(first) is None

    story_of(story)


def test_added_server_that_lost_its_disk_waits_until_it_is_added_again() -> None:
    """With replicas of partitions, too; the others have all records."""

    def story(world: World) -> None:
        new = world.machines[3]
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        fault = LostJoiner()
        assert world.wait(10 * S, lambda: fault.begin(world, Random(1)))
        fault.end(world)
        world.run_for(5 * S)
        assert new.server is not None
        assert new.server.waits_to_be_added
        assert new.server.host is None
        add(world)
        assert world.wait(10 * S, lambda: serves(world))

    story_of(story)


def test_replica_that_is_back_under_its_number_in_another_directory_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has forgotten what it acknowledged (segments/README.md)."""

    def number_for(replacement: Replacement, server_id: ServerId) -> int:
        catalog = replacement._state.catalog
        return catalog.replica_number(CATALOG_GROUP, server_id) if catalog.added else 0

    world = World(1, CALM)

    def story() -> None:
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        monkeypatch.setattr(Replacement, "number_for", number_for)
        world.machines[3].wipe()
        world.machines[3].start()
        world.run_for(3 * S)

    violations = world.live(story).violations
    assert "number-reused" in {violation.name for violation in violations}


def test_added_server_is_an_observer_of_the_quorum() -> None:
    """As Kafka's tools describe it; it has no vote (KIP-595)."""

    def story(world: World) -> None:
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))

        def describe(host: Host, done: Callable[..., None]) -> None:
            deadline_ns = host.clock.now_ns() + 2 * S
            host.describe_quorum(deadline_ns=deadline_ns, done=lambda found: done(found, ""))

        quorum = asked(world, describe)
        assert isinstance(quorum, Quorum)
        assert {m.server_id: m.is_learner for m in quorum.members} == {
            1: False, 2: False, 3: False, NEW: True,
        }  # fmt: skip

    story_of(story)


@pytest.mark.parametrize("seed", range(4))
def test_server_is_struck_while_one_joins(seed: int) -> None:
    """Not before: then nothing is in progress."""

    def story(world: World) -> None:
        world.run_for(1 * S)
        fault = StrikeBetween()
        assert not fault.begin(world, Random(seed))
        add(world)
        assert fault.begin(world, Random(seed))
        life = fault.machine.life
        assert life is None or life.clock.paused
        world.run_for(2 * S)
        fault.end(world)
        assert world.wait(20 * S, lambda: serves(world))
        world.run_for(2 * S)
        assert not StrikeBetween().begin(world, Random(seed))

    story_of(story)


def test_server_is_removed_while_it_is_cut_off_and_learns_of_it_later() -> None:
    """It serves until it hears of a majority that it was removed (thesis §4.2.3)."""

    def story(world: World) -> None:
        new = world.machines[3]
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        fault = Apart()
        rng = Random(1)
        rng.randint = lambda low, high: 0  # type: ignore[method-assign] # all initial ones are near
        assert fault.begin(world, rng)
        world.run_for(3 * S)
        remove(world)
        assert world.wait(10 * S, lambda: not host_of(world.machines[0]).catalog.added)
        assert serves(world)
        fault.end(world)
        assert new.server is not None
        server = new.server
        assert world.wait(10 * S, lambda: server.state is ServerState.REMOVED)

    story_of(story)


def test_new_address_is_not_reported_to_a_removed_server() -> None:
    """It has a catalog, in which the address is the old one for ever."""

    def story(world: World) -> None:
        new, first = world.machines[3], world.machines[0]
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        assert first.server is not None
        server = first.server
        remove(world, first.server_id)
        assert world.wait(20 * S, lambda: server.state is ServerState.REMOVED)
        new.kill()
        new.peer_port = OTHER_PEER_PORT
        new.start()
        joiners = world.joiners
        assert joiners is not None
        joiners.stop()
        assert world.wait(20 * S, lambda: not joiners.unsettled()), joiners.unsettled()

    story_of(story)


def test_removed_server_ends_serving_though_few_of_the_voters_that_it_knew_are_left() -> None:
    """It was cut off while it served. The voters of now refuse it, and it has no majority."""

    def story(world: World) -> None:
        first, third = world.machines[0], world.machines[2]
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        others = [machine.name for machine in world.machines if machine is not third]
        pairs = [pair for name in others for pair in ((third.name, name), (name, third.name))]
        for one, other in pairs:
            world.network.cut(one, other)
        world.run_for(3 * S)
        remove(world, third.server_id)
        assert world.wait(20 * S, lambda: not host_of(first).catalog.is_member(third.server_id))
        assert third.server is not None
        server = third.server
        assert server.state is ServerState.SERVING
        first.kill()
        for one, other in pairs:
            world.network.heal(one, other)
        assert world.wait(30 * S, lambda: server.state is ServerState.REMOVED)
        first.start()

    story_of(story)


def test_removed_server_gives_the_record_to_none() -> None:
    """A server that was removed later would take itself for a member, and not wait to be added."""

    def story(world: World) -> None:
        first = world.machines[0]
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        remove(world, first.server_id)
        server = first.server
        assert server is not None
        assert world.wait(20 * S, lambda: server.state is ServerState.REMOVED)
        sent: list[FrameType] = []
        server.links.send = lambda to, kind, *_, **__: bool(sent.append(kind))  # type: ignore[method-assign,func-returns-value]
        server.frame(NEW, FrameType.ASK, memoryview(b""))
        assert not sent

    story_of(story)


def test_removed_server_that_was_answered_late_waits_and_is_added() -> None:
    """It has an empty directory, and the record with which it began."""

    def story(world: World) -> None:
        first, joiners = world.machines[0], world.joiners
        assert joiners is not None
        world.run_for(1 * S)
        add(world)
        assert world.wait(10 * S, lambda: serves(world))
        remove(world, first.server_id)
        assert world.wait(20 * S, lambda: joiners.takes_part(first) is False)
        joiners._ask(world.machines[1], first, 0.0)
        world.run_for(5 * S)
        assert not joiners.unsettled()
        assert first.server is not None
        assert first.server.host is not None
        assert first.server.state is ServerState.WAITING
        joiners.stop()
        joiners._ask(world.machines[1], first, 0.0)
        server = first.server
        assert world.wait(20 * S, lambda: server.state is ServerState.SERVING)

    story_of(story)
