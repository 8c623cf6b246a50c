"""Votes of the catalog and the coordinators that move to other servers, and servers that leave."""

from __future__ import annotations

import pytest

from ids import GroupId, ServerId
from tests.unit.state.test_catalog_added_servers import (
    INITIAL,
    NEW,
    OTHER,
    _admit,
    _apply,
    _cluster,
    _finish,
    _grown,
    _register,
    _servers,
    _topic,
    assert_derived,
)
from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.reassignment import ReplicaInfo

GROUPS = [GroupId(0), GroupId(1), GroupId(2)]
ALL = [1, 2, 3, 4, 5]


def _leave(catalog: Catalog, server: int) -> tuple[ErrorCode, str]:
    directory = catalog.directory_of(ServerId(server))
    assert directory is not None
    command: commands.Command = commands.DecommissionVoter(ServerId(server), directory)
    if server in catalog.added:
        command = commands.DecommissionServer(ServerId(server), directory)
    answer = _apply(catalog, command)
    return answer.error, answer.message


def _move(catalog: Catalog, alive: list[int] = ALL) -> tuple[int, ...]:
    _apply(catalog, commands.MoveVotes([ServerId(server) for server in alive]))
    return catalog.voters


def _remove(catalog: Catalog, server: int) -> ErrorCode:
    directory = catalog.directory_of(ServerId(server))
    answer = _apply(catalog, commands.RemoveServer(ServerId(server), directory or b""))
    error: ErrorCode = answer.error
    return error


def _gone(catalog: Catalog, server: int, alive: list[int] = ALL) -> None:
    """Remove a server, as its cluster does."""
    assert _leave(catalog, server)[0] is ErrorCode.NONE
    _move(catalog, alive)
    _finish(catalog, *catalog.open_moves)
    assert _remove(catalog, server) is ErrorCode.NONE


def _numbers(catalog: Catalog, group: GroupId) -> dict[int, int]:
    return {one.server_id: one.replica_number for one in catalog.replicas(group)}


def _loaded(catalog: Catalog) -> Catalog:
    other = Catalog("c", coordinator_groups=2, initial_voters=INITIAL)
    other.load(catalog.items())
    assert other.items() == catalog.items()
    assert (other.voters, other.first_servers) == (catalog.voters, catalog.first_servers)
    assert other.item_count >= len(other.items())
    assert_derived(other)
    return other


def test_votes_of_all_groups_go_to_one_server_which_keeps_the_order() -> None:
    """A directory with one of the groups has all of them, which `vdl recover` needs."""
    catalog = _grown()
    assert _leave(catalog, 1)[0] is ErrorCode.NONE
    assert _move(catalog) == (4, 2, 3)
    assert [[one.server_id for one in catalog.replicas(group)] for group in GROUPS] == [
        [4, 2, 3],
        [2, 3, 4],
        [3, 4, 2],
    ]
    for group in GROUPS:
        assert catalog.move(group).leaving == [ReplicaInfo(ServerId(1), 1)]
        assert [one.server_id for one in catalog.founding(group)][group] == 1 or group
    assert_derived(_loaded(catalog))


def test_server_that_gave_its_votes_follows_the_catalog_until_it_is_removed() -> None:
    """As an observer with the number that it had: its log remembers what it voted."""
    catalog = _grown()
    _leave(catalog, 1)
    assert not catalog.observers(GROUPS[0]) or catalog.voters == (1, 2, 3)
    _move(catalog)
    assert catalog.observers(GROUPS[0]) == [ReplicaInfo(ServerId(1), 1)]
    assert _remove(catalog, 1) is ErrorCode.INVALID_REQUEST
    _finish(catalog, GROUPS[0], GROUPS[1])
    assert _remove(catalog, 1) is ErrorCode.INVALID_REQUEST
    _finish(catalog, GROUPS[2])
    assert [catalog.replica_number(group, ServerId(1)) for group in GROUPS] == [1, 0, 0]
    assert _remove(catalog, 1) is ErrorCode.NONE
    assert catalog.replica_number(GROUPS[0], ServerId(1)) == 0
    assert catalog.is_removed(ServerId(1), INITIAL[ServerId(1)])
    assert not catalog.is_member(ServerId(1))
    assert catalog.directory_of(ServerId(1)) is None
    assert _register(catalog, 1, INITIAL[ServerId(1)]).error is ErrorCode.BROKER_ID_NOT_REGISTERED
    _loaded(catalog)


