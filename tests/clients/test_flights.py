"""Real input: 336,776 flights, through the program in the README."""

from __future__ import annotations

from collections import Counter

from confluent_kafka import Consumer

from examples.flights import FLIGHTS, consume, flights, produce
from tests.clients.topics import Topics

CARRIERS = 16


def test_flights_keyed_by_carrier_read_back_identical(bootstrap: str, topics: Topics) -> None:
    """Every row of the table, as JSON, in order for each carrier."""
    topic = topics.create("flights", partitions=6)
    rows = list(flights())
    assert len(rows) == FLIGHTS
    sent = produce(bootstrap, topic, rows)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topics.unused_name("flights"),
            "enable.auto.commit": False,
        }
    )
    try:
        read = consume(consumer, topic, dict.fromkeys(range(6), 0))
    finally:
        consumer.close()
    assert len(read) == CARRIERS
    assert Counter(key for key, _ in rows) == {key: len(values) for key, values in read.items()}
    assert read == sent
