"""DescribeLogDirs and AlterReplicaLogDirs of a server with one data directory."""

from __future__ import annotations

import pytest

from segments.api import Compacted, CorruptRecord
from tests.unit.kafka.fake_host import World, fill
from vdl.errors import ErrorCode
from vdl.kafka.partitions.log_sizes import UNDER_WAY_MAX
from vdl.kafka.wire.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from vdl.kafka.wire.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)

ALTER = 34
DESCRIBE = 35
DIRECTORY = "/var/lib/vdl"


@pytest.fixture
def world() -> World:
    world = World()
    world.context.log_directory = DIRECTORY
    for stream in world.topic("a", 2):
        fill(stream, 3)
    world.topic("b")
    return world


def describe(
    world: World, topics: list[DescribableLogDirTopic] | None, version: int = 5
) -> DescribeLogDirsResult:
    answer = world.client().ask(DESCRIBE, version, DescribeLogDirsRequest(topics))
    assert answer.error_code == ErrorCode.NONE
    (result,) = answer.results
    assert isinstance(result, DescribeLogDirsResult)
    return result


def sizes(result: DescribeLogDirsResult) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_directory_is_described_in_each_version(world: World, version: int) -> None:
    """Lists every local replica with its size; the disk's size from v4 on (KIP-827)."""
    result = describe(world, None, version)
    assert (result.error_code, result.log_dir) == (ErrorCode.NONE, DIRECTORY)
    found = sizes(result)
    assert found["a", 0] == found["a", 1] > 0
    assert found["b", 0] == 0
    space = (1000, 400) if version >= 4 else (-1, -1)
    assert (result.total_bytes, result.usable_bytes) == space
    assert not result.is_cordoned
    assert not any(p.is_future_key or p.offset_lag for t in result.topics for p in t.partitions)


def test_only_what_was_asked_for_and_is_here_is_told(world: World) -> None:
    """Other topics and partitions are omitted, as in Kafka; duplicates are listed once."""
    world.topic("elsewhere", servers=(2, 3))
    asked = [
        DescribableLogDirTopic("a", [1, 1, 7, -1]),
        DescribableLogDirTopic("a", [1]),
        DescribableLogDirTopic("elsewhere", [0]),
        DescribableLogDirTopic("nobody", [0]),
    ]
    assert list(sizes(describe(world, asked))) == [("a", 1)]
    nothing = describe(world, [])
    assert (nothing.topics, nothing.log_dir) == ([], DIRECTORY)


def test_directory_that_cannot_be_read_says_so(world: World) -> None:
    """The error is for the directory; the next request checks again."""
    stream = world.host.streams[world.host.catalog.topics["a"].partitions[0]]
    stream.cold_error = CorruptRecord("segment", 0)
    result = describe(world, None)
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
    stream.cold_error = Compacted("deleted meanwhile")
    assert sorted(sizes(describe(world, None))) == [("a", 1), ("b", 0)]


def test_requests_share_walks_over_the_replicas(world: World) -> None:
    """Requests that arrive during a walk share one more walk, however many they are."""
    streams = world.topic("many", 3 * UNDER_WAY_MAX)
    clients = [world.client() for _ in range(50)]
    for client in clients:
        client.request(DESCRIBE, 5, DescribeLogDirsRequest(None))
    world.run(1.5)
    assert sum(stream.sizes_asked for stream in streams) <= UNDER_WAY_MAX
    world.run(200)
    for client in clients:
        (answer,) = client.answers()
        assert len(sizes(answer.results[0])) == 3 * UNDER_WAY_MAX + 3
    assert {stream.sizes_asked for stream in streams} == {2}


def test_only_requested_replicas_are_measured(world: World) -> None:
    """Each costs a disk read, and a server may have thousands."""
    wanted, other = world.topic("wanted", 2), world.topic("other", 2)
    asked = [DescribableLogDirTopic("wanted", [1])]
    assert list(sizes(describe(world, asked))) == [("wanted", 1)]
    assert [stream.sizes_asked for stream in (*wanted, *other)] == [0, 1, 0, 0]


def test_replicas_are_where_they_are_to_be_or_nowhere_else(world: World) -> None:
    """Moving to the one directory succeeds; everything else gets Kafka's codes."""
    world.topic("elsewhere", servers=(2, 3))
    topics = [
        AlterReplicaLogDirTopic("a", [0, 1, 2]),
        AlterReplicaLogDirTopic("elsewhere", [0]),
        AlterReplicaLogDirTopic("nobody", [0]),
    ]
    other = [AlterReplicaLogDirTopic("b", [0])]
    for version in (1, 2):
        request = AlterReplicaLogDirsRequest(
            [AlterReplicaLogDir(DIRECTORY, topics), AlterReplicaLogDir("/elsewhere", other)]
        )
        answer = world.client().ask(ALTER, version, request)
        found = {
            (topic.topic_name, partition.partition_index): partition.error_code
            for topic in answer.results
            for partition in topic.partitions
        }
        assert found == {
            ("a", 0): ErrorCode.NONE,
            ("a", 1): ErrorCode.NONE,
            ("a", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("elsewhere", 0): ErrorCode.REPLICA_NOT_AVAILABLE,
            ("nobody", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("b", 0): ErrorCode.LOG_DIR_NOT_FOUND,
        }
