"""What is measured, through librdkafka, with acks=all and three replicas.

Client and servers share the machine; nothing here is tuned for either side. Records are of 1,000
bytes that do not compress. Every figure has its unit in its name.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.systems import System, cpu_seconds, rss_mb

RECORD_BYTES = 1_000
CALL_SECONDS_MAX = 60.0
WARM_UP_MB = 20
CONSUME_BATCH = 10_000
QUEUE_POLL_SECONDS = 0.01

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    megabytes: int
    small_batch_megabytes: int
    latency_seconds: int


FULL = Size(megabytes=600, small_batch_megabytes=200, latency_seconds=15)
QUICK = Size(megabytes=100, small_batch_megabytes=40, latency_seconds=4)

SMALL_BATCHES = {"batch.size": 16_384, "linger.ms": 0}


@dataclass(slots=True)
class Bench:
    """One run of everything against one system; `run` gives its figures."""

    system: System
    size: Size
    figures: Figures = field(default_factory=dict)

    def run(self) -> Figures:
        try:
            self._start()
            self._latency("at_200", rate=200)
            self._latency("at_1000", rate=1_000)
            self._produce("one_partition", partitions=1, megabytes=self.size.megabytes)
            self._consume("one_partition")
            self._produce("thirty_partitions", partitions=30, megabytes=self.size.megabytes)
            self._produce(
                "batches_of_16k",
                partitions=1,
                megabytes=self.size.small_batch_megabytes,
                settings=SMALL_BATCHES,
            )
            self.figures["rss_after_mb"] = rss_mb(self.system.pids())
        finally:
            self.system.down()
        return self.figures

    def _start(self) -> None:
        """From the command that starts the servers to the first acknowledged record."""
        began = time.monotonic()
        self.system.up()
        self._create("first", 1)
        producer = Producer({"bootstrap.servers": self.system.bootstrap, "acks": "all"})
        producer.produce("first", b"first", partition=0, on_delivery=_raise_failed)
        assert producer.flush(CALL_SECONDS_MAX) == 0, "the first record was not acknowledged"
        self.figures["start_seconds"] = time.monotonic() - began
        self.figures["rss_idle_mb"] = rss_mb(self.system.pids())

    def _create(self, topic: str, partitions: int) -> None:
        """A topic whose leaders are there. Also asked too early, while servers start."""
        admin = AdminClient({"bootstrap.servers": self.system.bootstrap, "log_level": 0})
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=3)
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while True:
            try:
                admin.create_topics([wanted])[topic].result(timeout=CALL_SECONDS_MAX)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(QUEUE_POLL_SECONDS)
            else:
                return

    @contextmanager
    def _measured(self, name: str, megabytes: float) -> Iterator[None]:
        """Throughput and the servers' CPU time of what runs inside."""
        pids = self.system.pids()
        cpu_before, began = cpu_seconds(pids), time.monotonic()
        yield
        elapsed = time.monotonic() - began
        self.figures[f"{name}_mb_per_second"] = megabytes / elapsed
        used = cpu_seconds(pids) - cpu_before
        self.figures[f"{name}_server_cpu_seconds_per_gb"] = used / (megabytes / 1_000)

    def _produce(
        self,
        name: str,
        *,
        partitions: int,
        megabytes: int,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self._create(name, partitions)
        producer = Producer(
            {
                "bootstrap.servers": self.system.bootstrap,
                "acks": "all",
                "delivery.report.only.error": True,
                "on_delivery": _raise_failed,
                **(settings or {}),
            }
        )
        _send(producer, name, partitions, WARM_UP_MB)
        with self._measured(f"produce_{name}", megabytes):
            _send(producer, name, partitions, megabytes)

    def _consume(self, topic: str) -> None:
        """Read one partition from its beginning."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.system.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
            }
        )
        try:
            where = TopicPartition(topic, 0, 0)
            end: int = consumer.get_watermark_offsets(where, timeout=CALL_SECONDS_MAX)[1]
            with self._measured(f"consume_{topic}", end * RECORD_BYTES / 1e6):
                consumer.assign([where])
                left = end
                while left > 0:
                    messages = consumer.consume(CONSUME_BATCH, timeout=CALL_SECONDS_MAX)
                    assert messages, f"{left} records did not come"
                    assert messages[0].error() is None, messages[0].error()
                    left -= len(messages)
        finally:
            consumer.close()

    def _latency(self, name: str, *, rate: int) -> None:
        """From `produce` to its acknowledgement, one record at a time, no lingering."""
        topic = f"latency_{name}"
        self._create(topic, 1)
        producer = Producer(
            {"bootstrap.servers": self.system.bootstrap, "acks": "all", "linger.ms": 0}
        )
        _paced(producer, topic, rate=rate, count=rate)
        taken = _paced(producer, topic, rate=rate, count=rate * self.size.latency_seconds)
        cuts = statistics.quantiles(taken, n=1_000, method="inclusive")
        for percentile, index in (("p50", 499), ("p99", 989), ("p999", 998)):
            self.figures[f"ack_{name}_{percentile}_ms"] = cuts[index]


def _send(producer: Producer, topic: str, partitions: int, megabytes: int) -> None:
    """Produce records round robin over the partitions; return when all are acknowledged."""
    value = os.urandom(RECORD_BYTES)
    produce = producer.produce
    for number in range(megabytes * 1_000_000 // RECORD_BYTES):
        while True:
            try:
                produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(QUEUE_POLL_SECONDS)
    assert producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"


def _paced(producer: Producer, topic: str, *, rate: int, count: int) -> list[float]:
    """Milliseconds from `produce` to the acknowledgement, of `count` records sent at `rate`."""
    value = os.urandom(RECORD_BYTES)
    taken: list[float] = []
    due = time.monotonic()

    def timed(sent: float) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:
            _raise_failed(error, message)
            taken.append((time.monotonic() - sent) * 1_000)

        return delivered

    for _ in range(count):
        while (now := time.monotonic()) < due:
            producer.poll(due - now)
        producer.produce(topic, value, partition=0, on_delivery=timed(time.monotonic()))
        due += 1 / rate
    assert producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"
    return taken


def _raise_failed(error: KafkaError | None, message: Any) -> None:
    del message
    if error is not None:
        raise KafkaException(error)
