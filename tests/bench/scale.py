"""Cost of many partitions: the same load spread over 1, 30 and 1,000 of them.

A run is three new servers and one topic. First 1,000 produce requests of one record a second in
all, round robin, acks=all, sent when due: milliseconds to the answer. Then 1,000 records a second
through librdkafka, which batches those of one partition (linger 0): milliseconds from `produce` to
the acknowledgement. Then as much as librdkafka sends when its queue is always full. Ratios are to
one partition.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.load import (
    latency_producer,
    paced,
    send,
    throughput,
    throughput_producer,
)
from tests.bench.requests import Requests
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.servers import Servers
from tests.bench.systems import cpu_seconds
from tests.bench.topics import create_led_topic

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
        create_led_topic(servers.bootstrap, TOPIC, partitions)
        return (
            _requests(servers, partitions, seconds)
            | _latency(servers, partitions, seconds)
            | _throughput(servers, partitions, megabytes)
        )
    finally:
        servers.down()


def _requests(servers: Servers, partitions: int, seconds: int) -> Figures:
    with Requests(servers.bootstrap, TOPIC) as requests:
        requests.paced(rate=RATE, count=_warm_up(partitions))
        before = cpu_seconds(servers.pids())
        taken = requests.paced(rate=RATE, count=RATE * seconds)
        used = cpu_seconds(servers.pids()) - before
    return percentiles("request", taken) | {"request_server_cpu_us": used / len(taken) * 1e6}


def _latency(servers: Servers, partitions: int, seconds: int) -> Figures:
    producer = latency_producer(servers.bootstrap)
    paced(producer, TOPIC, rate=RATE, count=_warm_up(partitions), partitions=partitions)
    own, before = time.process_time(), cpu_seconds(servers.pids())
    taken = paced(producer, TOPIC, rate=RATE, count=RATE * seconds, partitions=partitions)
    own, used = time.process_time() - own, cpu_seconds(servers.pids()) - before
    return percentiles("ack", taken) | {
        "ack_server_cpu_us": used / len(taken) * 1e6,
        "ack_client_cpu_us": own / len(taken) * 1e6,
    }


def _warm_up(partitions: int) -> int:
    """Return the number of warm-up records: each partition gets one at least.

    The client then knows its leader, and its tail has a chunk.
    """
    return max(partitions, RATE * WARM_UP_SECONDS)


def _throughput(servers: Servers, partitions: int, megabytes: int) -> Figures:
    producer = throughput_producer(servers.bootstrap)
    send(producer, TOPIC, partitions, min(WARM_UP_MB, megabytes))
    return throughput(
        servers.pids(), megabytes, lambda: send(producer, TOPIC, partitions, megabytes)
    )
