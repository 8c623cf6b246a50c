"""Throughput and latency of a replica set, beside a peer if there is one (the default measurement).

Client and servers share the machine; nothing here is tuned for either side. With PEER=NAME in the
environment, and the program that starts that system in PEER_COMMAND (tests/bench/systems.py says
what it must answer), each round measures both, one after the other.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.load import (
    CALL_SECONDS_MAX,
    RECORD_BYTES,
    create_topic,
    latency_producer,
    paced,
    raise_failed,
    send,
    throughput,
    throughput_producer,
)
from tests.bench.rounds import Comparison, Figures, Run, percentiles
from tests.bench.systems import Peer, System, Vdl, rss_mb

WARM_UP_MB = 20
CONSUME_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    megabytes: int
    small_batch_megabytes: int
    latency_seconds: int


FULL = Size(megabytes=600, small_batch_megabytes=200, latency_seconds=15)
QUICK = Size(megabytes=100, small_batch_megabytes=40, latency_seconds=4)

SMALL_BATCHES = {"batch.size": 16_384, "linger.ms": 0}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="less data: about half a minute")


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    size = QUICK if options.quick else FULL
    # A system is new in each round: both are measured cold.
    runs: dict[str, Run] = {Vdl.name: lambda: Bench(Vdl(), size).run()}
    peer = os.environ.get("PEER", "")
    if peer:
        command = os.environ.get("PEER_COMMAND")
        if not command:
            raise SystemExit("PEER needs PEER_COMMAND, the program that starts it")
        runs[peer] = lambda: Bench(Peer(peer, command), size).run()
    yield Comparison(runs, baseline=peer)


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
        create_topic(self.system.bootstrap, "first", 1)
        producer = Producer({"bootstrap.servers": self.system.bootstrap, "acks": "all"})
        producer.produce("first", b"first", partition=0, on_delivery=raise_failed)
        assert producer.flush(CALL_SECONDS_MAX) == 0, "the first record was not acknowledged"
        self.figures["start_seconds"] = time.monotonic() - began
        self.figures["rss_idle_mb"] = rss_mb(self.system.pids())

    def _measure(self, name: str, megabytes: float, work: Callable[[], None]) -> None:
        measured = throughput(self.system.pids(), megabytes, work)
        self.figures |= {f"{name}_{figure}": value for figure, value in measured.items()}

    def _produce(
        self,
        name: str,
        *,
        partitions: int,
        megabytes: int,
        settings: dict[str, Any] | None = None,
    ) -> None:
        create_topic(self.system.bootstrap, name, partitions)
        producer = throughput_producer(self.system.bootstrap, **(settings or {}))
        send(producer, name, partitions, WARM_UP_MB)
        self._measure(
            f"produce_{name}", megabytes, lambda: send(producer, name, partitions, megabytes)
        )

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

            def read() -> None:
                consumer.assign([where])
                left = end
                while left > 0:
                    messages = consumer.consume(CONSUME_BATCH, timeout=CALL_SECONDS_MAX)
                    assert messages, f"{left} records did not come"
                    assert messages[0].error() is None, messages[0].error()
                    left -= len(messages)

            self._measure(f"consume_{topic}", end * RECORD_BYTES / 1e6, read)
        finally:
            consumer.close()

    def _latency(self, name: str, *, rate: int) -> None:
        """From `produce` to its acknowledgement, one record at a time, no lingering."""
        topic = f"latency_{name}"
        create_topic(self.system.bootstrap, topic, 1)
        producer = latency_producer(self.system.bootstrap)
        paced(producer, topic, rate=rate, count=rate)
        taken = paced(producer, topic, rate=rate, count=rate * self.size.latency_seconds)
        self.figures |= percentiles(f"ack_{name}", taken)
