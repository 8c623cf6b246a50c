"""Time from `produce` to a record's arrival at a consumer, both of librdkafka.

The time of sending travels in the record; both ends are in this process and share its clock. The
consumer polls in a thread of its own, with the library's defaults.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

from confluent_kafka import Consumer, TopicPartition

from tests.bench.load import POLL_SECONDS, RECORD_BYTES, latency_producer, paced
from tests.bench.topics import CALL_SECONDS_MAX

GROUP = "bench"
_TIME = Struct(">d")


def end_to_end(bootstrap: str, topic: str, *, rate: int, count: int) -> list[float]:
    """Return the milliseconds of `count` records at `rate`, after one second of warm-up."""
    return acknowledged_and_read(bootstrap, topic, rate=rate, count=count)[1]


def acknowledged_and_read(
    bootstrap: str, topic: str, *, rate: int, count: int, partitions: int = 1
) -> tuple[list[float], list[float]]:
    """Return the milliseconds to the acknowledgement, and to the consumer, as `end_to_end` does.

    The records take turns among the topic's partitions.
    """
    taken: list[float] = []
    padding = os.urandom(RECORD_BYTES - _TIME.size)
    with _reading(bootstrap, topic, taken, rate + count, partitions) as all_came:
        acknowledged = paced(
            latency_producer(bootstrap),
            topic,
            rate=rate,
            count=rate + count,
            partitions=partitions,
            value=lambda: _TIME.pack(time.monotonic()) + padding,
        )
        assert all_came.wait(CALL_SECONDS_MAX), f"{len(taken)} of {rate + count} records came"
    return acknowledged[rate:], taken[rate:]


@contextmanager
def _reading(
    bootstrap: str, topic: str, taken: list[float], count: int, partitions: int
) -> Iterator[threading.Event]:
    """Run a consumer; the event is set when it has `count` records."""
    all_came, is_over = threading.Event(), threading.Event()
    consumer = reader(bootstrap)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])

    def read() -> None:
        while not is_over.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            assert message.error() is None, message.error()
            taken.append((time.monotonic() - _TIME.unpack_from(message.value() or b"")[0]) * 1_000)
            if len(taken) == count:
                all_came.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield all_came
    finally:
        is_over.set()
        thread.join()
        consumer.close()


def reader(bootstrap: str) -> Consumer:
    """Return a consumer for explicitly assigned partitions, without committed offsets."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
