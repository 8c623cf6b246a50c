"""ListOffsets and OffsetForLeaderEpoch: the ends of a log, confirmed by a quorum."""

from __future__ import annotations

import pytest

from segments.api import CorruptRecord
from tests.unit.kafka.fake_host import WALL_MS, FakeStream, World, batch, fill
from vdl.errors import ErrorCode
from vdl.kafka.wire.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from vdl.kafka.wire.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from vdl.records.batch import read_header

LIST_OFFSETS = 2
OFFSET_FOR_LEADER_EPOCH = 23


def ask(
    world: World, timestamp: int, *, version: int = 6, epoch: int = -1, partition: int = 0
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition, current_leader_epoch=epoch, timestamp=timestamp)
    request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [asked])])
    answer = world.client().ask(LIST_OFFSETS, version, request).topics[0].partitions[0]
    assert isinstance(answer, ListOffsetsPartitionResponse)
    return answer


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_of_each_version_finds_both_ends(version: int) -> None:
    """Earliest is the log start offset, latest is the end of committed data."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 5)
    stream.log_start_offset = 2
    assert ask(world, -2, version=version).offset == 2
    assert ask(world, -2, version=version).leader_epoch == (5 if version >= 4 else -1)
    latest = ask(world, -1, version=version)
    assert (latest.offset, latest.timestamp) == (5, -1)
    assert latest.leader_epoch == (5 if version >= 4 else -1)


def ask_old(world: World, timestamp: int, count: int) -> list[int] | int:
    """Return the offsets, or the error code, of a version 0 request."""
    asked = ListOffsetsPartition(0, timestamp=timestamp, max_num_offsets=count)
    request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [asked])])
    answer = world.client().ask(LIST_OFFSETS, 0, request).topics[0].partitions[0]
    offsets: list[int] = answer.old_style_offsets
    return answer.error_code or offsets


def three_segments(world: World) -> FakeStream:
    """Return a log of three segments of ten records each, a second apart.

    The first three records are deleted.
    """
    (stream,) = world.topic()
    for start in range(3):
        data = memoryview(batch(10, timestamp=WALL_MS - 5_000 + 1_000 * start))
        stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    stream.commit()
    stream.log_start_offset = 3
    return stream


def test_list_offsets_of_version_0_says_where_segments_begin() -> None:
    """Newest first, up to the requested number; the log end counts as one for the latest."""
    world = World()
    three_segments(world)
    assert ask_old(world, -1, 1) == [30]
    assert ask_old(world, -1, 9) == [30, 20, 10, 3]
    assert ask_old(world, -1, 3) == [30, 20, 10]
    assert ask_old(world, -1, 0) == []
    assert ask_old(world, -2, 9) == [3]
    assert ask_old(world, -2, 0) == []


def test_list_offsets_of_version_0_by_time_lies_before_what_is_later() -> None:
    """Returns the newest segment whose last record is old enough, then all before it."""
    world = World()
    three_segments(world)
    assert ask_old(world, WALL_MS - 4_000 + 9, 9) == [10, 3]
    assert ask_old(world, WALL_MS - 4_000 + 8, 9) == [3]
    assert ask_old(world, WALL_MS - 3_000 + 9, 1) == [20]
    assert ask_old(world, WALL_MS + 3_600_000, 2) == [30, 20]
    assert ask_old(world, 0, 9) == []
    assert ask_old(world, -7, 9) == []


def test_list_offsets_of_version_0_of_an_empty_log() -> None:
    world = World()
    world.topic()
    assert ask_old(world, -1, 5) == [0]
    assert ask_old(world, -2, 5) == [0]
    assert ask_old(world, WALL_MS, 5) == []


def test_list_offsets_of_version_0_says_what_is_wrong() -> None:
    """Covers a missing quorum, an invalid count, and unreadable segments."""
    world = World()
    stream = three_segments(world)
    assert ask_old(world, -1, -1) == ErrorCode.INVALID_REQUEST
    stream.segments_error = CorruptRecord("segment", 0)
    assert ask_old(world, -1, 1) == ErrorCode.KAFKA_STORAGE_ERROR
    stream.quorum = False
    assert ask_old(world, -1, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("timestamp", [-4, -3, -2, -1, WALL_MS])
def test_list_offsets_needs_a_quorum(timestamp: int) -> None:
    """A deposed leader's offsets may be stale.

    Its end would make a consumer skip records that others acknowledged; its start may be below what
    was deleted since.
    """
    world = World()
    (stream,) = world.topic()
    stream.quorum = False
    answer = ask(world, timestamp, version=11)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_list_offsets_by_time_finds_the_first_record_at_or_after() -> None:
    """KIP-79: the least offset whose timestamp is not earlier; -1 if there is none."""
    world = World()
    (stream,) = world.topic()
    for start in (WALL_MS, WALL_MS + 100):
        data = memoryview(batch(10, timestamp=start))
        stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    stream.commit()
    found = ask(world, WALL_MS + 3)
    assert (found.offset, found.timestamp, found.leader_epoch) == (3, WALL_MS + 3, 5)
    assert ask(world, WALL_MS + 50).offset == 10
    assert ask(world, 0).offset == 0
    none = ask(world, WALL_MS + 1000)
    assert (none.error_code, none.offset, none.timestamp) == (ErrorCode.NONE, -1, -1)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_list_offsets_checks_the_leader_epoch(epoch: int, error: ErrorCode) -> None:
    """KIP-320, for every kind of timestamp."""
    world = World()
    world.topic()
    for timestamp in (-2, -1, 0):
        assert ask(world, timestamp, epoch=epoch).error_code == error


def test_list_offsets_of_what_is_not_there_or_not_led_is_refused() -> None:
    """Covers an unknown partition, a follower, and special timestamps of later versions."""
    world = World()
    (stream,) = world.topic()
    assert ask(world, -1, partition=4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stream.lose_leadership()
    assert ask(world, -2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99), (-(1 << 63), 99)]
)
def test_list_offsets_knows_special_timestamps_from_a_version_on(
    timestamp: int, since: int
) -> None:
    """As in Kafka: earlier versions, and all other negative timestamps, get UNSUPPORTED_VERSION."""
    world = World()
    world.topic()
    for version in range(6, 12):
        known = version >= since
        error = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION
        assert ask(world, timestamp, version=version).error_code == error


def test_list_offsets_of_tiers_says_that_there_are_none() -> None:
    """All data is on local disks; nothing is or will be in remote storage."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 5)
    stream.log_start_offset = 2
    local = ask(world, -4, version=8)
    assert (local.offset, local.timestamp, local.leader_epoch) == (2, -1, 5)
    for timestamp in (-5, -6):
        answer = ask(world, timestamp, version=11)
        assert (answer.offset, answer.timestamp, answer.leader_epoch) == (-1, -1, -1)


