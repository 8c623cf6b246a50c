"""The phases of `vdl bench`: write, read back, end to end.

Producer and consumer are in this process, so the end-to-end time needs no synchronised clocks. A
value begins with its number and the monotonic time of its send; the rest is letters drawn once, as
compressible as those of Kafka's own tool (`kafka-producer-perf-test`).

Memory is bounded by the queues of the clients and one histogram.

Does not depend on how results are shown.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vdl.commands.cluster.cluster_options import Cluster, Outage
from vdl.commands.measurement.latency_histogram import LatencyHistogram
from vdl.commands.output import fail, progress
from vdl.commands.records.partition_ranges import PartitionRange, ends
from vdl.commands.records.record_json import Received
from vdl.commands.records.record_reader import PROPERTIES, RecordReader

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

HEAD = struct.Struct(">QQ")
"""Number of the record; nanoseconds of the monotonic clock at its send."""
WARM_UP = (1 << 64) - 1
"""Number of a record that is not measured."""
BODIES = 64
"""Different values."""
WAIT_SECONDS = 0.1
SERVED_EVERY = 64
STALL_SECONDS = 60.0
ARRIVAL_SECONDS_MAX = 30.0
"""Longest wait for records that were acknowledged and have not arrived at the consumer."""
STEP = 1_000
"""Records between two updates of the progress bar."""


@dataclass(frozen=True, slots=True)
class Load:
    """Records to write: so many, or for so long; `rate` in a second, 0 without limit."""

    records: int | None
    seconds: float | None
    size: int
    rate: float
    properties: dict[str, Any]


@dataclass(slots=True)
class Measured:
    """The result of a phase. Its latencies are None where none are measured."""

    name: str
    records: int
    size: int
    seconds: float
    latency: LatencyHistogram | None = None
    failed: int = 0
    problem: str = ""

    @property
    def rate(self) -> float:
        """Records in a second."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_s(self) -> float:
        """Megabytes (10^6) of values in a second."""
        return self.rate * self.size / 1e6

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        found: dict[str, Any] = {
            "records": self.records,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "records_per_second": round(self.rate, 1),
            "mb_per_second": round(self.mb_s, 3),
        }
        if self.latency is not None:
            found["latency"] = self.latency.document()
        return found


