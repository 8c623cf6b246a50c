"""DescribeQuorum and UnregisterBroker: the members of the catalog, and servers that are removed."""

from __future__ import annotations

import pytest

from ids import DirectoryId, ServerId
from rpc.queries import Quorum, QuorumMember
from tests.unit.kafka.fake_host import LISTENER, WALL_MS, World
from vdl.errors import ErrorCode
from vdl.kafka.wire.describe_quorum import (
    DescribeQuorumRequest,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from vdl.kafka.wire.unregister_broker import UnregisterBrokerRequest
from vdl.state import commands

DESCRIBE_QUORUM = 55
UNREGISTER_BROKER = 64
QUORUM = Quorum(
    2,
    7,
    99,
    (
        QuorumMember(1, False, 90, WALL_MS - 5, WALL_MS - 100),
        QuorumMember(2, False, 100, WALL_MS, WALL_MS),
        QuorumMember(3, True, 0, -1, -1),
    ),
)


def request(topic: str = "__cluster_metadata", partition: int = 0) -> DescribeQuorumRequest:
    return DescribeQuorumRequest([TopicData(topic, [PartitionData(partition)])])


@pytest.mark.parametrize("version", range(3))
def test_quorum_is_that_of_the_catalog(version: int) -> None:
    """Times are included from v1 on, directories and addresses from v2 on."""
    world = World()
    world.host.quorum = QUORUM
    answer = world.client().ask(DESCRIBE_QUORUM, version, request())
    assert answer.error_code == ErrorCode.NONE
    (topic,) = answer.topics
    (partition,) = topic.partitions
    assert (topic.topic_name, partition.partition_index) == ("__cluster_metadata", 0)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (2, 7, 100)

    def state(server_id: int, end: int, heard: int, caught_up: int) -> ReplicaState:
        directory = bytes([server_id]) * 16 if version >= 2 else bytes(16)
        times = (heard, caught_up) if version >= 1 else (-1, -1)
        return ReplicaState(server_id, directory, end, *times)

    assert partition.current_voters == [
        state(1, 91, WALL_MS - 5, WALL_MS - 100),
        state(2, 101, WALL_MS, WALL_MS),
    ]
    assert partition.observers == [state(3, 1, -1, -1)]
    if version >= 2:
        assert answer.nodes == [
            Node(i, [Listener(LISTENER, f"host{i}", 9090 + i)]) for i in (1, 2, 3)
        ]


def test_quorum_without_a_leader_is_asked_for_again() -> None:
    """The error code is retriable."""
    answer = World().client().ask(DESCRIBE_QUORUM, 2, request())
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.error_message


@pytest.mark.parametrize("asked", [request("t"), request(partition=1)])
def test_other_topics_have_no_quorum(asked: DescribeQuorumRequest) -> None:
    world = World()
    world.topic("t")
    world.host.quorum = QUORUM
    answer = world.client().ask(DESCRIBE_QUORUM, 2, asked)
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partition.error_message
    assert (partition.current_voters, answer.nodes) == ([], [])


def test_added_server_without_partitions_is_unregistered() -> None:
    """It is marked as leaving; the catalog's leader removes it."""
    world = World()
    catalog = world.host.catalog
    catalog.initial_voters = {ServerId(n): DirectoryId(bytes([n]) * 16) for n in (1, 2, 3)}
    catalog.apply(commands.AdmitServer(ServerId(4), DirectoryId(b"n" * 16), "h4", 9192), 0, 1)
    answer = world.client().ask(UNREGISTER_BROKER, 0, UnregisterBrokerRequest(4))
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    assert catalog.leaving == {4}


@pytest.mark.parametrize("is_grown", [False, True])
def test_voters_are_not_unregistered(is_grown: bool) -> None:
    """Their votes are moved by `vdl member remove`. An unknown id is reported as unknown."""
    world = World()
    catalog = world.host.catalog
    catalog.initial_voters = {ServerId(n): DirectoryId(bytes([n]) * 16) for n in (1, 2, 3)}
    catalog.first_servers = dict(catalog.initial_voters)
    catalog.system.voters = tuple(catalog.first_servers)
    if is_grown:
        catalog.apply(commands.AdmitServer(ServerId(4), DirectoryId(b"n" * 16), "h4", 9192), 0, 1)
        register = commands.RegisterServer(ServerId(4), DirectoryId(b"n" * 16), "", {}, False)
        catalog.apply(register, 0, 2)
    for server_id, error in (
        (2, ErrorCode.INVALID_REQUEST),
        (9, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (-1, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        answer = world.client().ask(UNREGISTER_BROKER, 0, UnregisterBrokerRequest(server_id))
        assert answer.error_code == error
        assert answer.error_message
    assert sorted(world.host.catalog.servers) == [1, 2, 3, 4][: 3 + is_grown]
