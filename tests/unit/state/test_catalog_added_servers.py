"""Servers that are added to the catalog, drained and removed."""

from __future__ import annotations

from typing import Any

import pytest

from ids import DirectoryId, GroupId, ServerId
from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.reassignment import ReplicaInfo

INITIAL = {ServerId(n): DirectoryId(bytes([n]) * 16) for n in (1, 2, 3)}
NEW = DirectoryId(b"n" * 16)
OTHER = DirectoryId(b"o" * 16)


def _apply(catalog: Catalog, command: commands.Command) -> Any:
    return catalog.apply(command, 0, 1)


def _register(catalog: Catalog, server_id: int, directory: bytes, rack: str = "") -> Any:
    listeners = {"PLAINTEXT": (f"h{server_id}", 9092)}
    return _apply(
        catalog, commands.RegisterServer(server_id, directory, rack, listeners, server_id <= 3)
    )


def _cluster() -> Catalog:
    """Return the catalog of three servers that have registered."""
    catalog = Catalog("c", coordinator_groups=2, initial_voters=INITIAL)
    for server_id, directory in INITIAL.items():
        _register(catalog, server_id, directory)
    return catalog


def _admit(catalog: Catalog, server_id: int = 4, directory: bytes = NEW) -> Any:
    return _apply(catalog, commands.AdmitServer(server_id, directory, f"h{server_id}", 9192))


def _grown() -> Catalog:
    """Return the catalog of four servers, one of them added."""
    catalog = _cluster()
    assert _admit(catalog).error is ErrorCode.NONE
    assert _register(catalog, 4, NEW).error is ErrorCode.NONE
    return catalog


def _topic(catalog: Catalog, name: str, assignments: list[list[int]]) -> list[GroupId]:
    topic = commands.NewTopic(name, name.encode().ljust(16, b"-"), assignments=assignments)
    return _apply(catalog, commands.CreateTopics([topic])).topics[0].group_ids


def _drain(catalog: Catalog, moves_max: int = 32, limit: int = 0) -> Any:
    return _apply(catalog, commands.DrainServers([1, 2, 3, 4], moves_max, limit))


def _servers(catalog: Catalog, group_id: GroupId) -> list[int]:
    return [replica.server_id for replica in catalog.replicas(group_id)]


def assert_derived(catalog: Catalog) -> None:
    """Assert that the groups by server, and the open moves, are those of the state."""
    for server in catalog.servers:
        listed = {
            group
            for group in catalog.groups
            if any(replica.server_id == server for replica in catalog.listed(group))
        }
        assert set(catalog.held[server]) == listed, server
    assert catalog.open_moves == {g for g, move in catalog.moves.items() if move.is_open}


def _finish(catalog: Catalog, *groups: GroupId) -> None:
    moves = [commands.FinishedMove(g, catalog.move(g).revision) for g in groups]
    _apply(catalog, commands.FinishReassignments(moves))


def test_added_server_is_no_voter_of_any_system_group() -> None:
    """The voters of the catalog and the coordinators stay; the new replica only observes."""
    catalog = _cluster()
    before = [catalog.replicas(GroupId(g)) for g in range(3)]
    _admit(catalog)
    assert [catalog.replicas(GroupId(g)) for g in range(3)] == before
    assert catalog.observers(GroupId(0)) == [ReplicaInfo(ServerId(4), 1)]
    assert not catalog.observers(GroupId(1))
    assert [catalog.replica_number(GroupId(g), ServerId(4)) for g in range(3)] == [1, 0, 0]


def test_added_server_gets_no_replica_before_it_has_registered() -> None:
    """A half-done addition places nothing: four replicas are still impossible."""
    catalog = _cluster()
    _admit(catalog)
    new = commands.NewTopic("t", b"t" * 16, 1, 4)
    answer = _apply(catalog, commands.CreateTopics([new]))
    assert answer.topics[0].error is ErrorCode.INVALID_REPLICATION_FACTOR
    _register(catalog, 4, NEW)
    assert _apply(catalog, commands.CreateTopics([new])).topics[0].error is ErrorCode.NONE


def test_addition_binds_one_directory() -> None:
    """Another directory under the id, and a directory in use, are refused; the same is repeated."""
    catalog = _cluster()
    _admit(catalog)
    assert _admit(catalog).error is ErrorCode.NONE
    assert _admit(catalog, directory=OTHER).error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert _admit(catalog, 5, NEW).error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert _admit(catalog, 5, INITIAL[ServerId(1)]).error is not ErrorCode.NONE
    assert _admit(catalog, 1, OTHER).error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    refused = _register(catalog, 4, OTHER)
    assert refused.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert list(catalog.added) == [4]