class _Writer:
    """Writes records and takes the time to each acknowledgement."""

    def __init__(self, producer: Producer, topic: str, load: Load, outage: Outage) -> None:
        self._outage = outage
        self.latency = LatencyHistogram()
        self.acknowledged = 0
        self.failed = 0
        self.problem = ""
        self._producer = producer
        self._topic = topic
        self._load = load
        drawn = random.Random(1)
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        size = load.size - HEAD.size
        self._bodies = ["".join(drawn.choices(letters, k=size)).encode() for _ in range(BODIES)]

    def warm_up(self, partitions: int) -> None:
        """Write one record to each partition, which is not measured: the first one waits for
        metadata and a connection."""
        for partition in range(partitions):
            self._producer.produce(
                self._topic, HEAD.pack(WARM_UP, 0), partition=partition, on_delivery=self._warm
            )
        while len(self._producer):
            self._producer.flush(WAIT_SECONDS * 10)
        if self.problem:
            fail(f"the first record was not written: {self.problem}")

    def _warm(self, error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            self.problem = error.str()

    def run(self, advance: Callable[[int], None], stopped: Callable[[], bool]) -> float:
        """Write all records; return the seconds until the last one was answered for."""
        load = self._load
        began = time.monotonic()
        number = 0
        while load.records is None or number < load.records:
            now = time.monotonic()
            if (load.seconds is not None and now - began >= load.seconds) or stopped():
                break
            if load.rate and (left := began + number / load.rate - now) > 0:
                self._producer.poll(min(left, WAIT_SECONDS))
                continue
            self._send(number)
            number += 1
            if number % SERVED_EVERY == 0:
                self._producer.poll(0)
            if number % STEP == 0:
                advance(STEP)
        while len(self._producer):
            self._producer.flush(WAIT_SECONDS * 10)
        return time.monotonic() - began

    def _send(self, number: int) -> None:
        while True:
            sent_ns = time.monotonic_ns()
            value = HEAD.pack(number, sent_ns) + self._bodies[number % BODIES]
            try:
                self._producer.produce(self._topic, value, on_delivery=self._answer_of(sent_ns))
            except BufferError:
                self._producer.poll(WAIT_SECONDS)
            else:
                return

    def _answer_of(self, sent_ns: int) -> Callable[[KafkaError | None, Message], None]:
        def answered(error: KafkaError | None, message: Message) -> None:
            del message
            if error is not None:
                self.failed += 1
                self.problem = self.problem or error.str()
                return
            self._outage.end()
            self.acknowledged += 1
            self.latency.add((time.monotonic_ns() - sent_ns) // 1_000)

        return answered


def write(cluster: Cluster, topic: str, partitions: int, load: Load) -> Measured:
    """Write records; their latency is the time from the send to the acknowledgement."""
    with _producer(cluster, load) as producer:
        writer = _Writer(producer, topic, load, cluster.outage)
        writer.warm_up(partitions)
        with progress("write", load.records, unit="records") as steps:
            seconds = writer.run(steps.advance, lambda: False)
    return Measured(
        "write", writer.acknowledged, load.size, seconds, writer.latency, writer.failed,
        writer.problem,
    )  # fmt: skip


@contextmanager
def _producer(cluster: Cluster, load: Load) -> Iterator[Producer]:
    """Yield a producer that is closed at the end, also after ^C: one that is left would ask for the
    topic once more when it has been deleted, and clusters create a topic that is asked for."""
    producer = cluster.producer(**{**load.properties, **cluster.extra})
    try:
        yield producer
    finally:
        producer.purge()
        producer.close()


def read_back(cluster: Cluster, topic: str, partitions: int) -> Measured:
    """Read all records once, in one consumer, but the first of each partition (`warm_up`)."""
    places = [(topic, partition) for partition in range(partitions)]
    end_of = ends(cluster, places, committed=False)
    total = sum(end - 1 for end in end_of.values())
    consumer = cluster.consumer(**_consuming())
    found = [0, 0]

    with progress("read", total, unit="records") as steps:

        def received(record: Received) -> bool:
            found[0] += 1
            found[1] += len(record.value or b"")
            if found[0] % STEP == 0:
                steps.advance(STEP)
            return True

        reader = RecordReader(
            cluster, consumer, received=received, flush=lambda: None, is_stopped=lambda: False,
            stall_seconds=STALL_SECONDS,
        )  # fmt: skip
        began = time.monotonic()
        try:
            reader.read_ranges(PartitionRange(*place, 1, end_of[place], 0, 0) for place in places)
            seconds = time.monotonic() - began
        finally:
            consumer.close()
    if found[0] != total:
        fail(f"{total - found[0]:,} of {total:,} records were not read back")
    return Measured("read", found[0], found[1] // max(found[0], 1), seconds)


def end_to_end(cluster: Cluster, topic: str, partitions: int, load: Load) -> Measured:
    """Write at a rate while a consumer follows; the latency is the time from the send to the
    arrival."""
    from confluent_kafka import TopicPartition

    places = [(topic, partition) for partition in range(partitions)]
    end_of = ends(cluster, places, committed=False)
    consumer = cluster.consumer(**_consuming())
    consumer.assign([TopicPartition(*place, offset) for place, offset in end_of.items()])
    # No lingering: a record waits for the cluster alone.
    load = replace(load, properties={**load.properties, "linger.ms": 0})
    arrivals = _Arrivals(consumer, partitions)
    thread = threading.Thread(target=arrivals.run, daemon=True)
    thread.start()
    try:
        arrivals.wait_until_ready()
        with _producer(cluster, load) as producer:
            writer = _Writer(producer, topic, load, cluster.outage)
            writer.warm_up(partitions)
            with progress("end to end", unit="records") as steps:
                seconds = writer.run(steps.advance, lambda: not thread.is_alive())
            arrivals.wait_for(writer.acknowledged)
    finally:
        arrivals.stop()
        thread.join()
        consumer.close()
    missing = writer.acknowledged - arrivals.latency.count
    problem = writer.problem or arrivals.problem or ("not arrived" if missing > 0 else "")
    return Measured(
        "end to end", arrivals.latency.count, load.size, seconds, arrivals.latency,
        writer.failed + max(missing, 0), problem,
    )  # fmt: skip


def _consuming() -> dict[str, Any]:
    return {**PROPERTIES, "group.id": "vdl-bench", "fetch.wait.max.ms": 100}


class _Arrivals:
    """Takes the time of each record's arrival, in a thread of its own."""

    def __init__(self, consumer: Consumer, partitions: int) -> None:
        self.latency = LatencyHistogram()
        self.problem = ""
        self._consumer = consumer
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._unread = set(range(partitions))
        """Partitions that the consumer has not read to their end yet."""

    def run(self) -> None:
        """Receive until `stop`."""
        while not self._stop.is_set():
            message = self._consumer.poll(WAIT_SECONDS)
            if message is None:
                continue
            error = message.error()
            if error is None:
                number, sent_ns = HEAD.unpack_from(message.value() or bytes(HEAD.size))
                if number != WARM_UP:
                    self.latency.add((time.monotonic_ns() - sent_ns) // 1_000)
            elif error.name() == "_PARTITION_EOF":
                self._unread.discard(message.partition() or 0)
                if not self._unread:
                    self._ready.set()
            elif not error.retriable():
                self.problem = error.str()
                return

    def wait_until_ready(self) -> None:
        """Return when the consumer waits at the end of every partition, or after a while."""
        self._ready.wait(ARRIVAL_SECONDS_MAX)

    def wait_for(self, count: int) -> None:
        """Return when so many have arrived, or after a while."""
        deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
        while self.latency.count < count and time.monotonic() < deadline and not self.problem:
            time.sleep(WAIT_SECONDS / 10)

    def stop(self) -> None:
        self._stop.set()
