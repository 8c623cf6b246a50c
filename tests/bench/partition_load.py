"""Topics of many partitions, created one after the other, and a record for each partition."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from confluent_kafka import KafkaError

from tests.bench.beside_peer import say
from tests.bench.load import latency_producer
from tests.bench.rounds import Figures
from tests.bench.topics import create_topic

FLUSH_SECONDS_MAX = 180.0
RECORD_BYTES = 100


def create_topics(bootstrap: str, partitions: int, step: int) -> Figures:
    """Create `partitions` in topics of `step`, the last one smaller."""
    longest, began = 0.0, time.monotonic()
    for topic, count in _topics(partitions, step):
        before = time.monotonic()
        create_topic(bootstrap, topic, count)
        longest = max(longest, time.monotonic() - before)
        say(f"  {topic}: {time.monotonic() - before:.2f} s")
    return {
        "create_seconds": time.monotonic() - began,
        "create_slowest_topic_seconds": longest,
    }


def record_to_each(bootstrap: str, partitions: int, step: int) -> Figures:
    producer = latency_producer(bootstrap)
    value, acknowledged = os.urandom(RECORD_BYTES), 0

    def delivered(error: KafkaError | None, message: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    began = time.monotonic()
    for topic, count in _topics(partitions, step):
        for partition in range(count):
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            producer.poll(0)
    producer.flush(FLUSH_SECONDS_MAX)
    return {
        "record_to_each_seconds": time.monotonic() - began,
        "record_to_each_failed": float(partitions - acknowledged),
    }


def _topics(partitions: int, step: int) -> Iterator[tuple[str, int]]:
    for first in range(0, partitions, step):
        yield f"many-{first}", min(step, partitions - first)