def test_leaving_server_gets_no_new_replica() -> None:
    """Neither by placement nor by assignment, by growth or by a reassignment (KIP-1066)."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[1, 2, 3]])
    assert _apply(catalog, commands.DecommissionServer(4, NEW)).error is ErrorCode.NONE
    placed = _apply(catalog, commands.CreateTopics([commands.NewTopic("u", b"u" * 16, 9, 3)]))
    assert all(4 not in _servers(catalog, g) for g in placed.topics[0].group_ids)
    assigned = commands.NewTopic("v", b"v" * 16, assignments=[[1, 2, 4]])
    answer = _apply(catalog, commands.CreateTopics([assigned]))
    assert answer.topics[0].error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    move = commands.AlterReassignments([commands.Reassign("t", 0, [1, 2, 4])])
    assert _apply(catalog, move).errors[0][0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert _servers(catalog, group) == [1, 2, 3]
    _apply(catalog, commands.DecommissionServer(4, NEW, is_leaving=False))
    assert _apply(catalog, move).errors[0][0] is ErrorCode.NONE


def test_drain_moves_partitions_in_place_up_to_a_limit() -> None:
    """Each leaving replica gets a substitute; the limit counts moves that are not finished."""
    catalog = _grown()
    groups = _topic(catalog, "t", [[4, 1, 2], [1, 4, 2], [1, 2, 3], [2, 3, 4]])
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _drain(catalog, moves_max=2)
    assert [_servers(catalog, g) for g in groups] == [[3, 1, 2], [1, 3, 2], [1, 2, 3], [2, 3, 4]]
    _drain(catalog, moves_max=2)
    assert _servers(catalog, groups[3]) == [2, 3, 4]
    _finish(catalog, groups[0])
    _drain(catalog, moves_max=2)
    assert _servers(catalog, groups[3]) == [2, 3, 1]


def test_drain_does_nothing_without_a_leaving_server_or_room() -> None:
    """A server at its limit of replicas takes none."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[4, 1, 2]])
    _drain(catalog)
    assert _servers(catalog, group) == [4, 1, 2]
    _topic(catalog, "u", [[3]])
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _drain(catalog, limit=1)
    assert _servers(catalog, group) == [4, 1, 2]
    _drain(catalog, limit=2)
    assert _servers(catalog, group) == [3, 1, 2]


def test_drain_replaces_a_move_onto_the_leaving_server() -> None:
    """Its copy may never end, because the server may be dead."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[1, 2, 3]])
    _apply(catalog, commands.AlterReassignments([commands.Reassign("t", 0, [1, 2, 4])]))
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _drain(catalog)
    assert _servers(catalog, group) == [1, 2, 3]


def test_server_is_not_removed_while_a_group_lists_it() -> None:
    """A replica that is leaving may still be needed for a majority."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[4, 1, 2]])
    _apply(catalog, commands.DecommissionServer(4, NEW))
    removal = commands.RemoveServer(4, NEW)
    assert _apply(catalog, removal).error is ErrorCode.INVALID_REQUEST
    _drain(catalog)
    assert _apply(catalog, removal).error is ErrorCode.INVALID_REQUEST
    _finish(catalog, group)
    assert _apply(catalog, removal).error is ErrorCode.NONE
    assert 4 not in catalog.servers
    assert not catalog.observers(GroupId(0))
    assert catalog.is_removed(ServerId(4), NEW)


def test_server_that_was_taken_back_is_not_removed() -> None:
    """A removal that was proposed before the server was taken back has no effect."""
    catalog = _grown()
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _apply(catalog, commands.DecommissionServer(4, NEW, is_leaving=False))
    assert _apply(catalog, commands.RemoveServer(4, NEW)).error is ErrorCode.INVALID_REQUEST
    assert 4 in catalog.servers


def test_removed_server_cannot_register_and_returns_only_with_an_empty_directory() -> None:
    """Its directory is retired, and the numbers of its replicas are never given out again."""
    catalog = _grown()
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _apply(catalog, commands.RemoveServer(4, NEW))
    assert _register(catalog, 4, NEW).error is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert _admit(catalog).error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert _admit(catalog, directory=OTHER).error is ErrorCode.NONE
    assert catalog.observers(GroupId(0)) == [ReplicaInfo(ServerId(4), 2)]
    assert not catalog.is_removed(ServerId(4), OTHER)


@pytest.mark.parametrize("server_id", [1, 9])
def test_initial_and_unknown_servers_are_not_removed(server_id: int) -> None:
    """One of the first is removed by a command of its own."""
    catalog = _grown()
    for command in (
        commands.DecommissionServer(server_id, INITIAL[ServerId(1)]),
        commands.RemoveServer(server_id, INITIAL[ServerId(1)]),
    ):
        assert _apply(catalog, command).error is not ErrorCode.NONE
    assert sorted(catalog.servers) == [1, 2, 3, 4]


