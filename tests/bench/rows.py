"""Rows of the table: loads for one system, each on a topic of its own.

The client is an unmodified librdkafka at its defaults, with acks=all, except where a row's name
says otherwise; `tailing_50` and `sync_producer` send requests of their own. Client and servers
share the machine, so the client's work is part of every figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tests.bench.end_to_end import end_to_end
from tests.bench.flood import Flood
from tests.bench.from_beginning import from_beginning
from tests.bench.load import latency_producer, paced
from tests.bench.payloads import Messages, incompressible, log_lines
from tests.bench.requests import Requests
from tests.bench.rounds import Figures, percentiles
from tests.bench.systems import System
from tests.bench.tailing import Tailing
from tests.bench.topics import create_led_topic, delete_topic

MANY_PARTITIONS = 1_000
"""Partitions of a topic that is deleted at once: even at rest it is work for the servers, in every
later row. Other topics stay as long as the servers, since deleting them would free the memory of
their pages, and the host would take it back (`memory_in_use`).
"""
SYNC_RECORD_BYTES = 1_024
TAILING_BYTES_PER_SECOND = 5_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of work: durations in seconds, and the megabytes of the topic that is read.

    A warm-up, in which a client's queue fills, precedes each measurement of throughput.
    """

    warm_up_seconds: float
    throughput_seconds: float
    latency_seconds: int
    consumed_mb: float


FULL = Size(warm_up_seconds=1, throughput_seconds=3, latency_seconds=6, consumed_mb=400)
QUICK = Size(warm_up_seconds=0.5, throughput_seconds=1.5, latency_seconds=2, consumed_mb=150)

Row = Callable[[System, str, Size], Figures]
"""Measures a system with a new topic of this name; returns figures without the row's name."""


def _produce(
    system: System,
    topic: str,
    size: Size,
    *,
    payload: Callable[[], list[Messages]],
    partitions: int = 1,
    settings: Mapping[str, object] | None = None,
) -> Figures:
    create_led_topic(system.bootstrap, topic, partitions)
    flood = Flood(system.bootstrap, topic, payload(), **(settings or {}))
    flood.meet()
    flood.run(size.warm_up_seconds)
    figures = flood.measured(system.pids(), size.throughput_seconds)
    flood.close()
    if partitions >= MANY_PARTITIONS:
        delete_topic(system.bootstrap, topic)
    return figures


def _acknowledgement(system: System, topic: str, size: Size, *, rate: int) -> Figures:
    """Measure from `produce` to its acknowledgement, one record at a time, without lingering."""
    create_led_topic(system.bootstrap, topic)
    producer = latency_producer(system.bootstrap)
    paced(producer, topic, rate=rate, count=rate)
    taken = paced(producer, topic, rate=rate, count=rate * size.latency_seconds)
    return percentiles("", taken)


def _end_to_end(system: System, topic: str, size: Size, *, rate: int) -> Figures:
    create_led_topic(system.bootstrap, topic)
    taken = end_to_end(system.bootstrap, topic, rate=rate, count=rate * size.latency_seconds)
    return percentiles("", taken)


def _consume(system: System, topic: str, size: Size) -> Figures:
    return from_beginning(system, topic, size.consumed_mb)


def _tailing(system: System, topic: str, size: Size, *, consumers: int) -> Figures:
    create_led_topic(system.bootstrap, topic)
    with Tailing(
        system.bootstrap, topic, consumers=consumers, bytes_per_second=TAILING_BYTES_PER_SECOND
    ) as tailing:
        taken = tailing.taken()
        tailing.measure(system.pids(), size.throughput_seconds, taken)
        return taken.figures()


def _sync_producer(system: System, topic: str, size: Size) -> Figures:
    """Measure one request of one record in flight, the next when it is answered."""
    create_led_topic(system.bootstrap, topic)
    with Requests(system.bootstrap, topic, record_bytes=SYNC_RECORD_BYTES) as requests:
        requests.in_flight(1, seconds=size.warm_up_seconds)
        taken = requests.in_flight(1, seconds=size.throughput_seconds)
    return {"mean_ms": statistics.fmean(taken)} | percentiles("", taken)


ROWS: dict[str, Row] = {
    "ack_at_200": partial(_acknowledgement, rate=200),
    "ack_at_1000": partial(_acknowledgement, rate=1_000),
    "end_to_end_at_200": partial(_end_to_end, rate=200),
    "sync_producer": _sync_producer,
    "produce_1000_bytes": partial(_produce, payload=partial(incompressible, 1_000)),
    "produce_100_bytes": partial(_produce, payload=partial(incompressible, 100)),
    "produce_30_partitions": partial(
        _produce, payload=partial(incompressible, 1_000, 30), partitions=30
    ),
    "produce_16k_batches": partial(
        _produce,
        payload=partial(incompressible, 1_000),
        settings={"batch.size": 16_384, "linger.ms": 0},
    ),
    "produce_zstd": partial(
        _produce, payload=partial(log_lines, 1_000), settings={"compression.type": "zstd"}
    ),
    "consume": _consume,
    "tailing_50": partial(_tailing, consumers=50),
    "produce_1000_partitions": partial(
        _produce, payload=partial(incompressible, 1_000, 1_000), partitions=1_000
    ),
}
"""Rows by the prefix of their figures' names, in the order in which they run."""