def test_no_vote_is_lost_for_lack_of_servers() -> None:
    """Three voters need three servers; a removal that would leave two is refused."""
    error, message = _leave(_cluster(), 1)
    assert error is ErrorCode.INVALID_REQUEST
    assert "which need 3 servers, but only 2 other servers stay: add a server first" in message
    catalog = _grown()
    _gone(catalog, 1)
    assert _leave(catalog, 4)[0] is ErrorCode.INVALID_REQUEST
    assert _leave(catalog, 2)[0] is ErrorCode.INVALID_REQUEST
    assert catalog.leaving == frozenset()


def test_all_of_the_first_servers_leave_one_after_the_other() -> None:
    catalog = _cluster()
    for number, gone in zip((4, 5, 6), (1, 2, 3), strict=True):
        directory = bytes([number]) * 16
        _admit(catalog, number, directory)
        _register(catalog, number, directory)
        _gone(catalog, gone, [*range(1, 7)])
        catalog = _loaded(catalog)
    assert catalog.voters == (4, 5, 6)
    assert not catalog.first_servers
    assert catalog.servers.keys() == {4, 5, 6}
    assert [one.server_id for one in catalog.founding(GROUPS[0])] == [1, 2, 3]
    answer = _apply(catalog, commands.CreateTopics([commands.NewTopic("t", b"t" * 16)]))
    assert answer.topics[0].replication_factor == 3


def test_number_of_a_removed_server_is_never_given_out_again() -> None:
    """Its first log has votes and acknowledgements of that number."""
    catalog = _grown()
    _gone(catalog, 1)
    _admit(catalog, 1, OTHER)
    _register(catalog, 1, OTHER)
    assert catalog.is_removed(ServerId(1), INITIAL[ServerId(1)])
    catalog = _loaded(catalog)
    assert catalog.is_removed(ServerId(1), INITIAL[ServerId(1)])
    assert catalog.observers(GROUPS[0]) == [ReplicaInfo(ServerId(1), 2)]
    _gone(catalog, 4, [1, 2, 3])
    assert catalog.voters == (1, 2, 3)
    assert [_numbers(catalog, group)[1] for group in GROUPS] == [2, 2, 2]
    _loaded(catalog)


def test_votes_move_on_if_their_new_server_is_down_or_leaves() -> None:
    """Only while it is about to get them, and only to a server that is there."""
    catalog = _grown()
    _admit(catalog, 5, OTHER)
    _register(catalog, 5, OTHER)
    _leave(catalog, 1)
    assert _move(catalog) == (4, 2, 3)
    assert _move(catalog, [1, 2, 3, 5]) == (5, 2, 3)
    assert {one.server_id for one in catalog.move(GROUPS[1]).leaving} == {1, 4}
    assert _move(catalog, [1, 2, 3]) == (5, 2, 3)
    _finish(catalog, *GROUPS)
    assert _move(catalog, [1, 2, 3, 4]) == (5, 2, 3)
    assert [catalog.replica_number(group, ServerId(4)) for group in GROUPS] == [1, 0, 0]
    _leave(catalog, 5)
    assert _move(catalog) == (4, 2, 3)
    assert [_numbers(catalog, group)[4] for group in GROUPS] == [1, 2, 2]


def test_server_that_is_taken_back_late_stays_without_its_votes() -> None:
    catalog = _grown()
    _leave(catalog, 1)
    back = commands.DecommissionServer(ServerId(1), INITIAL[ServerId(1)], is_leaving=False)
    assert _apply(catalog, back).error is ErrorCode.NONE
    assert _move(catalog) == (1, 2, 3)
    _leave(catalog, 1)
    _move(catalog)
    assert _apply(catalog, back).error is ErrorCode.NONE
    _finish(catalog, *GROUPS)
    assert _move(catalog) == (4, 2, 3)
    assert catalog.is_member(ServerId(1))
    assert catalog.observers(GROUPS[0]) == [ReplicaInfo(ServerId(1), 1)]
    _loaded(catalog)


