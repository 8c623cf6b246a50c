"""A coordinator's state that is too large for one turn is loaded, sent and stored in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from segments import memory
from tests.unit.logstream.conftest import Cluster
from vdl.clock import MS
from vdl.logstream.group import state_encoding, state_loading
from vdl.logstream.group.group import Group
from vdl.logstream.group.snapshots import open_snapshot
from vdl.logstream.group.state_encoding import StateEncodings
from vdl.logstream.group.state_group import Outcome, OutcomeKind, StateGroup
from vdl.logstream.membership import open_replica
from vdl.state import commands
from vdl.state.coordinator import Coordinator

NUMBER = 1
"""Group id of the coordinator."""
PIECE = 50
KEPT = 80


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few hundred positions a large state. A piece takes a millisecond."""
    monkeypatch.setattr(state_loading, "LOADED_PER_TURN", PIECE)
    monkeypatch.setattr(open_replica, "LOADED_PER_TURN", PIECE)
    monkeypatch.setattr(state_encoding, "CHANGES_KEPT", KEPT)

    def arm(self: StateEncodings) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._clock.call_later(MS, self._next)

    monkeypatch.setattr(StateEncodings, "_arm", arm)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of items in each piece loaded by any server."""
    sizes: list[int] = []
    load_more = Coordinator.load_more

    def counted(machine: Coordinator, items: Any) -> None:
        sizes.append(len(items))
        load_more(machine, items)

    monkeypatch.setattr(Coordinator, "load_more", counted)
    return sizes


def state_group(cluster: Cluster, server_id: int) -> StateGroup:
    return cluster.nodes[server_id].host.state.state_groups[NUMBER]


def leader(cluster: Cluster) -> StateGroup:
    up = [one for one, node in cluster.nodes.items() if not node.clock.stopped]
    return next(group for one in up if (group := state_group(cluster, one)).serving)


def propose(cluster: Cluster, command: Any) -> Any:
    outcomes: list[Outcome] = []
    leader(cluster).propose(command, deadline_ns=cluster.deadline(), done=outcomes.append)
    cluster.run(50)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.APPLIED]
    return outcomes[0].result


def commit(cluster: Cluster, group: str, count: int, offset: int = 1) -> None:
    offsets = [
        commands.OffsetCommit("t", b"i" * 16, number, offset, -1, "m" * 30, 9)
        for number in range(count)
    ]
    assert propose(cluster, commands.CommitOffsets(group, -1, "", None, offsets)).error == 0


def items(cluster: Cluster, server_id: int) -> Any:
    return state_group(cluster, server_id).items()


def checkpoint(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        if not node.clock.stopped:
            node.store.checkpoint()
    cluster.run(1_200)


@pytest.fixture
def large(forgetful: Cluster) -> Cluster:
    """Return hosts with some hundred positions each, and short logs."""
    propose(forgetful, commands.RaisePositionsBound(64 << 20, 1_000_000))
    for number in range(10):
        commit(forgetful, f"g{number}", 60)
    return forgetful


def follower(cluster: Cluster) -> int:
    led = leader(cluster)
    return next(one for one in cluster.nodes if state_group(cluster, one) is not led)


def fall_behind(cluster: Cluster, server_id: int) -> None:
    """Keep the server away until the others' logs begin behind the end of its own."""
    cluster.nodes[server_id].crash()
    for number in range(40):
        commit(cluster, f"g{number % 10}", 60, number)
        if number % 5 == 4:
            checkpoint(cluster)
    assert leader(cluster).group.log.first_index > 30


def until_it_loads_a_snapshot(cluster: Cluster, server_id: int) -> Group:
    for _ in range(5_000):
        cluster.run(1)
        found = cluster.nodes[server_id].host.state.state_groups.get(NUMBER)
        group = None if found is None else found._group
        if group is not None and group._state.loading is not None:
            cluster.run(3)
            return group
    raise AssertionError("it loads nothing")


def test_changes_are_encoded_before_a_checkpoint_has_to_do_it(large: Cluster) -> None:
    """On every replica a bounded number waits for it, and the checkpoint stores all of them."""
    for server_id in large.nodes:
        assert state_group(large, server_id).machine.changed_positions <= KEPT
    expected = items(large, 1)
    checkpoint(large)
    for server_id, node in large.nodes.items():
        log = state_group(large, server_id).group.log
        _, stored = node.store.load_meta(log)
        assert [item for item in stored if item[0] != b"\0"] == expected


def test_state_that_was_stored_is_loaded_in_pieces(large: Cluster, loads: list[int]) -> None:
    """After a start. Entries committed since the checkpoint are applied again behind it.

    They are encoded in several turns for the next one.
    """
    checkpoint(large)
    for number in range(4):
        commit(large, f"g{number}", 60, 7)
    expected = items(large, 1)
    loads.clear()
    node = large.nodes[follower(large)]
    node.crash()
    node.start()
    large.run(3_000)
    assert max(loads) <= PIECE
    assert sum(loads) > 600
    assert items(large, node.id) == expected
    checkpoint(large)
    checkpoint(large)
    assert state_group(large, node.id).machine.changed_positions == 0
    node.crash()
    node.start()
    large.run(3_000)
    assert items(large, node.id) == expected


def test_replica_that_is_not_wanted_any_more_is_not_loaded_on(
    large: Cluster, loads: list[int]
) -> None:
    """The server stops while it loads: its successor begins anew."""
    checkpoint(large)
    node = large.nodes[follower(large)]
    node.crash()
    loads.clear()
    node.start()
    for _ in range(1_000):
        if loads:
            break
        large.run(1)
    node.crash()
    count = len(loads)
    large.run(100)
    assert len(loads) == count < 600 // PIECE
    node.start()
    large.run(3_000)
    assert items(large, node.id) == leader(large).items()


