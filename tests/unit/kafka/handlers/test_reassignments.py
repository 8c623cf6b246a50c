"""AlterPartitionReassignments and ListPartitionReassignments: requests, errors and listings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kafka.fake_host import World
from vdl.errors import ErrorCode
from vdl.kafka.handlers.reassignments import CHANGES_PER_COMMAND
from vdl.kafka.wire.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from vdl.kafka.wire.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from vdl.kafka.wire.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.logstream.group.state_group import OutcomeKind

ALTER, LIST, METADATA, CREATE_TOPICS = 45, 46, 3, 19


@pytest.fixture
def world() -> World:
    """Topic `t` has two partitions on servers 1 and 2; server 3 has no replica."""
    world = World()
    placed = [CreatableReplicaAssignment(index, [1, 2]) for index in range(2)]
    request = CreateTopicsRequest([CreatableTopic("t", -1, -1, placed)], 1_000)
    assert world.client().ask(CREATE_TOPICS, 7, request).topics[0].error_code == 0
    return world


def alter(
    world: World,
    changes: dict[int, list[int] | None],
    *,
    topic: str = "t",
    version: int = 1,
    may_change_count: bool = True,
) -> dict[int, ErrorCode]:
    partitions = [ReassignablePartition(index, where) for index, where in changes.items()]
    request = AlterPartitionReassignmentsRequest(
        1_000, may_change_count, [ReassignableTopic(topic, partitions)]
    )
    answer = world.client().ask(ALTER, version, request)
    assert (answer.error_code, answer.error_message) == (0, None)
    (found,) = answer.responses
    assert found.name == topic
    for row in found.partitions:
        assert (row.error_message is None) == (row.error_code == 0)
    return {row.partition_index: ErrorCode(row.error_code) for row in found.partitions}


def listed(world: World, asked: dict[str, list[int]] | None = None) -> dict[tuple[str, int], Any]:
    topics = None
    if asked is not None:
        topics = [ListPartitionReassignmentsTopics(name, which) for name, which in asked.items()]
    answer = world.client().ask(LIST, 0, ListPartitionReassignmentsRequest(1_000, topics))
    assert (answer.error_code, answer.error_message) == (0, None)
    return {
        (topic.name, row.partition_index): (
            row.replicas,
            row.adding_replicas,
            row.removing_replicas,
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def told_by_metadata(world: World) -> list[int]:
    request = MetadataRequest([MetadataRequestTopic(name="t")])
    replicas = world.client().ask(METADATA, 9, request).topics[0].partitions[0].replica_nodes
    assert isinstance(replicas, list)
    return replicas


@pytest.mark.parametrize("version", [0, 1])
def test_reassignment_is_told_by_list_and_metadata(world: World, version: int) -> None:
    assert alter(world, {0: [3, 1]}, version=version) == {0: ErrorCode.NONE}
    assert listed(world) == {("t", 0): ([3, 1, 2], [3], [2])}
    assert told_by_metadata(world) == [3, 1, 2]


def test_each_partition_has_its_own_answer(world: World) -> None:
    """A refused partition does not affect the others."""
    assert alter(world, {0: [1, 9], 1: [3, 2], 2: [1, 2]}) == {
        0: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        1: ErrorCode.NONE,
        2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert listed(world).keys() == {("t", 1)}
    assert alter(world, {0: [3]}, topic="u") == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_null_replicas_cancel(world: World) -> None:
    assert alter(world, {0: None}) == {0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    alter(world, {0: [3, 1]})
    assert alter(world, {0: None, 1: None}) == {
        0: ErrorCode.NONE,
        1: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    }
    assert listed(world) == {}
    assert told_by_metadata(world) == [1, 2]


def test_version_0_may_change_the_count_and_version_1_may_forbid_it(world: World) -> None:
    """KIP-860."""
    refused = alter(world, {0: [1, 2, 3]}, may_change_count=False)
    assert refused == {0: ErrorCode.INVALID_REPLICATION_FACTOR}
    assert alter(world, {0: [1, 2, 3]}, version=0) == {0: ErrorCode.NONE}
    assert listed(world) == {("t", 0): ([1, 2, 3], [3], [])}


def test_list_tells_of_what_it_is_asked_for(world: World) -> None:
    """Topics and partitions that do not exist, or do not move, are omitted, as in Kafka."""
    alter(world, {0: [3, 1], 1: [3, 2]})
    assert listed(world).keys() == {("t", 0), ("t", 1)}
    assert listed(world, {"t": [1, 7, -1], "u": [0]}).keys() == {("t", 1)}
    assert listed(world, {}) == {}


def test_command_without_a_catalog_leader_is_to_be_tried_again(world: World) -> None:
    """Java's admin client retries this code when it is the error of the whole request."""
    world.host.catalog_outcome = OutcomeKind.NOT_APPENDED
    partitions = [ReassignablePartition(0, [3, 1])]
    request = AlterPartitionReassignmentsRequest(1_000, True, [ReassignableTopic("t", partitions)])
    answer = world.client().ask(ALTER, 1, request)
    assert answer.error_code == ErrorCode.NOT_CONTROLLER
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_CONTROLLER


def test_more_than_a_command_holds_is_decided_in_several(world: World) -> None:
    changes: dict[int, list[int] | None] = {
        index: [3, 1] for index in range(2 * CHANGES_PER_COMMAND + 1)
    }
    found = alter(world, changes)
    assert list(found) == list(changes)
    assert found.pop(0) is found.pop(1) is ErrorCode.NONE
    assert set(found.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert alter(world, {}) == {}


def test_name_that_no_topic_has_is_in_no_command(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command holds the name once a partition: 10,000 times 32 KiB from one small request."""
    proposed: list[Any] = []
    propose = world.host.propose_catalog
    monkeypatch.setattr(
        world.host,
        "propose_catalog",
        lambda command, **rest: (proposed.append(command), propose(command, **rest)),
    )
    changes: dict[int, list[int] | None] = {index: [1, 2] for index in range(300)}
    for name in ("x" * 32_000, "", "no/topic"):
        found = alter(world, changes, topic=name)
        assert found == dict.fromkeys(changes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not proposed
    assert alter(world, {0: [3, 1]}, topic="none") == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(proposed) == 1
