"""Unmodified consumers with a rack read from the replica in it (KIP-392)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from vdl.testing import Cluster

TOPIC = "racked"
RECORDS = 500
SECONDS = 60.0
STATISTICS_MS = 100


@pytest.fixture
def racked_servers() -> Iterator[Cluster]:
    """Yield three servers, each in a rack of its own: `rack1`, `rack2`, `rack3`."""
    with Cluster(3) as servers:
        yield servers


class RackedConsumer:
    """librdkafka's consumer in a rack, and the server from which it reports to fetch."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        self.fetches_from = -1
        self.values: list[bytes] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"of-{rack}",
                "client.rack": rack,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "statistics.interval.ms": STATISTICS_MS,
                "stats_cb": self._told,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def _told(self, text: str) -> None:
        topics: dict[str, Any] = json.loads(text)["topics"]
        if TOPIC in topics and "0" in topics[TOPIC]["partitions"]:
            self.fetches_from = topics[TOPIC]["partitions"]["0"]["broker"]

    def read(self, count: int, *, from_server: int) -> None:
        """Read until there are `count` values, and fetches go to that server."""
        deadline = time.monotonic() + SECONDS
        while len(self.values) < count or self.fetches_from != from_server:
            assert time.monotonic() < deadline, (len(self.values), self.fetches_from)
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                # Its offset must never be out of range: it would be reset, or fail.
                assert error.code() != KafkaError._AUTO_OFFSET_RESET, error
                continue
            value = message.value()
            assert value is not None
            self.values.append(value)

    def close(self) -> None:
        self._consumer.close()


def produce(bootstrap: str, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number in range(first, end):
        producer.produce(TOPIC, str(number).encode(), partition=0)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0


def test_consumer_reads_in_its_rack_and_goes_on_when_that_server_dies(
    racked_servers: Cluster,
) -> None:
    """All records, in order, once each, from the follower in its rack while it is in sync."""
    bootstrap = racked_servers.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    placed = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2, 3]])
    admin.create_topics([placed])[TOPIC].result(SECONDS)
    produce(bootstrap, 0, RECORDS)
    consumers = {server: RackedConsumer(bootstrap, f"rack{server}") for server in (1, 2, 3)}
    elsewhere = RackedConsumer(bootstrap, "rack9")
    try:
        for server, consumer in consumers.items():
            consumer.read(RECORDS, from_server=server)
        elsewhere.read(RECORDS, from_server=1)
        # At the tail the consumer waits at its follower, which wakes it.
        produce(bootstrap, RECORDS, 2 * RECORDS)
        for server, consumer in consumers.items():
            consumer.read(2 * RECORDS, from_server=server)
        racked_servers.kill(3)
        produce(bootstrap, 2 * RECORDS, 3 * RECORDS)
        consumers[3].read(3 * RECORDS, from_server=1)
        racked_servers.start()
        for consumer in (*consumers.values(), elsewhere):
            while len(consumer.values) < 3 * RECORDS:
                consumer.read(len(consumer.values) + 1, from_server=consumer.fetches_from)
            assert consumer.values == [str(n).encode() for n in range(3 * RECORDS)]
    finally:
        for consumer in (*consumers.values(), elsewhere):
            consumer.close()
