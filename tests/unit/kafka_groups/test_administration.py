"""FindCoordinator, DescribeGroups, ListGroups, DeleteGroups, InitProducerId."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kafka_groups.client import GROUP, join, leave, new_member, stable_group, sync
from tests.unit.kafka_groups.cluster import Call, Cluster
from vdl.errors import ErrorCode
from vdl.kafka.answer import InParts
from vdl.kafka.handlers import groups
from vdl.kafka.wire import delete_groups as delete_wire
from vdl.kafka.wire import describe_groups as describe_wire
from vdl.kafka.wire import find_coordinator as find_wire
from vdl.kafka.wire import init_producer_id as producer_wire
from vdl.kafka.wire import list_groups as list_wire
from vdl.logstream.group.state_group import OutcomeKind
from vdl.state.features import SUPPORTED, TRANSACTION_VERSION
from vdl.state.modern.group import ModernGroup

FIND, DESCRIBE, LIST, INIT, DELETE = 10, 15, 16, 22, 42
OLDER = {name: levels for name, levels in SUPPORTED.items() if name != TRANSACTION_VERSION}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3)


# --- FindCoordinator -----------------------------------------------------------------------------


def find(cluster: Cluster, version: int, *keys: str, server: int = 1) -> Call:
    request = find_wire.FindCoordinatorRequest(key=keys[0])
    if version >= 4:
        request = find_wire.FindCoordinatorRequest(coordinator_keys=list(keys))
    return cluster.call(FIND, version, request, server=server)


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("server", [1, 2])
def test_every_server_names_the_coordinator(cluster: Cluster, version: int, server: int) -> None:
    """Returns the leader of the group's coordinator, at the address of the client's listener."""
    response = find(cluster, version, GROUP, "group3", server=server).response
    found = response.coordinators if version >= 4 else [response]
    assert [(c.error_code, c.node_id, c.host, c.port) for c in found] == [
        (0, 1, "host1", 9092) for _ in found
    ]
    if version >= 4:
        assert [c.key for c in found] == [GROUP, "group3"]


def test_coordinator_that_is_not_known_is_not_available(cluster: Cluster) -> None:
    """Error 15 while there is no leader."""
    cluster.logs[cluster.servers[1].coordinator_group(GROUP)].leader = 0
    (found,) = find(cluster, 6, GROUP, server=2).response.coordinators
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    response = find(cluster, 3, GROUP, server=2).response
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_server_names_itself_only_when_a_quorum_says_so(cluster: Cluster) -> None:
    """A deposed leader would attract clients."""
    cluster.commits = False
    call = find(cluster, 6, GROUP)
    assert not call.done
    cluster.elect(cluster.servers[1].coordinator_group(GROUP), 2)
    (found,) = call.response.coordinators
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_transactions_are_for_nobody_while_a_server_does_not_know_them(cluster: Cluster) -> None:
    """Error 53, which all clients take as final at once; librdkafka retries after error 42."""
    cluster.register(3, OLDER)
    request = find_wire.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
    (found,) = cluster.call(FIND, 6, request).response.coordinators
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "transactions" in found.error_message
    cluster.register(3, SUPPORTED)
    (found,) = cluster.call(FIND, 6, request).response.coordinators
    assert (found.error_code, found.node_id) == (0, 1)


@pytest.mark.parametrize("key_type", [2, 7])
def test_coordinator_of_another_kind_is_an_invalid_request(cluster: Cluster, key_type: int) -> None:
    """Share groups are not supported: a final error, so that no client retries forever."""
    request = find_wire.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
    (found,) = cluster.call(FIND, 6, request).response.coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)


# --- describing, listing, deleting ----------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_stable_group_is_described_whole(cluster: Cluster, version: int) -> None:
    """Includes state, protocol, and members with subscription and assignment."""
    ids, _ = stable_group(cluster)
    request = describe_wire.DescribeGroupsRequest([GROUP], version >= 3)
    (group,) = cluster.call(DESCRIBE, version, request).response.groups
    assert (group.error_code, group.group_state) == (0, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    assert [
        (m.member_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
        for m in group.members
    ] == [(member, "client", "/127.0.0.1", b"r", member.encode()) for member in ids]
    if version >= 3:
        assert group.authorized_operations == 3_400, "as Kafka without an authorizer"


def test_group_is_described_as_often_as_it_is_named_up_to_a_bound(cluster: Cluster) -> None:
    """As in Kafka, but a request of a million names gets no response of gigabytes."""
    stable_group(cluster)
    request = describe_wire.DescribeGroupsRequest([GROUP] * 100 + ["other"])
    groups = cluster.call(DESCRIBE, 5, request).response.groups
    assert [len(g.members) for g in groups] == [2] * 11 + [0] * 90
    assert [g.error_code for g in groups[11:]] == [ErrorCode.INVALID_REQUEST] * 89 + [0]
    assert groups[-1].group_state == "Dead"


def test_group_in_a_rebalance_is_described_without_assignments(cluster: Cluster) -> None:
    """The assignments of an incomplete generation are not valid."""
    (first, _), _ = stable_group(cluster)
    join(cluster, first)
    request = describe_wire.DescribeGroupsRequest([GROUP])
    (group,) = cluster.call(DESCRIBE, 6, request).response.groups
    assert group.group_state == "PreparingRebalance"
    assert {(m.member_metadata, m.member_assignment) for m in group.members} == {(b"", b"")}


def test_large_group_is_described_in_one_generation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition would be with two members, or with none."""
    monkeypatch.setattr(groups, "PART_ELEMENTS", 2)
    ids, generation = stable_group(cluster, 4)
    call = cluster.call(DESCRIBE, 5, describe_wire.DescribeGroupsRequest([GROUP]))
    answer = call.answer.response  # type: ignore[union-attr]
    assert isinstance(answer, InParts)
    pages = answer.responses(lambda: 1)
    told = [next(pages)[1], next(pages)[1]]
    joins = [join(cluster, member, protocols={"range": b"new"}) for member in ids]
    newest = joins[0].response.generation_id
    assert newest > generation
    assert sync(cluster, ids[0], newest, dict.fromkeys(ids, b"new")).response.error_code == 0
    told += [page for _, page in pages]
    members = [member for page in told for group in page.groups for member in group.members]
    assert [(m.member_metadata, m.member_assignment) for m in members] == [
        (b"r", member.encode()) for member in ids
    ]


