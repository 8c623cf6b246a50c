"""Clients that speak as those of Kafka 0.8 to 0.10 did, beside those of today.

They know no headers, and before 0.10 no timestamps. All else of a record is the same for everybody.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.clients.clients import CLIENTS, OLD_CLIENTS, Client, is_here
from tests.clients.conftest import Drivers
from tests.clients.driver import Record
from tests.clients.scenarios import COMPRESSIONS, assert_quiet, numbered, numbers_of, read, varied
from tests.clients.topics import Topics

OLD_COMPRESSIONS = COMPRESSIONS[:-1]
"""zstd came with Kafka 2.1."""
TODAY = CLIENTS[:2]
"""Some, in Python, that every machine has."""
NO_TIMESTAMP = -1
LIBRDKAFKA_NO_TIMESTAMP = 0
"""What confluent-kafka says instead."""


def old_client_parameters(*, with_groups: bool = False) -> list[object]:
    """`with_groups`: those that can be members of consumer groups."""
    return [
        pytest.param(
            client,
            id=client.name,
            marks=[getattr(pytest.mark, client.needs)] if client.needs else [],
        )
        for client in OLD_CLIENTS
        if not with_groups or client.name.endswith(("-0.9", "python-0.10"))
    ]


def has_timestamps(client: Client) -> bool:
    return client.name.endswith("-0.10") or client in TODAY


def knows(client: Client, compression: str) -> bool:
    """sarama has no LZ4 for the time before 0.10, whose frames had another checksum."""
    return compression != "lz4" or client.name != "sarama-0.8.2"


def as_seen_by(client: Client, record: Record) -> Record:
    """A record as a client tells of it."""
    if client in TODAY:
        return record
    if has_timestamps(client):
        return replace(record, headers=())
    unknown = LIBRDKAFKA_NO_TIMESTAMP if client.name.startswith("librdkafka") else NO_TIMESTAMP
    return replace(record, headers=(), timestamp=unknown)


def as_stored(client: Client, record: Record) -> Record:
    """What is left of a record that a client produced."""
    if client in TODAY:
        return record
    timestamp = record.timestamp if has_timestamps(client) else NO_TIMESTAMP
    return replace(record, headers=(), timestamp=timestamp)


def without_timestamps(records: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """Where nobody gave one, clients say -1 or 0."""
    return [
        (offset, replace(record, timestamp=max(0, record.timestamp))) for offset, record in records
    ]


@pytest.fixture(scope="module", params=OLD_COMPRESSIONS)
def of_all_times(request: pytest.FixtureRequest, drivers: Drivers, topics: Topics) -> list[Record]:
    """One partition that clients of all generations have produced to, with one compression: its
    records, as stored."""
    compression: str = request.param
    topic = topics.create(f"of-all-times-{compression}")
    stored: list[Record] = []
    for seed, writer in enumerate([*OLD_CLIENTS, *TODAY]):
        if not is_here(writer) or not knows(writer, compression):
            continue
        records = varied(topic, seed=seed + 1, has_null_header=writer.sends_null_headers)
        if writer in OLD_CLIENTS:
            records = [replace(record, headers=()) for record in records]
        driver = drivers.of(writer, 1)[0]
        offsets = driver.produce(records, compression=compression, batch_bytes=30_000)
        assert offsets == [(0, len(stored) + n) for n in range(len(records))], writer.name
        stored += [as_stored(writer, record) for record in records]
    return stored


@pytest.mark.parametrize(
    "reader", [*old_client_parameters(), *(pytest.param(one, id=one.name) for one in TODAY)]
)
def test_records_of_all_generations_are_read_by_each(
    reader: Client, drivers: Drivers, of_all_times: list[Record], request: pytest.FixtureRequest
) -> None:
    """Keys, values, offsets, and times where both ends know them."""
    if not knows(reader, request.node.callspec.params["of_all_times"]):
        pytest.skip("a compression that this client does not know")
    driver = drivers.of(reader, 1)[0]
    driver.open()
    driver.ask("assign", partitions=[(of_all_times[0].topic, 0)])
    found = read(driver, len(of_all_times))
    expected = [(n, as_seen_by(reader, record)) for n, record in enumerate(of_all_times)]
    assert without_timestamps(found) == without_timestamps(expected)
    driver.ask("close")


@pytest.mark.parametrize("old", old_client_parameters())
def test_positions_of_an_old_client_are_kept(old: Client, drivers: Drivers, topics: Topics) -> None:
    """Committed by one process, found by the next, and by a client of today."""
    topic = topics.create("positions")
    first, second = drivers.of(old, 2)
    first.produce(numbered(topic, range(20)))
    group = f"group-{topic}"
    first.open(group=group)
    first.ask("assign", partitions=[(topic, 0)])
    assert numbers_of(read(first, 20)) == list(range(20))
    first.ask("commit")
    first.ask("close")
    first.produce(numbered(topic, range(20, 25)))
    second.open(group=group)
    assert second.committed([(topic, 0)]) == [20]
    second.ask("assign", partitions=[(topic, 0)])
    found = [number for number in numbers_of(read(second, 5)) if number >= 20]
    assert found == list(range(20, 25))
    second.ask("close")
    today = drivers.of(CLIENTS[0], 1)[0]
    today.open(group=group)
    assert today.committed([(topic, 0)]) == [20]
    today.ask("close")


@pytest.mark.parametrize("old", old_client_parameters(with_groups=True))
def test_old_client_and_one_of_today_share_a_group(
    old: Client, drivers: Drivers, topics: Topics
) -> None:
    """The old one leaves, the other goes on where it was."""
    topic = topics.create("shared", partitions=2)
    (member,) = drivers.of(old, 1)
    today = drivers.of(CLIENTS[0], 1)[0]
    for partition in (0, 1):
        member.produce(numbered(topic, range(10), partition=partition))
    member.open(group=f"group-{topic}")
    member.ask("subscribe", topics=[topic])
    assert sorted(numbers_of(read(member, 20))) == sorted([*range(10)] * 2)
    member.ask("commit")
    member.ask("close")
    today.open(group=f"group-{topic}")
    today.ask("subscribe", topics=[topic])
    today.produce(numbered(topic, range(50, 53)))
    assert numbers_of(read(today, 3)) == [50, 51, 52]
    assert_quiet(today)
    today.ask("close")
