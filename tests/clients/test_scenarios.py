"""Scenarios × clients: unmodified clients behave as they do with Kafka."""

from __future__ import annotations

import pytest

from tests.clients.clients import CLIENTS, Client, is_here
from tests.clients.conftest import Drivers
from tests.clients.driver import Record
from tests.clients.scenarios import COMPRESSIONS, SCENARIOS, Scenario, Stage, read, varied
from tests.clients.topics import Topics


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario_with_client_goes_as_with_kafka(
    scenario: Scenario, client: Client, drivers: Drivers, topics: Topics
) -> None:
    """The client's behaviour is the same as with Kafka."""
    stage = Stage(drivers.of(client, scenario.drivers), topics, client.sends_null_headers)
    has_failed = True
    try:
        scenario.play(stage)
        has_failed = False
    finally:
        drivers.settle(client, failed=has_failed)


@pytest.fixture(scope="module")
def everybodys(drivers: Drivers, topics: Topics) -> list[Record]:
    """Return the records, in offset order, of a partition that every available client has written.

    Each has produced once with each compression.
    """
    topic = topics.create("everybody")
    sent: list[Record] = []
    for number, writer in enumerate(client for client in CLIENTS if is_here(client)):
        driver = drivers.of(writer, 1)[0]
        for compression in COMPRESSIONS:
            seed = number * len(COMPRESSIONS) + COMPRESSIONS.index(compression)
            records = varied(topic, seed=seed, has_null_header=writer.sends_null_headers)
            offsets = driver.produce(records, compression=compression, batch_bytes=30_000)
            assert offsets == [(0, len(sent) + n) for n in range(len(records))]
            sent += records
    return sent


def test_records_of_all_clients_read_by_each_are_identical(
    client: Client, drivers: Drivers, everybodys: list[Record]
) -> None:
    """Every client reads the same, whichever client and compression produced a record."""
    reader = drivers.of(client, 1)[0]
    reader.open()
    reader.ask("assign", partitions=[(everybodys[0].topic, 0)])
    assert read(reader, len(everybodys)) == list(enumerate(everybodys))
    reader.ask("close")