def test_decommission_is_refused_where_too_few_servers_would_remain() -> None:
    """Partitions of all servers that leave count, not only those of the last one."""
    catalog = _grown()
    _admit(catalog, 5, OTHER)
    _register(catalog, 5, OTHER)
    _topic(catalog, "t", [[1, 2, 3, 4]])
    assert _apply(catalog, commands.DecommissionServer(4, NEW)).error is ErrorCode.NONE
    refused = _apply(catalog, commands.DecommissionServer(5, OTHER))
    assert refused.error is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "t-0 has 4 replicas, but only 3 servers would remain" in refused.message
    _topic(catalog, "u", [[5]])
    assert not catalog.added[ServerId(5)].is_leaving


def test_wiped_added_server_gets_the_next_number_in_its_new_directory() -> None:
    """As an initial server does; it stays an observer."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[4, 1, 2]])
    assert _apply(catalog, commands.ReplaceServer(4, NEW, OTHER)).error is ErrorCode.NONE
    assert catalog.directory_of(ServerId(4)) == OTHER
    assert catalog.added[ServerId(4)].directory_id == OTHER
    assert catalog.observers(GroupId(0)) == [ReplicaInfo(ServerId(4), 2)]
    assert catalog.replica_number(group, ServerId(4)) == 2


def test_added_servers_survive_a_snapshot_and_changes_are_stored() -> None:
    """Loading all items gives the same state; each change marks its items."""
    catalog = _grown()
    stored = dict(catalog.take_dirty())
    for command in (
        commands.AdmitServer(5, OTHER, "h5", 9192),
        commands.DecommissionServer(4, NEW),
        commands.RemoveServer(4, NEW),
    ):
        _apply(catalog, command)
        for key, value in catalog.take_dirty():
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
        assert sorted(stored.items()) == [item for item in catalog.items() if item[0] != b"c"]
    copy = Catalog("c", coordinator_groups=2, initial_voters=INITIAL)
    copy.load(catalog.items())
    assert copy.items() == catalog.items()
    assert copy.added == catalog.added
    assert_derived(copy)
    assert copy.item_count == catalog.item_count == len(catalog.items())


@pytest.mark.parametrize(("server_id", "initial"), [(0, 3), (1 << 15, 3), (4, 2), (4, 1)])
def test_addition_is_refused_for_an_impossible_id_or_a_small_cluster(
    server_id: int, initial: int
) -> None:
    """A replica id has 15 bits for a server; a cluster of one or two voters loses the catalog."""
    voters = {server: INITIAL[server] for server in sorted(INITIAL)[:initial]}
    catalog = Catalog("c", coordinator_groups=2, initial_voters=voters)
    assert _admit(catalog, server_id).error is ErrorCode.INVALID_REQUEST
    assert not catalog.added


def test_late_decommission_does_not_hit_a_server_that_was_added_again() -> None:
    """It names the directory of the server that it was sent for."""
    catalog = _grown()
    late = commands.DecommissionServer(4, NEW)
    _apply(catalog, late)
    _apply(catalog, commands.RemoveServer(4, NEW))
    _admit(catalog, directory=OTHER)
    assert _apply(catalog, late).error is ErrorCode.INVALID_REQUEST
    assert not catalog.leaving


def test_lost_directory_of_a_server_that_has_not_registered_is_replaced() -> None:
    """It gets no listeners that it never had, so clients are not sent to it."""
    catalog = _cluster()
    _admit(catalog)
    assert _apply(catalog, commands.ReplaceServer(4, NEW, OTHER)).error is ErrorCode.NONE
    assert catalog.directory_of(ServerId(4)) == OTHER
    assert 4 not in catalog.servers
    assert catalog.is_removed(ServerId(4), NEW)
    assert _register(catalog, 4, OTHER).error is ErrorCode.NONE


def _drain_with(catalog: Catalog, alive: list[int], moves_max: int = 32) -> None:
    _apply(catalog, commands.DrainServers(alive, moves_max))


def test_drain_changes_a_move_onto_a_server_that_is_down() -> None:
    """Its copy would not end; if no other server is there, the move waits."""
    catalog = _grown()
    _admit(catalog, 5, OTHER)
    _register(catalog, 5, OTHER)
    (group,) = _topic(catalog, "t", [[4, 1]])
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _drain_with(catalog, [1, 2, 3, 4, 5])
    assert _servers(catalog, group) == [2, 1]
    _drain_with(catalog, [1])
    assert _servers(catalog, group) == [2, 1]
    _drain_with(catalog, [1, 5], moves_max=1)
    assert _servers(catalog, group) == [5, 1]


def test_full_places_do_not_hold_up_a_move_onto_a_leaving_server() -> None:
    """Other moves may wait for it for ever; changing it begins no new one."""
    catalog = _grown()
    waiting, onto = _topic(catalog, "t", [[1, 2, 4], [1, 2, 3]])
    _apply(catalog, commands.AlterReassignments([commands.Reassign("t", 1, [1, 2, 4])]))
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _drain(catalog, moves_max=0)
    assert _servers(catalog, waiting) == [1, 2, 4]
    assert _servers(catalog, onto) == [1, 2, 3]


def test_substitute_is_on_a_server_that_is_there_before_one_on_another_rack() -> None:
    """A drain onto a server that is down does not end."""
    catalog = Catalog("c", coordinator_groups=2, initial_voters=INITIAL)
    for server_id, rack in ((1, "a"), (2, "a"), (3, "b")):
        _register(catalog, server_id, INITIAL[ServerId(server_id)], rack)
    _admit(catalog)
    _register(catalog, 4, NEW, "b")
    (group,) = _topic(catalog, "t", [[1, 4]])
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _drain_with(catalog, [1, 2])
    assert _servers(catalog, group) == [1, 2]


def test_drain_keeps_the_replicas_of_a_partition_on_different_racks() -> None:
    """All added servers of three hosts are drained, one after another."""
    catalog = Catalog("c", coordinator_groups=2, initial_voters=INITIAL)
    racks = {server: f"host-{server % 3}" for server in range(1, 10)}
    for server, rack in racks.items():
        directory = INITIAL.get(ServerId(server), DirectoryId(bytes([64 + server]) * 16))
        if server not in INITIAL:
            _admit(catalog, server, directory)
        _register(catalog, server, directory, rack)
    topic = commands.NewTopic("t", bytes(16), partitions=30, replication_factor=3)
    groups = _apply(catalog, commands.CreateTopics([topic])).topics[0].group_ids
    for server in range(4, 10):
        directory = catalog.added[ServerId(server)].directory_id
        _apply(catalog, commands.DecommissionServer(server, directory, is_leaving=True))
        _apply(catalog, commands.DrainServers(list(racks), 1_000, 0))
        for group in groups:
            assert len({racks[one] for one in _servers(catalog, group)}) == 3
    assert {one for group in groups for one in _servers(catalog, group)} == {1, 2, 3}


def test_reassignment_that_keeps_a_leaving_server_needs_room_without_it() -> None:
    """More replicas than servers that stay could never leave it."""
    catalog = _grown()
    _topic(catalog, "t", [[1, 2, 4]])
    _apply(catalog, commands.DecommissionServer(4, NEW))
    move = commands.AlterReassignments([commands.Reassign("t", 0, [1, 2, 3, 4])])
    error, message = _apply(catalog, move).errors[0]
    assert error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "only 3 servers remain" in message


def test_plan_of_a_drain_is_empty_when_nothing_would_change() -> None:
    """Then no command is proposed: a drain that waits adds nothing to the log."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[4, 1, 2]])
    command = commands.DrainServers([1, 2, 3, 4], 32)
    assert not catalog.drain_plan(command)
    _apply(catalog, commands.DecommissionServer(4, NEW))
    assert catalog.drain_plan(command) == [(group, [3, 1, 2])]
    _apply(catalog, command)
    assert not catalog.drain_plan(command)