def test_group_nobody_knows_is_dead_and_from_v6_not_found(cluster: Cluster) -> None:
    """KIP-1043."""
    request = describe_wire.DescribeGroupsRequest(["no"])
    (old,) = cluster.call(DESCRIBE, 5, request).response.groups
    assert (old.error_code, old.group_state) == (0, "Dead")
    (new,) = cluster.call(DESCRIBE, 6, request).response.groups
    assert (new.error_code, new.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_group_of_another_coordinator_is_described_there(cluster: Cluster) -> None:
    """Error 16 on this server."""
    request = describe_wire.DescribeGroupsRequest([GROUP])
    (group,) = cluster.call(DESCRIBE, 6, request, server=2).response.groups
    assert group.error_code == ErrorCode.NOT_COORDINATOR


def listed(cluster: Cluster, version: int = 5, server: int = 1, **filters: list[str]) -> list[str]:
    response = cluster.call(
        LIST, version, list_wire.ListGroupsRequest(**filters), server=server
    ).response
    assert response.error_code == 0
    return [group.group_id for group in response.groups]


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_by_their_coordinators(cluster: Cluster, version: int) -> None:
    """Each server lists its own groups; a client queries all servers."""
    for name in (GROUP, "group3"):
        new_member(cluster, group_id=name)
    cluster.elect(cluster.servers[1].coordinator_group("group3"), 2)
    assert listed(cluster, version) == [GROUP]
    assert listed(cluster, version, server=2) == ["group3"]
    assert listed(cluster, version, server=3) == []


def test_groups_are_listed_by_state_and_type(cluster: Cluster) -> None:
    """KIP-518, KIP-848: letter case is ignored."""
    stable_group(cluster)
    join(cluster, group_id="group3", version=3)
    assert listed(cluster, states_filter=["stable"]) == [GROUP]
    assert listed(cluster, states_filter=["CompletingRebalance", "Empty"]) == ["group3"]
    assert sorted(listed(cluster, types_filter=["Classic"])) == [GROUP, "group3"]
    assert listed(cluster, types_filter=["share"]) == []


def test_many_groups_are_listed_in_parts_while_they_come_and_go(cluster: Cluster) -> None:
    """A user with a prefix of names may have hundreds of thousands."""
    names = [f"g{number:02}" for number in range(40)]
    for name in names:
        new_member(cluster, group_id=name)
    answer = cluster.call(LIST, 5, list_wire.ListGroupsRequest()).answer.response
    assert isinstance(answer, InParts)
    pages = answer.responses(lambda: 3)
    found = [group.group_id for group in next(pages)[1].groups]
    assert len(found) == 3
    here = cluster.machine(found[0]).groups.groups
    gone = [name for name in here if name not in found][-1]
    del here[gone]
    for _, page in pages:
        assert len(page.groups) <= 3
        found += [group.group_id for group in page.groups]
    assert len(found) == len({*found})
    assert {*found} == {*names} - {gone}


def test_group_that_changes_its_kind_while_groups_are_listed_is_listed_once(
    cluster: Cluster,
) -> None:
    """A group that is missing counts as deleted, and one that is there twice as two groups."""
    for number in range(8):
        new_member(cluster, group_id=f"g{number}")
    answer = cluster.call(LIST, 5, list_wire.ListGroupsRequest()).answer.response
    pages = answer.responses(lambda: 1)
    _, page = next(pages)
    (first,) = page.groups
    machine = cluster.machine(first.group_id)
    classic, consumer = machine.groups.groups, machine.consumer.groups
    listed, awaited = first.group_id, [*classic][-1]
    for name in (listed, awaited):
        del classic[name]
        consumer[name] = ModernGroup(name, 0)
    found = [(group.group_id, group.group_type) for _, page in pages for group in page.groups]
    assert listed not in [name for name, _ in found]
    assert (awaited, "consumer") in found
    assert len(found) == 7


def test_list_of_a_loading_coordinator_is_an_error(cluster: Cluster) -> None:
    """Error 14: a partial list would be taken for the whole."""
    cluster.elect(1, 2, serve=False)
    response = cluster.call(LIST, 5, list_wire.ListGroupsRequest(), server=2).response
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_list_that_a_quorum_did_not_confirm_is_asked_for_again(cluster: Cluster) -> None:
    """Error 15: Java's clients take 16 as final here, and would list no group of any server."""
    new_member(cluster)
    number = cluster.servers[1].coordinator_group(GROUP)
    cluster.commits = False
    call = cluster.call(LIST, 5, list_wire.ListGroupsRequest())
    assert not call.done
    cluster.elect(number, 2)
    cluster.pump()
    assert call.response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.commits = True
    assert (listed(cluster), listed(cluster, server=2)) == ([], [GROUP])


@pytest.mark.parametrize("version", range(4))
def test_group_is_deleted_when_nobody_is_in_it(cluster: Cluster, version: int) -> None:
    """Error 68, then 0, then 69 (KIP-229)."""
    (first, second), _ = stable_group(cluster)

    def delete() -> list[int]:
        request = delete_wire.DeleteGroupsRequest([GROUP, "no"])
        response = cluster.call(DELETE, version, request).response
        for result in response.results if version >= 3 else ():
            assert (result.error_message is None) is (result.error_code == ErrorCode.NONE)
        return [result.error_code for result in response.results]

    missing = ErrorCode.GROUP_ID_NOT_FOUND
    assert delete() == [ErrorCode.NON_EMPTY_GROUP, missing]
    leave(cluster, (first, None), (second, None))
    assert delete() == [0, missing]
    assert delete() == [missing, missing]
    assert listed(cluster) == []


# --- InitProducerId ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_producers_get_different_ids(cluster: Cluster, version: int) -> None:
    """Any server allocates them.

    A former id sent by the client is ignored: there is nothing to fence.
    """
    request = producer_wire.InitProducerIdRequest(transactional_id=None)
    ids = [
        cluster.call(INIT, version, request, server=server).response.producer_id
        for server in (1, 2, 3, 1)
    ]
    assert len(set(ids)) == 4
    if version >= 3:
        request.producer_id, request.producer_epoch = ids[0], 5
        response = cluster.call(INIT, version, request).response
        assert (response.error_code, response.producer_epoch) == (0, 0)
        assert response.producer_id not in ids


@pytest.mark.parametrize(
    "fields",
    [
        {"transactional_id": ""},
        {"transactional_id": None, "producer_id": 5},
        {"transactional_id": None, "producer_epoch": 3},
    ],
)
def test_producer_that_names_half_of_itself_is_refused(
    cluster: Cluster, fields: dict[str, Any]
) -> None:
    """Covers an empty transactional id, a producer id without epoch, an epoch without producer."""
    response = cluster.call(INIT, 4, producer_wire.InitProducerIdRequest(**fields)).response
    assert (response.error_code, response.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


def test_transactional_id_is_for_nobody_while_a_server_does_not_know_them(
    cluster: Cluster,
) -> None:
    """Error 53 is final: no client waits for a coordinator that will not exist."""
    cluster.register(3, OLDER)
    request = producer_wire.InitProducerIdRequest(transactional_id="tx")
    response = cluster.call(INIT, 4, request).response
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (response.error_code, response.producer_id) == (refused, -1)


@pytest.mark.parametrize("kind", [OutcomeKind.NOT_APPENDED, OutcomeKind.UNKNOWN])
def test_producer_id_that_cannot_be_had_now_is_asked_for_again(
    cluster: Cluster, kind: OutcomeKind
) -> None:
    """Error 14 is the only retriable one that makes no client look up a transaction coordinator."""
    cluster.catalog_outcome = kind
    request = producer_wire.InitProducerIdRequest(transactional_id=None)
    response = cluster.call(INIT, 4, request).response
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_filter_of_long_names_lists_no_group(cluster: Cluster) -> None:
    """Names of megabytes would take long to convert. They are not taken for no filter."""
    new_member(cluster)
    assert listed(cluster, states_filter=["x" * 1_000]) == []
    assert listed(cluster, types_filter=["x" * 1_000]) == []
    assert listed(cluster, types_filter=["Classic", "x" * 1_000]) != []
