"""Topics grow while clients use them, as with Kafka (KIP-195)."""

from __future__ import annotations

import time

from tests.clients.clients import Client
from tests.clients.conftest import Drivers
from tests.clients.scenarios import numbered, read
from tests.clients.topics import Topics
from vdl.errors import ErrorCode

SECONDS = 20.0


def test_group_reads_new_partitions_and_keeps_its_positions(
    client: Client, drivers: Drivers, topics: Topics
) -> None:
    """A consumer of the topic detects them by itself; its committed offsets stay."""
    driver = drivers.of(client, 1)[0]
    topic, group = topics.create("grows"), topics.unused_name("group")
    driver.produce(numbered(topic, range(5)))
    driver.open(group=group)
    driver.ask("subscribe", topics=[topic])
    read(driver, 5)
    driver.ask("commit")

    assert driver.create_partitions(topic, 3) == ErrorCode.NONE
    new = numbered(topic, range(5, 8), partition=2) + numbered(topic, range(8, 10), partition=1)
    assert sorted(driver.produce(new)) == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    found = read(driver, 5)
    assert sorted(record.value or b"" for _, record in found) == [b"5", b"6", b"7", b"8", b"9"]
    owned = {(topic, partition) for partition in range(3)}
    deadline = time.monotonic() + SECONDS
    while driver.poll().owned != owned:
        assert time.monotonic() < deadline
    driver.ask("commit")
    assert driver.committed([(topic, 0), (topic, 1), (topic, 2)]) == [5, 2, 3]


def test_growth_that_is_none_is_refused(client: Client, drivers: Drivers, topics: Topics) -> None:
    """Every client receives the reason."""
    driver = drivers.of(client, 1)[0]
    topic = topics.create("grows", partitions=2)
    for count in (1, 2):
        assert driver.create_partitions(topic, count) == ErrorCode.INVALID_PARTITIONS
    nobody = topics.unused_name("nobody")
    assert driver.create_partitions(nobody, 2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
