"""The lag of a group in seconds is the age of the record that it has to read next, exactly."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition

from tests.clients.command_line import SECONDS, CommandLine
from tests.clients.topics import Topics

NOW_MS = time.time_ns() // 1_000_000
TIMES = [NOW_MS - 1_000_000 + 10_000 * number for number in range(6)]
"""Times of records: the first is a thousand seconds old, each ten seconds younger."""


@pytest.fixture
def line(bootstrap: str) -> CommandLine:
    return CommandLine(bootstrap)


def lag_of(line: CommandLine, group: str, *options: str) -> dict[str, Any]:
    """Return the one partition of a group, with the time that its seconds count to."""
    before_ms = time.time_ns() // 1_000_000
    (found,) = line.json("group", "lag", group, *options)["groups"]
    assert before_ms <= found["at_ms"] <= time.time_ns() // 1_000_000
    (partition,) = found["partitions"]
    assert found["lag"] == partition["lag"]
    assert found["lag_seconds"] == partition["lag_seconds"]
    return {**partition, "at_ms": found["at_ms"]}


def assert_behind(found: dict[str, Any], *, lag: int, time_ms: int) -> None:
    """Check records, and seconds to the millisecond."""
    assert (found["lag"], found["record_time_ms"]) == (lag, time_ms)
    assert found["lag_seconds"] == (found["at_ms"] - time_ms) / 1_000


def test_lag_of_a_plain_topic_is_the_age_of_the_next_record(
    line: CommandLine, topics: Topics
) -> None:
    """The oldest record that is not committed counts; at the end it is 0."""
    topic, group = topics.create("lag"), topics.unused_name("lag")
    line.write(topic, TIMES)
    line.commit(group, {(topic, 0): 2})
    assert_behind(lag_of(line, group), lag=4, time_ms=TIMES[2])
    line.commit(group, {(topic, 0): 6})
    idle = lag_of(line, group)
    assert (idle["lag"], idle["lag_seconds"], idle["record_time_ms"]) == (0, 0.0, None)


def test_lag_behind_a_record_of_a_time_to_come_is_called_wrong(
    line: CommandLine, topics: Topics
) -> None:
    """A clock is wrong, this machine's or the producer's: 0 seconds would pass for no lag."""
    topic, group = topics.create("lag-ahead"), topics.unused_name("lag")
    line.write(topic, [TIMES[0], NOW_MS + 1_800_000])
    line.commit(group, {(topic, 0): 0})
    assert "clock" not in line.run("group", "lag", group).error
    line.commit(group, {(topic, 0): 1})
    ran = line.run("group", "lag", group, "--json")
    assert (ran.code, ran.json["groups"][0]["lag"]) == (0, 1)
    assert f"{topic}-0: the next record has a time " in ran.error


def test_lag_behind_deleted_records_counts_from_the_start_of_the_log(
    line: CommandLine, topics: Topics
) -> None:
    """The next record is the first that is left."""
    topic, group = topics.create("lag-deleted"), topics.unused_name("lag")
    line.write(topic, TIMES)
    line.commit(group, {(topic, 0): 1})
    line.ok("topic", "records-delete", topic, "--before-offset", "4", "--yes")
    assert_behind(lag_of(line, group), lag=5, time_ms=TIMES[4])


def test_lag_of_two_groups_in_one_partition_is_each_ones_own(
    line: CommandLine, topics: Topics
) -> None:
    """A partition is read at two offsets, and at no more than those."""
    topic = topics.create("lag-shared", partitions=2)
    groups = [topics.unused_name("lag-of-two") for _ in range(2)]
    line.write(topic, TIMES)
    line.write(topic, TIMES[:1], partition=1)
    line.commit(groups[0], {(topic, 0): 0, (topic, 1): 0})
    line.commit(groups[1], {(topic, 0): 5})
    found = line.json("group", "lag", *groups)["groups"]
    times = {
        (one["group"], part["partition"]): part["record_time_ms"]
        for one in found
        for part in one["partitions"]
    }
    assert times == {(groups[0], 0): TIMES[0], (groups[0], 1): TIMES[0], (groups[1], 0): TIMES[5]}


def test_lag_of_a_transactional_topic_counts_what_the_isolation_reads(
    line: CommandLine, topics: Topics
) -> None:
    """Aborted records count unless they are hidden; markers never do."""
    topic, group = topics.create("lag-transactions"), topics.unused_name("lag")
    producer = Producer({"bootstrap.servers": line.bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    for time_ms, is_committed in zip(TIMES[:3], (True, False, True), strict=True):
        producer.begin_transaction()
        producer.produce(topic, b"v", partition=0, timestamp=time_ms)
        producer.flush(SECONDS)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(SECONDS)
    # Offsets: 0 committed, 1 its marker, 2 aborted, 3 its marker, 4 committed, 5 its marker.
    line.commit(group, {(topic, 0): 1})
    assert_behind(lag_of(line, group), lag=5, time_ms=TIMES[1])
    committed = lag_of(line, group, "--isolation", "read_committed")
    assert_behind(committed, lag=5, time_ms=TIMES[2])
    line.commit(group, {(topic, 0): 5})
    for isolation in ("read_uncommitted", "read_committed"):
        only_a_marker = lag_of(line, group, "--isolation", isolation)
        assert (only_a_marker["lag"], only_a_marker["lag_seconds"]) == (1, 0.0)


def test_lag_of_a_compacted_topic_is_the_age_of_the_first_record_that_is_left(
    line: CommandLine, topics: Topics
) -> None:
    """The committed offset has no record any more: the next one counts."""
    topic = topics.create(
        "lag-compacted", cleanup_policy="compact", segment_bytes="65536",
        min_cleanable_dirty_ratio="0.0",
    )  # fmt: skip
    group = topics.unused_name("lag")
    times = [TIMES[0] + 1_000 * number for number in range(120)]
    line.write(topic, times, value=bytes(4_000))
    line.commit(group, {(topic, 0): 1})
    deadline = time.monotonic() + SECONDS
    while (first := first_offset(line.bootstrap, topic, 1)) == 1:
        assert time.monotonic() < deadline, "nothing is compacted"
        time.sleep(0.5)
    found = lag_of(line, group)
    assert found["record_time_ms"] >= times[first]
    assert_behind(found, lag=119, time_ms=found["record_time_ms"])
    assert found["record_time_ms"] in times


def first_offset(bootstrap: str, topic: str, offset: int) -> int:
    """Return the offset of the first record that is not below another one."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(SECONDS)
    consumer.close()
    assert message is not None
    assert message.error() is None
    found = message.offset()
    assert found is not None
    return found


