"""Load for the servers: records through an unmodified librdkafka, with acks=all.

Records have 1,000 bytes that do not compress, round robin over the partitions. Nothing here is
tuned for one of the systems.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.bench.rounds import Figures
from tests.bench.systems import cpu_seconds
from tests.bench.topics import CALL_SECONDS_MAX

RECORD_BYTES = 1_000
QUEUE_POLL_SECONDS = 0.01
POLL_SECONDS = 0.1


def throughput_producer(bootstrap: str, **settings: Any) -> Producer:
    """Return a producer with librdkafka's default batching that raises on failures."""
    return Producer(
        {
            **_client(bootstrap),
            "delivery.report.only.error": True,
            "on_delivery": raise_failed,
            **settings,
        }
    )


def latency_producer(bootstrap: str) -> Producer:
    """Return a producer that sends each record at once."""
    return Producer({**_client(bootstrap), "linger.ms": 0})


def _client(bootstrap: str) -> dict[str, Any]:
    # Servers stop before their clients do; failures before that are raised by the delivery report.
    return {"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0}


def send(producer: Producer, topic: str, partitions: int, megabytes: float) -> None:
    """Send at full speed with a full queue; return when all is acknowledged."""
    value = os.urandom(RECORD_BYTES)
    produce = producer.produce
    for number in range(int(megabytes * 1_000_000) // RECORD_BYTES):
        while True:
            try:
                produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(QUEUE_POLL_SECONDS)
    assert producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"


def paced(
    producer: Producer,
    topic: str,
    *,
    rate: int,
    count: int,
    partitions: int = 1,
    value: Callable[[], bytes] | None = None,
) -> list[float]:
    """Return the milliseconds from `produce` to the acknowledgement of `count` records at `rate`.

    `value` makes each record's value; without it all are the same.
    """
    same = os.urandom(RECORD_BYTES)
    value = value or (lambda: same)
    taken: list[float] = []
    failed: list[KafkaError] = []
    due = time.monotonic()

    def timed(sent: float) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:
            del message
            if error is not None:
                failed.append(error)
            taken.append((time.monotonic() - sent) * 1_000)

        return delivered

    with _polled(producer):
        for number in range(count):
            time.sleep(max(0.0, due - time.monotonic()))
            report = timed(time.monotonic())
            producer.produce(topic, value(), partition=number % partitions, on_delivery=report)
            due += 1 / rate
    assert producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"
    if failed:
        raise KafkaException(failed[0])
    return taken


@contextmanager
def _polled(producer: Producer) -> Iterator[None]:
    """Deliver reports as they come, in a thread of their own.

    The sending thread cannot do it: `poll` counts in whole milliseconds, so a shorter wait returns
    at once, and the loop would take a core from the servers for nothing.
    """
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            producer.poll(POLL_SECONDS)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def throughput(pids: list[int], megabytes: float, work: Callable[[], None]) -> Figures:
    """Return the throughput of `work`, which moves `megabytes`, and the servers' CPU time."""
    cpu_before, began = cpu_seconds(pids), time.monotonic()
    work()
    elapsed = time.monotonic() - began
    used = cpu_seconds(pids) - cpu_before
    return {
        "mb_per_second": megabytes / elapsed,
        "server_cpu_seconds_per_gb": used / (megabytes / 1_000),
    }


def raise_failed(error: KafkaError | None, message: Any) -> None:
    """Delivery report that raises KafkaException for any failure."""
    del message
    if error is not None:
        raise KafkaException(error)
