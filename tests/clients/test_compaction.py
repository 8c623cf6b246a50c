"""A compacted topic with unmodified clients: the newest record of each key, at its offset."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.clients.clients import Client
from tests.clients.conftest import Drivers
from tests.clients.driver import Driver, Record
from tests.clients.scenarios import BASE_TIMESTAMP
from tests.clients.topics import Topics

ROUNDS, KEYS = 40, 25
VALUE_BYTES = 400
DELETED = 5
"""Keys for which the last round writes a deletion."""
SECONDS = 90.0


@dataclass
class Written:
    """Records that one client wrote, and their topic."""

    topic: str
    newest: dict[bytes, bytes | None]


Writing = Callable[[Client], Written]


@pytest.fixture(scope="module")
def writing(drivers: Drivers, topics: Topics) -> Writing:
    """Let each client write once: while one topic is checked, the others' are compacted, too."""
    done: dict[str, Written] = {}

    def write(client: Client) -> Written:
        if client.name not in done:
            done[client.name] = written(drivers.of(client, 1)[0], topics)
        return done[client.name]

    return write


def written(driver: Driver, topics: Topics) -> Written:
    """Write values of the same keys repeatedly, and at last some deletions."""
    topic = topics.create(
        "compacted", cleanup_policy="compact", segment_bytes="65536",
        min_cleanable_dirty_ratio="0.0", delete_retention_ms="0",
    )  # fmt: skip
    newest: dict[bytes, bytes | None] = {}
    for n in range(ROUNDS):
        records = []
        for key in range(KEYS):
            is_deletion = n == ROUNDS - 1 and key < DELETED
            value = None if is_deletion else b"%d.%d" % (n, key) + bytes(VALUE_BYTES)
            records.append(Record(topic, 0, b"k%d" % key, value, BASE_TIMESTAMP + n))
            newest[b"k%d" % key] = value
        driver.produce(records)
    return Written(topic, newest)


def test_reader_of_a_topic_that_is_being_compacted_gets_the_newest_value_of_each_key(
    client: Client, drivers: Drivers, writing: Writing
) -> None:
    """A reader that starts right after the last write gets the newest value of each key."""
    one = writing(client)
    assert_newest(read_all(drivers.of(client, 1)[0], one.topic), one.newest)


def test_reader_of_a_compacted_topic_gets_the_newest_value_of_each_key(
    client: Client, drivers: Drivers, writing: Writing
) -> None:
    """The newest values are read from the beginning to the end, across all removed records.

    Eventually fewer than half of the records remain.
    """
    one, driver = writing(client), drivers.of(client, 1)[0]
    deadline = time.monotonic() + SECONDS
    while True:
        found = read_all(driver, one.topic)
        assert_newest(found, one.newest)
        if len(found) < ROUNDS * KEYS // 2:
            return
        assert time.monotonic() < deadline, f"{len(found)} records are still there"
        time.sleep(1.0)


def assert_newest(found: list[tuple[int, Record]], newest: dict[bytes, bytes | None]) -> None:
    """Check that offsets rise, and that the last value of each key is the newest."""
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    seen = {record.key: record.value for _, record in found}
    for key, value in newest.items():
        assert seen.get(key) == value


def read_all(driver: Driver, topic: str) -> list[tuple[int, Record]]:
    """Return everything from the beginning to the last record, which is the newest of its key."""
    driver.open()
    driver.ask("assign", partitions=[(topic, 0)])
    found: list[tuple[int, Record]] = []
    deadline = time.monotonic() + SECONDS
    while not found or found[-1][0] < ROUNDS * KEYS - 1:
        assert time.monotonic() < deadline, f"nothing behind {found[-1:]}"
        found += driver.poll().records
    driver.ask("close")
    return found
