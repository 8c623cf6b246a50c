"""Effect of a consumer far behind on the acknowledgements of others.

Three servers hold one partition with `--gigabytes`, of which the tail cache has at most the last
128 MB. Producers append to that partition at a steady rate (linger 0, acks=all), each round:

* `alone`: without a reader;
* `warm`: a consumer in a process of its own reads from the beginning at full speed; data that left
  the tail cache comes from the page cache: the cost of a reader's CPU use;
* `cold`: the same, after the data files' pages were dropped (posix_fadvise).

A reader that reaches the end starts again, after another drop in `cold`, so that it runs as long as
latencies are taken. The leader's reads from disk prove that it was cold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.bench.client_process import ClientProcess
from tests.bench.load import (
    RECORD_BYTES,
    latency_producer,
    paced,
    send,
    throughput_producer,
)
from tests.bench.page_cache import forget
from tests.bench.rounds import Comparison, Figures, Run, percentiles
from tests.bench.servers import SETTLE_SECONDS, Servers
from tests.bench.systems import io_bytes
from tests.bench.topics import create_topic
from tests.chaos.harness.cluster import leader

BASELINE = "alone"
TOPIC = "behind"
WARM_UP_SECONDS = 2
FETCH_RECORDS = 10_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of payload; 5 in full")
    parser.add_argument(
        "--batch-bytes", type=int, default=1_000_000, help="batch.size of what is read cold"
    )
    parser.add_argument("--rates", type=int, nargs="+", default=[200, 1_000], help="a second")
    parser.add_argument("--seconds", type=int, default=20, help="at each rate, in each run")
    parser.set_defaults(rounds=5)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    servers = Servers()
    try:
        servers.up()
        create_topic(servers.bootstrap, TOPIC, 1)
        records = int(options.gigabytes * 1e9) // RECORD_BYTES
        producer = throughput_producer(servers.bootstrap, **{"batch.size": options.batch_bytes})
        send(producer, TOPIC, 1, options.gigabytes * 1_000)
        time.sleep(SETTLE_SECONDS)
        take = partial(_latencies, servers, options.rates, options.seconds)
        runs: dict[str, Run] = {
            BASELINE: take,
            "warm": lambda: _beside_reader(servers, records, take, is_cold=False),
            "cold": lambda: _beside_reader(servers, records, take, is_cold=True),
        }
        yield Comparison(runs, BASELINE)
    finally:
        servers.down()


def _latencies(servers: Servers, rates: list[int], seconds: int) -> Figures:
    figures: Figures = {}
    for rate in rates:
        producer = latency_producer(servers.bootstrap)
        paced(producer, TOPIC, rate=rate, count=rate * WARM_UP_SECONDS)
        taken = paced(producer, TOPIC, rate=rate, count=rate * seconds)
        figures |= percentiles(f"ack_at_{rate}", taken)
    return figures


def _beside_reader(
    servers: Servers, records: int, take: Callable[[], Figures], *, is_cold: bool
) -> Figures:
    server_id = leader(servers.replica_set, TOPIC)
    pid = servers.pid(server_id)
    cold = servers.store(server_id) if is_cold else None
    with ClientProcess(_read_until, servers.bootstrap, records, cold) as reader:
        reader.wait_counting()
        read, disk, began = reader.count, io_bytes(pid, "read_bytes"), time.monotonic()
        figures = take()
        elapsed = time.monotonic() - began
        read, disk = reader.count - read, io_bytes(pid, "read_bytes") - disk
    figures["reader_mb_per_second"] = read * RECORD_BYTES / 1e6 / elapsed
    figures["leader_from_disk_mb_per_second"] = disk / 1e6 / elapsed
    return figures


def _read_until(bootstrap: str, count: int, cold: Path | None, read: Any, ends: Any) -> None:
    """Run the reader's process: read the first `count` records repeatedly.

    `cold`: a directory whose pages are dropped before each pass.
    """
    while not ends.is_set():
        if cold is not None:
            forget(cold)
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "behind", "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            left = count
            while left > 0 and not ends.is_set():
                messages = consumer.consume(min(FETCH_RECORDS, left), timeout=1.0)
                for message in messages[:1]:
                    assert message.error() is None, message.error()
                left -= len(messages)
                read[0] += len(messages)
        finally:
            consumer.close()