def test_list_offsets_finds_the_first_record_with_the_largest_timestamp() -> None:
    """KIP-734: anywhere in the log; the first of equal ones.

    -1 without an error if there is no record.
    """
    world = World()
    (stream,) = world.topic()
    none = ask(world, -3, version=7)
    assert (none.error_code, none.offset, none.timestamp) == (ErrorCode.NONE, -1, -1)
    for start in (WALL_MS, WALL_MS + 100, WALL_MS + 50, WALL_MS + 100):
        data = memoryview(batch(10, timestamp=start))
        stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    stream.commit()
    found = ask(world, -3, version=7)
    assert (found.offset, found.timestamp, found.leader_epoch) == (19, WALL_MS + 109, 5)


def test_partition_that_is_asked_for_twice_is_refused() -> None:
    """INVALID_REQUEST for each occurrence, as in Kafka; other partitions are answered."""
    world = World()
    world.topic("t", 2)
    asked = [ListOffsetsPartition(index, timestamp=-1) for index in (0, 1, 0)]
    request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", asked)])
    (topic,) = world.client().ask(LIST_OFFSETS, 6, request).topics
    twice = ErrorCode.INVALID_REQUEST
    assert [p.error_code for p in topic.partitions] == [twice, ErrorCode.NONE, twice]


def epoch_end(world: World, epoch: int, *, version: int = 4, current: int = -1) -> EpochEndOffset:
    asked = OffsetForLeaderPartition(0, current, epoch)
    request = OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("t", [asked])])
    answer = world.client().ask(OFFSET_FOR_LEADER_EPOCH, version, request)
    found = answer.topics[0].partitions[0]
    assert isinstance(found, EpochEndOffset)
    return found


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch_tells_where_an_epoch_ends(version: int) -> None:
    """KIP-101: the largest epoch up to the requested one, and its end offset."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 2)
    stream.term = 8
    fill(stream, 3)
    for epoch, expected in (
        (3, (3, 0)),
        (5, (5, 2)),
        (7, (5, 2)),
        (8, (8, 5)),
        (9, (-1, -1)),
        (-1, (-1, -1)),
    ):
        found = epoch_end(world, epoch, version=version)
        assert (found.leader_epoch, found.end_offset) == expected
    assert epoch_end(world, 5, current=7).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_offset_for_leader_epoch_needs_a_quorum() -> None:
    """A deposed leader must not make a consumer believe that its records were truncated."""
    world = World()
    (stream,) = world.topic()
    stream.quorum = False
    assert epoch_end(world, 5).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
