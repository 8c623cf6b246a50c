"""Committed offsets read from `__consumer_offsets`, as Kafka's monitoring tools read it."""

from __future__ import annotations

import time
from struct import Struct

from tests.clients.clients import Client
from tests.clients.conftest import Drivers
from tests.clients.scenarios import numbered, read
from tests.clients.topics import Topics

SECONDS = 30.0
INTERNAL = "__consumer_offsets"


def committed(key: bytes | None, value: bytes | None) -> tuple[str, str, int, int]:
    """Return group, topic, partition and offset of a key v1 and a value v3.

    They are OffsetCommitKey and OffsetCommitValue. A group's own record, whose key names nothing
    else, has an empty topic.
    """
    assert key is not None
    (version,) = Struct(">h").unpack_from(key)
    (size,) = Struct(">h").unpack_from(key, 2)
    group, at = key[4 : 4 + size].decode(), 4 + size
    if version != 1 or value is None:
        return group, "", version, -1
    (size,) = Struct(">h").unpack_from(key, at)
    topic, at = key[at + 2 : at + 2 + size].decode(), at + 2 + size
    (partition,) = Struct(">i").unpack(key[at:])
    value_version, offset = Struct(">hq").unpack_from(value)
    assert (version, value_version) == (1, 3)
    return group, topic, partition, offset


def test_commits_are_read_from_the_topic_of_offsets(
    client: Client, drivers: Drivers, topics: Topics
) -> None:
    """The topic is read from its beginning, and commits made meanwhile follow."""
    driver, monitor = drivers.of(client, 2)
    topic, group = topics.create("monitored"), topics.unused_name("group")
    partitions = [(INTERNAL, p) for p in range(topics.partition_count(INTERNAL))]
    driver.produce(numbered(topic, range(4)))
    driver.open(group=group)
    driver.ask("subscribe", topics=[topic])
    read(driver, 4)
    driver.ask("commit")
    monitor.open(reset="earliest")
    monitor.ask("assign", partitions=partitions)
    for wanted in (4, 6):
        if wanted == 6:
            driver.produce(numbered(topic, range(4, 6)))
            read(driver, 2)
            driver.ask("commit")
        deadline = time.monotonic() + SECONDS
        found: list[tuple[str, str, int, int]] = []
        # The key version of a classic group is 2, of one of the newer protocol 3.
        group_keys = {(group, "", 2, -1), (group, "", 3, -1)}
        while (group, topic, 0, wanted) not in found or (
            wanted == 4 and group_keys.isdisjoint(found)
        ):
            assert time.monotonic() < deadline, found
            polled = monitor.poll()
            found += [committed(record.key, record.value) for _, record in polled.records]
    driver.ask("close")
    monitor.ask("close")