def test_lost_directory_of_a_leaving_voter_gets_new_numbers_everywhere() -> None:
    """Those that leave too: the group must not wait for a replica that has forgotten its votes."""
    catalog = _grown()
    _leave(catalog, 1)
    _move(catalog)
    before = [catalog.move(group).revision for group in GROUPS]
    old = INITIAL[ServerId(1)]
    _apply(catalog, commands.ReplaceServer(ServerId(1), old, OTHER))
    assert [catalog.replica_number(group, ServerId(1)) for group in GROUPS] == [2, 2, 2]
    assert all(catalog.move(group).leaving == [ReplicaInfo(ServerId(1), 2)] for group in GROUPS)
    assert [catalog.move(group).revision for group in GROUPS] == [one + 1 for one in before]
    _finish(catalog, *GROUPS)
    assert _remove(catalog, 1) is ErrorCode.NONE
    assert catalog.is_removed(ServerId(1), old)
    assert catalog.is_removed(ServerId(1), OTHER)


@pytest.mark.parametrize("directory", [NEW, OTHER])
def test_late_command_does_not_hit_another_directory(directory: bytes) -> None:
    catalog = _grown()
    answer = _apply(catalog, commands.DecommissionVoter(ServerId(1), directory))
    assert answer.error is ErrorCode.INVALID_REQUEST
    plain = commands.DecommissionServer(ServerId(1), INITIAL[ServerId(1)])
    assert _apply(catalog, plain).error is ErrorCode.INVALID_REQUEST  # as in older versions
    assert not catalog.leaving


def _resize(catalog: Catalog, servers: list[int] | None) -> ErrorCode:
    to = None if servers is None else [ServerId(server) for server in servers]
    command = commands.AlterReassignments([commands.Reassign("t", 0, to)], may_change_count=True)
    error: ErrorCode = _apply(catalog, command).errors[0][0]
    return error


def test_cancel_that_would_keep_a_server_for_ever_is_refused() -> None:
    """The removal was accepted because the partition gets fewer replicas."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[1, 2, 3, 4]])
    assert _resize(catalog, [2, 3, 1]) is ErrorCode.NONE
    assert _leave(catalog, 1)[0] is ErrorCode.NONE
    assert _resize(catalog, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert _servers(catalog, group) == [2, 3, 1]
    old = INITIAL[ServerId(1)]
    _apply(catalog, commands.DecommissionServer(ServerId(1), old, is_leaving=False))
    assert _resize(catalog, None) is ErrorCode.NONE
    assert _servers(catalog, group) == [1, 2, 3, 4]


def test_cancel_is_as_in_older_versions_while_they_may_apply_it_too() -> None:
    """All servers must have the same catalog, also during an upgrade."""
    catalog = _grown()
    (group,) = _topic(catalog, "t", [[1, 2, 3, 4]])
    assert _resize(catalog, [2, 3, 1]) is ErrorCode.NONE
    assert _leave(catalog, 4)[0] is ErrorCode.NONE
    assert _resize(catalog, None) is ErrorCode.NONE
    assert _servers(catalog, group) == [1, 2, 3, 4]


def test_catalog_without_moved_votes_is_stored_as_before() -> None:
    """A directory of the build before opens unchanged, and has the same bytes on all versions."""
    assert not any(key == b"v" for key, _ in _grown().items())


def test_checkpoint_shows_a_removal_that_was_taken_back_before_votes_moved() -> None:
    """Older versions end at the key. The command is covered by the checkpoint: they would go on."""
    initial = {ServerId(n): bytes([n]) * 16 for n in (1, 2, 3)}
    catalog = Catalog("c", coordinator_groups=1, initial_voters=initial)
    done: list[commands.Command] = [
        commands.RegisterServer(n, bytes([n]) * 16, "", {}, True) for n in (1, 2, 3)
    ]
    done += [commands.AdmitServer(4, b"4" * 16, "h", 1)]
    done += [commands.RegisterServer(4, b"4" * 16, "", {}, False)]
    done += [commands.DecommissionVoter(1, bytes([1]) * 16)]
    done += [commands.DecommissionServer(1, bytes([1]) * 16, False)]
    for index, command in enumerate(done, start=1):
        assert catalog.apply(command, 0, index).error is ErrorCode.NONE
    assert b"v" in dict(catalog.take_dirty())
    assert b"v" in dict(catalog.items())
    assert len(catalog.items()) == catalog.item_count