def test_snapshot_in_parts_brings_a_replica_up_to_date(large: Cluster, loads: list[int]) -> None:
    """It is loaded in pieces. Entries committed in the meantime are applied after all of it.

    Until then the state is not used, and no checkpoint stores it.
    """
    away = follower(large)
    fall_behind(large, away)
    loads.clear()
    node = large.nodes[away]
    node.start()
    group = until_it_loads_a_snapshot(large, away)
    assert not group.is_whole
    assert group.snapshot_for(1) is None
    assert group.collect_meta() is None
    commit(large, "late", 5)
    large.run(3_000)
    assert group.is_whole
    assert max(loads) <= PIECE
    assert items(large, away) == leader(large).items()
    data = node.store.load_meta
    assert group.log.installed_state
    assert open_snapshot(group.log.installed_state).is_in_parts
    checkpoint(large)
    assert not group.log.installed_state
    applied, stored = data(group.log)
    assert applied == group.applied
    assert [item for item in stored if item[0] != b"\0"] == items(large, away)


def test_replica_that_loads_a_snapshot_does_not_lead(
    large: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader stops in the meantime, and no other can lead: this one does once it can serve.

    Until then its peers know that they must not transfer the leadership to it.
    """
    away = follower(large)
    fall_behind(large, away)
    monkeypatch.setattr(state_loading, "LOADED_PER_TURN", 1)
    large.nodes[away].start()
    group = until_it_loads_a_snapshot(large, away)
    large.run(20)
    ids = set(large.nodes) - {away}
    assert not any(large.nodes[one].host._status.can_lead(away, NUMBER) for one in ids)
    gone = next(one for one in ids if state_group(large, one).serving)
    (other,) = ids - {gone}
    state_group(large, other).group.node.allow_leading(allowed=False)
    large.nodes[gone].crash()
    while group.is_loading:
        large.run(1)
        assert not group.node.is_leader
    large.run(3_000)
    assert leader(large).group is group


def test_crash_while_a_snapshot_is_loaded_loses_nothing(large: Cluster) -> None:
    """The journal has the snapshot: the next start loads it from there."""
    away = follower(large)
    fall_behind(large, away)
    node = large.nodes[away]
    node.start()
    until_it_loads_a_snapshot(large, away)
    node.store.checkpoint()
    node.crash()
    large.run(200)
    node.start()
    large.run(4_000)
    assert items(large, away) == leader(large).items()


@pytest.fixture
def encodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of states that were encoded in one turn."""
    sizes: list[int] = []
    encode = Coordinator.items

    def counted(machine: Coordinator) -> Any:
        found = encode(machine)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(Coordinator, "items", counted)
    return sizes


def restart(cluster: Cluster, server_id: int) -> None:
    node = cluster.nodes[server_id]
    node.crash()
    node.start()
    cluster.run(4_000)


def stored_again(cluster: Cluster, server_id: int) -> Any:
    """Return the state after a restart without a replay: all of it comes from a checkpoint."""
    checkpoint(cluster)
    checkpoint(cluster)
    assert not state_group(cluster, server_id).group.log.installed_state
    restart(cluster, server_id)
    return items(cluster, server_id)


def test_first_checkpoint_behind_a_snapshot_encodes_nothing_anew(
    large: Cluster, encodes: list[int]
) -> None:
    """After a restart too: the journal's snapshot was encoded already."""
    away = follower(large)
    fall_behind(large, away)
    node = large.nodes[away]
    node.start()
    until_it_loads_a_snapshot(large, away)
    large.run(3_000)
    restart(large, away)
    group = state_group(large, away).group
    assert group.log.installed_state
    commit(large, "late", 5)
    encodes.clear()
    checkpoint(large)
    checkpoint(large)
    assert encodes == []
    assert stored_again(large, away) == leader(large).items()


def test_checkpoint_for_one_that_was_lost_encodes_nothing_in_one_turn(
    large: Cluster, encodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start then replays the whole log, and all of the state counts as changed."""
    away = follower(large)
    restart(large, away)
    log = state_group(large, away).group.log
    monkeypatch.setattr(memory.MemoryLog, "is_meta_lost", property(lambda found: found is log))
    encodes.clear()
    checkpoint(large)
    checkpoint(large)
    assert log.applied_index > 10
    assert encodes == []
    monkeypatch.undo()
    restart(large, away)
    assert items(large, away) == leader(large).items()


def test_another_snapshot_takes_the_place_of_one_that_is_being_loaded(large: Cluster) -> None:
    """The new snapshot includes the entries that waited for the first."""
    away = follower(large)
    fall_behind(large, away)
    led, node = leader(large), large.nodes[away]
    node.start()
    group = until_it_loads_a_snapshot(large, away)
    first = group._state.loading
    assert first is not None
    led.group.snapshots.cache.forget_snapshot()
    commit(large, "late", 70)
    for _ in range(100):
        snapshot = led.group.snapshot_for(1)
        if snapshot is not None:
            break
        large.run(20)
    assert snapshot is not None
    outbox = node.host.state.outbox
    group._take_items(open_snapshot(snapshot.data), outbox)
    assert group._state.loading is not first
    large.run(100)
    assert group.is_whole
    assert state_group(large, away).machine.offsets.of("late").keys() == {
        ("t", number) for number in range(70)
    }