def test_groups_by_server_follow_creation_moves_and_deletion() -> None:
    """A server whose last replica has left is removed; one that still has some is not."""
    catalog = _grown()
    groups = _topic(catalog, "t", [[4, 1, 2], [1, 2, 3]])
    assert_derived(catalog)
    _apply(catalog, commands.DecommissionServer(4, NEW))
    _drain(catalog)
    assert_derived(catalog)
    assert list(catalog.held[ServerId(4)]) == [groups[0]]
    copy = Catalog("c", coordinator_groups=2, initial_voters=INITIAL)
    copy.load(catalog.items())
    assert_derived(copy)
    _apply(catalog, commands.AlterReassignments([commands.Reassign("t", 0, None)]))
    assert_derived(catalog)
    _drain(catalog)
    _finish(catalog, groups[0])
    assert_derived(catalog)
    assert not catalog.held[ServerId(4)]
    _apply(catalog, commands.AlterReassignments([commands.Reassign("t", 1, [1, 2])]))
    _apply(catalog, commands.ReplaceServer(3, INITIAL[ServerId(3)], OTHER))
    assert_derived(catalog)
    _apply(catalog, commands.DeleteTopics(["t"]))
    assert_derived(catalog)
    assert not any(catalog.held[server] for server in catalog.servers)