def test_share_group_is_listed_and_its_lag_is_that_of_the_record_at_its_start(
    line: CommandLine, topics: Topics
) -> None:
    """A share group has a type of its own, and offsets that its servers keep (KIP-932)."""
    topic, group = topics.create("lag-share"), topics.unused_name("lag-share")
    line.ok("config", "set", "group", group, "share.auto.offset.reset=earliest")
    line.write(topic, TIMES[:3])
    consumer = ShareConsumer({"bootstrap.servers": line.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    seen: set[int | None] = set()
    deadline = time.monotonic() + SECONDS
    while len(seen) < 3:
        assert time.monotonic() < deadline, seen
        seen |= {one.offset() for one in consumer.poll(1.0) if one.error() is None}
    consumer.commit_sync(SECONDS)
    (listed,) = line.json("group", "list", group)["groups"]
    assert (listed["type"], listed["state"]) == ("share", "Stable")
    (described,) = line.json("group", "describe", group)["groups"]
    assert described["members"][0]["partitions"] == [{"topic": topic, "partition": 0}]
    consumer.close()
    line.write(topic, TIMES[3:5])
    # The coordinator counts to the high watermark of its replica, which may be a follower's.
    while (found := lag_of(line, group))["lag"] < 2:
        assert time.monotonic() < deadline, found
    assert_behind(found, lag=2, time_ms=TIMES[3])
    line.ok("group", "reset", group, "--all-topics", "--to-earliest", "--execute")
    assert_behind(lag_of(line, group), lag=5, time_ms=TIMES[0])
