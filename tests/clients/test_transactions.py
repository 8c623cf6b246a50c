"""Transactions with unmodified clients: committed records are read, aborted ones are not."""

from __future__ import annotations

import time

import pytest

from tests.clients.clients import Client
from tests.clients.conftest import Drivers
from tests.clients.driver import Driver, DriverFailed, Record
from tests.clients.topics import Topics

READ_SECONDS_MAX = 20.0


def numbered(topic: str, numbers: range, partition: int = 0) -> list[Record]:
    return [Record(topic, partition, None, b"%d" % n, 0) for n in numbers]


def read(driver: Driver, topic: str, partitions: int, count: int) -> list[int]:
    """Return at least `count` numbers from a read-committed consumer, by partition and offset."""
    driver.open(isolation="read_committed")
    driver.ask("assign", partitions=[(topic, p) for p in range(partitions)])
    found: list[tuple[int, int, int]] = []
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(found) < count and time.monotonic() < deadline:
        found += [(r.partition, offset, int(r.value or b"")) for offset, r in driver.poll().records]
    found += [(r.partition, offset, int(r.value or b"")) for offset, r in driver.poll(200).records]
    return [number for _, _, number in sorted(found)]


def test_committed_transactions_are_read_and_aborted_ones_are_not(
    client: Client, drivers: Drivers, topics: Topics
) -> None:
    """Committed records are read in offset order, also behind an aborted transaction."""
    driver = drivers.of(client, 1)[0]
    topic = topics.create("transactions", partitions=2)
    driver.ask("init_transactions", transactional_id=topic)
    driver.transact(numbered(topic, range(5)) + numbered(topic, range(100, 105), 1), "commit")
    driver.transact(numbered(topic, range(5, 10)), "abort")
    driver.transact(numbered(topic, range(10, 15)) + numbered(topic, range(105, 110), 1), "commit")
    assert read(driver, topic, 2, 20) == [*range(5), *range(10, 15), *range(100, 110)]


def test_open_transaction_is_not_read_and_its_producer_is_fenced(
    client: Client, drivers: Drivers, topics: Topics
) -> None:
    """The next producer with its transactional id aborts the open transaction (KIP-98)."""
    old, new = drivers.of(client, 2)
    topic = topics.create("fenced")
    old.ask("init_transactions", transactional_id=topic)
    old.transact(numbered(topic, range(3)))
    new.ask("init_transactions", transactional_id=topic)
    new.transact(numbered(topic, range(3, 6)), "commit")
    with pytest.raises(DriverFailed):
        old.ask("end", commits=True)
    assert read(new, topic, 1, 3) == [3, 4, 5]


def test_positions_are_committed_with_the_transaction(
    client: Client, drivers: Drivers, topics: Topics
) -> None:
    """KIP-447: they are stored if it commits, and dropped if it aborts."""
    if client.name == "franz-go":
        pytest.skip("it commits positions in sessions of its own")
    producer, driver = drivers.of(client, 2)
    source = topics.create("source")
    target = topics.create("target")
    producer.produce(numbered(source, range(4)))
    driver.open(group=f"group-{source}", isolation="read_committed")
    driver.ask("subscribe", topics=[source])
    read_count = 0
    deadline = time.monotonic() + READ_SECONDS_MAX
    while read_count < 4 and time.monotonic() < deadline:
        read_count += len(driver.poll().records)
    assert read_count == 4
    driver.ask("init_transactions", transactional_id=source)
    driver.transact(numbered(target, range(1)), "abort", positions=True)
    assert driver.committed([(source, 0)]) == [None]
    driver.transact(numbered(target, range(1, 2)), "commit", positions=True)
    assert driver.committed([(source, 0)]) == [4]
    assert read(producer, target, 1, 1) == [1]
