"""What many partitions cost: the same load spread over 1, 30 and 1,000 of them.

A run is three new servers and one topic. First 1,000 records a second in all, round robin, each
sent at once (linger 0, acks=all): milliseconds from `produce` to the acknowledgement. Then as much
as librdkafka sends when its queue is always full. Ratios are to one partition.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.load import (
    create_topic,
    latency_producer,
    paced,
    send,
    throughput,
    throughput_producer,
)
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.servers import Servers
from tests.bench.systems import cpu_seconds

RATE = 1_000
WARM_UP_SECONDS = 5
WARM_UP_MB = 50
TOPIC = "spread"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 30, 1_000])
    parser.add_argument("--seconds", type=int, default=30, help="at the steady rate, in each run")
    parser.add_argument("--megabytes", type=int, default=600, help="with deep queues, in each run")
    parser.set_defaults(rounds=5)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    runs = {
        str(count): partial(run, count, options.seconds, options.megabytes)
        for count in options.partitions
    }
    yield Comparison(runs, baseline=str(options.partitions[0]))


def run(partitions: int, seconds: int, megabytes: int) -> Figures:
    servers = Servers()
    try:
        servers.up()
        before = servers.groups()
        create_topic(servers.bootstrap, TOPIC, partitions)
        servers.wait_led(before + partitions)
        return _latency(servers, partitions, seconds) | _throughput(servers, partitions, megabytes)
    finally:
        servers.down()


def _latency(servers: Servers, partitions: int, seconds: int) -> Figures:
    producer = latency_producer(servers.bootstrap)
    # Every partition is met once before: the client asks for its leader, its tail gets a chunk.
    warm_up = max(partitions, RATE * WARM_UP_SECONDS)
    paced(producer, TOPIC, rate=RATE, count=warm_up, partitions=partitions)
    servers_before, own_before = cpu_seconds(servers.pids()), time.process_time()
    taken = paced(producer, TOPIC, rate=RATE, count=RATE * seconds, partitions=partitions)
    return percentiles("ack", taken) | {
        "paced_server_cpu_us_per_record": (cpu_seconds(servers.pids()) - servers_before)
        / len(taken)
        * 1e6,
        "paced_client_cpu_us_per_record": (time.process_time() - own_before) / len(taken) * 1e6,
    }


def _throughput(servers: Servers, partitions: int, megabytes: int) -> Figures:
    producer = throughput_producer(servers.bootstrap)
    send(producer, TOPIC, partitions, min(WARM_UP_MB, megabytes))
    return throughput(
        servers.pids(), megabytes, lambda: send(producer, TOPIC, partitions, megabytes)
    )
