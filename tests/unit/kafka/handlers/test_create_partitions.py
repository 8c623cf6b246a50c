"""CreatePartitions: topics grow, and invalid requests are refused with Kafka's codes."""

from __future__ import annotations

import pytest

from tests.unit.kafka.fake_host import World, fill
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.wire.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from vdl.logstream.group.state_group import OutcomeKind

CREATE_PARTITIONS = 37


def growth(
    name: str = "t", count: int = 3, assignments: list[list[int]] | None = None
) -> CreatePartitionsTopic:
    servers = None
    if assignments is not None:
        servers = [CreatePartitionsAssignment(replicas) for replicas in assignments]
    return CreatePartitionsTopic(name, count, servers)


def grow(
    world: World,
    *topics: CreatePartitionsTopic,
    version: int = 3,
    validate_only: bool = False,
    timeout_ms: int = 1000,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(list(topics), timeout_ms, validate_only)
    answer = world.client().ask(CREATE_PARTITIONS, version, request, wait_ms=timeout_ms + 50)
    found = answer.results
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("version", range(4))
def test_topic_grows_and_what_it_had_stays(version: int) -> None:
    """Existing partitions keep their groups and records."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 3)
    before = list(world.host.catalog.topics["t"].partitions)
    (result,) = grow(world, growth(), version=version)
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    topic = world.host.catalog.topics["t"]
    assert topic is world.host.catalog.topics_by_id[topic.topic_id]
    assert topic.partitions[:1] == before
    assert [world.host.catalog.groups[group].partition for group in topic.partitions] == [0, 1, 2]
    assert world.host.streams[before[0]] is stream
    assert stream.high_watermark == 3


def test_new_partitions_are_placed_as_assigned() -> None:
    """The first server of each assignment is the preferred leader."""
    world = World()
    world.topic()
    (result,) = grow(world, growth(count=3, assignments=[[3, 1, 2], [2, 3, 1]]))
    assert result.error_code == ErrorCode.NONE
    catalog = world.host.catalog
    placed = [
        [replica.server_id for replica in catalog.groups[group].replicas]
        for group in catalog.topics["t"].partitions
    ]
    assert placed == [[1, 2, 3], [3, 1, 2], [2, 3, 1]]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (growth("nobody"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (growth(count=2), ErrorCode.INVALID_PARTITIONS),
        (growth(count=1), ErrorCode.INVALID_PARTITIONS),
        (growth(count=0), ErrorCode.INVALID_PARTITIONS),
        (growth(count=-1), ErrorCode.INVALID_PARTITIONS),
        (growth(count=10_003), ErrorCode.POLICY_VIOLATION),
        (growth(assignments=[]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth(assignments=[[1, 2, 3]] * 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth(assignments=[[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth(assignments=[[1, 2, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth(assignments=[[1, 2, 7]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (growth(assignments=[[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growth_is_refused_with_the_code_of_kafka(
    asked: CreatePartitionsTopic, error: ErrorCode
) -> None:
    """Each error has its code and a text; nothing changes."""
    world = World()
    world.topic(partitions=2)
    (result,) = grow(world, asked)
    assert result.error_code == error
    assert result.error_message
    assert len(world.host.catalog.topics["t"].partitions) == 2


def test_new_partitions_need_a_server_that_is_there() -> None:
    """As in Kafka: a partition whose servers are all unavailable could have no leader."""
    world = World()
    world.topic(servers=(1,))
    world.host.alive = [1, 2]
    (result,) = grow(world, growth(count=2, assignments=[[3]]))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    (result,) = grow(world, growth(count=2, assignments=[[2]]))
    assert result.error_code == ErrorCode.NONE


def test_each_topic_has_its_own_answer() -> None:
    """A refused topic does not affect the others; a duplicate topic gets one response."""
    world = World()
    for name in ("a", "b", "c"):
        world.topic(name)
    results = grow(world, growth("a"), growth("b", 1), growth("c"), growth("c"))
    assert {result.name: result.error_code for result in results} == {
        "a": ErrorCode.NONE,
        "b": ErrorCode.INVALID_PARTITIONS,
        "c": ErrorCode.INVALID_REQUEST,
    }
    counts = {name: len(topic.partitions) for name, topic in world.host.catalog.topics.items()}
    assert counts == {"a": 3, "b": 1, "c": 1}


def test_growth_that_is_only_validated_changes_nothing() -> None:
    """Validation applies the same checks as a real request."""
    world = World()
    world.topic()
    results = grow(world, growth(), growth("nobody"), validate_only=True)
    codes = [result.error_code for result in results]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert len(world.host.catalog.topics["t"].partitions) == 1


def test_servers_have_no_more_replicas_than_they_may() -> None:
    """The limit counts existing replicas and those that earlier topics of the request add."""
    world = World(KafkaOptions(replicas_per_server_max=4))
    for name in ("a", "b"):
        world.topic(name)
    results = grow(world, growth("a", 3), growth("b", 2))
    assert [result.error_code for result in results] == [
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert "the maximum is 4" in (results[1].error_message or "")
    assert world.context.topics_refused == 1


def test_growth_is_answered_when_the_new_partitions_are_led() -> None:
    """The response is sent at the timeout at the latest; the partitions exist then too."""
    world = World()
    world.topic()
    world.host.leaders_at_once = False
    client = world.client()
    client.request(CREATE_PARTITIONS, 3, CreatePartitionsRequest([growth()], 300))
    world.run(100)
    assert client.answers() == []
    for group in world.host.catalog.topics["t"].partitions:
        world.host.leaders[group] = (1, 5)
    world.run(50)
    (answer,) = client.answers()
    assert answer.results[0].error_code == ErrorCode.NONE
    (result,) = grow(world, growth(count=4), timeout_ms=300)
    assert result.error_code == ErrorCode.NONE
    assert len(world.host.catalog.topics["t"].partitions) == 4


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (OutcomeKind.NOT_APPENDED, ErrorCode.NOT_CONTROLLER),
        (OutcomeKind.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT),
        (OutcomeKind.TOO_LARGE, ErrorCode.INVALID_REQUEST),
    ],
)
def test_growth_that_is_not_decided_says_what_is_certain(
    kind: OutcomeKind, error: ErrorCode
) -> None:
    """Same rules as for the other commands of the catalog."""
    world = World()
    world.topic()
    world.host.catalog_outcome = kind
    assert grow(world, growth())[0].error_code == error
