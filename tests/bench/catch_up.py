"""Consumers behind an active producer: do they catch up, and at what cost to others?

Two rows, each on a topic of its own with one partition, which one server leads:

* `behind`: the partition has `--gigabytes`. A producer appends at a steady rate; some seconds later
  a consumer starts at the first record. `seconds` is the time until it misses less than half a
  second of producing, `is_caught_up` 0 if that did not happen within the limit.
* `just_written`: `--megabytes` were just written, more than a server's cache holds. A consumer
  reads them beside a producer at a steady rate.

The cost to others is shown by two acknowledgement times, each without the consumer (`alone`) and
with it (`beside`): of one record in fifty of that producer (`ack`), and of a second producer that
sends 200 single records a second to the same partition (`small`). Producer and consumer are
unmodified librdkafka, each in a process of its own.

With PEER=NAME in the environment each round measures both systems (tests/bench/systems.py).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from tests.bench.beside_peer import comparison_of_rows, set_peer_defaults
from tests.bench.client_process import ClientProcess
from tests.bench.end_to_end import reader
from tests.bench.load import (
    RECORD_BYTES,
    latency_producer,
    paced,
    raise_failed,
    send,
    throughput_producer,
)
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.systems import System, cpu_seconds
from tests.bench.topics import CALL_SECONDS_MAX, create_led_topic

FETCH_RECORDS = 10_000
POLL_SECONDS = 0.05
STEP_SECONDS = 0.005
"""Interval at which a steady producer sends the records due."""
SAMPLE = 50
SMALL_RATE = 200
WARM_UP_SECONDS = 2
NEAR_SECONDS = 0.5
"""Lag, in seconds of producing, below which a consumer has caught up."""
REST_SECONDS = 1.5


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gigabytes", type=float, default=2.0, help="that `behind` is behind")
    parser.add_argument("--rate", type=float, default=60.0, help="MB/s produced in `behind`")
    parser.add_argument("--megabytes", type=float, default=400.0, help="of `just_written`")
    parser.add_argument(
        "--beside-rate", type=float, default=20.0, help="MB/s produced in `just_written`"
    )
    parser.add_argument("--alone-seconds", type=int, default=5, help="before a consumer begins")
    parser.add_argument("--seconds-max", type=float, default=120.0, help="for catching up")
    parser.add_argument("--only", nargs="+", choices=("behind", "just_written"))
    set_peer_defaults(parser)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    yield comparison_of_rows({"just_written": _just_written, "behind": _behind}, options)


def _behind(system: System, options: argparse.Namespace) -> Figures:
    return _beside_producer(
        system,
        "behind",
        megabytes=options.gigabytes * 1_000,
        rate=options.rate,
        alone_seconds=options.alone_seconds,
        seconds_max=options.seconds_max,
        to_the_end=True,
    )


def _just_written(system: System, options: argparse.Namespace) -> Figures:
    return _beside_producer(
        system,
        "just_written",
        megabytes=options.megabytes,
        rate=options.beside_rate,
        alone_seconds=0,
        seconds_max=options.seconds_max,
        to_the_end=False,
    )


def _beside_producer(
    system: System,
    topic: str,
    *,
    megabytes: float,
    rate: float,
    alone_seconds: int,
    seconds_max: float,
    to_the_end: bool,
) -> Figures:
    """Fill a topic, then read it beside a producer of `rate` MB/s."""
    create_led_topic(system.bootstrap, topic)
    send(throughput_producer(system.bootstrap), topic, 1, megabytes)
    records = int(megabytes * 1_000_000) // RECORD_BYTES
    time.sleep(REST_SECONDS)
    figures: Figures = {}
    with Producing(system.bootstrap, topic, rate) as producing:
        producing.wait_going()
        small = latency_producer(system.bootstrap)
        if alone_seconds:
            producing.clear()
            taken = paced(small, topic, rate=SMALL_RATE, count=SMALL_RATE * alone_seconds)
            figures |= percentiles("alone_ack", producing.taken())
            figures |= percentiles("alone_small", taken)
        producing.clear()
        with ClientProcess(_read_until, system.bootstrap, topic) as reading:
            reading.wait_counting()
            began, sent = time.monotonic(), producing.acknowledged
            used = cpu_seconds(system.pids())
            taken = []
            near = rate * 1e6 * NEAR_SECONDS / RECORD_BYTES
            while True:
                taken += paced(small, topic, rate=SMALL_RATE, count=SMALL_RATE // 10)
                goal = records
                if to_the_end:
                    goal += producing.acknowledged - int(near)
                if reading.count >= goal or time.monotonic() - began > seconds_max:
                    break
            elapsed = time.monotonic() - began
            read = reading.count
            used = cpu_seconds(system.pids()) - used
        figures |= percentiles("beside_ack", producing.taken())
        figures |= percentiles("beside_small", taken)
        figures |= {
            "is_caught_up": float(read >= goal),
            "seconds": elapsed,
            "reader_mb_per_second": read * RECORD_BYTES / 1e6 / elapsed,
            "producer_mb_per_second": (producing.acknowledged - sent)
            * RECORD_BYTES
            / 1e6
            / elapsed,
            "server_cores": used / elapsed,
        }
    return figures


class Producing:
    """A producer of `rate` MB/s in a process of its own. Use in a `with`."""

    def __init__(self, bootstrap: str, topic: str, rate: float, partitions: int = 1) -> None:
        self._taken = multiprocessing.get_context("spawn").Queue()
        self._client = ClientProcess(
            _produce_until, bootstrap, topic, rate, partitions, self._taken
        )

    def __enter__(self) -> Producing:
        self._client.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.end(self.clear)

    @property
    def acknowledged(self) -> int:
        """Approximate number of acknowledged records, counted in steps of `SAMPLE`."""
        return self._client.count

    def wait_going(self) -> None:
        """Return when it has produced for a while."""
        self._client.wait_counting()
        time.sleep(WARM_UP_SECONDS)

    def clear(self) -> None:
        while not self._taken.empty():
            self._taken.get()

    def taken(self) -> list[float]:
        """Return the milliseconds to the acknowledgement of each record sampled since `clear`."""
        found: list[float] = []
        while not self._taken.empty():
            found += self._taken.get()
        return found


def _produce_until(
    bootstrap: str,
    topic: str,
    rate: float,
    partitions: int,
    taken: Any,
    acknowledged: Any,
    ends: Any,
) -> None:
    """Run the producer's process. Records go round robin to the partitions."""
    producer = throughput_producer(
        bootstrap, **{"delivery.report.only.error": False, "queue.buffering.max.kbytes": 1 << 20}
    )
    value = os.urandom(RECORD_BYTES)
    samples: list[float] = []

    def delivered(sent: float) -> Callable[[KafkaError | None, Any], None]:
        def report(error: KafkaError | None, message: Any) -> None:
            raise_failed(error, message)
            samples.append((time.monotonic() - sent) * 1_000)
            acknowledged[0] += SAMPLE

        return report

    number, began = 0, time.monotonic()
    told = began
    while not ends.is_set():
        due = int((time.monotonic() - began) * rate * 1e6 / RECORD_BYTES)
        while number < due:
            try:
                partition = number % partitions
                if number % SAMPLE:
                    producer.produce(topic, value, partition=partition)
                else:
                    report = delivered(time.monotonic())
                    producer.produce(topic, value, partition=partition, on_delivery=report)
            except BufferError:
                break  # it does not keep the rate; `producer_mb_per_second` shows it
            number += 1
        producer.poll(0)
        time.sleep(STEP_SECONDS)
        if samples and time.monotonic() - told > POLL_SECONDS:
            told = time.monotonic()
            taken.put(samples[:])
            samples.clear()
    assert producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"


def _read_until(bootstrap: str, topic: str, read: Any, ends: Any) -> None:
    """Run the consumer's process."""
    consumer = reader(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not ends.is_set():
            messages = consumer.consume(FETCH_RECORDS, timeout=POLL_SECONDS)
            for message in messages[:1]:
                assert message.error() is None, message.error()
            read[0] += len(messages)
    finally:
        consumer.close()
