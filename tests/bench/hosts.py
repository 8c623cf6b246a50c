"""Cost of a request where a host runs several servers: three hosts of 1, 2 and 4 servers.

Each server is offered the same load: produce requests of one record, acks=all, sent when due,
over PARTITIONS partitions for each server, whose three replicas are on three hosts. So a host of
four servers has four times the requests of a host of one. Ratios are to one server a host. Rest
is measured first: `served_cpu_us` is a request's share of the servers' CPU time without what they
need at rest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.requests import Requests
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.systems import cpu_seconds
from tests.bench.topics import create_led_topic
from tests.chaos.harness.replica_set import ReplicaSet

HOSTS = 3
PARTITIONS = 10
TOPIC = "spread"
WARM_UP_SECONDS = 5
START_SECONDS_MAX = 50


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--per-host", type=int, nargs="+", default=[1, 2, 4], help="servers")
    parser.add_argument("--rate", type=int, default=60, help="requests a second for each server")
    parser.add_argument("--seconds", type=int, default=20, help="at rest, and at that rate")
    parser.set_defaults(rounds=3)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    runs = {str(count): partial(run, count, options) for count in options.per_host}
    yield Comparison(runs, baseline=str(options.per_host[0]))


def run(per_host: int, options: argparse.Namespace) -> Figures:
    count = HOSTS * per_host
    servers = ReplicaSet(count)
    try:
        servers.up("--per-host", str(per_host), "--timeout", str(START_SECONDS_MAX))
        create_led_topic(servers.bootstrap, TOPIC, PARTITIONS * count)
        pids = [servers.pid(server_id) for server_id in servers.server_ids]
        rate = options.rate * count
        with Requests(servers.bootstrap, TOPIC) as requests:
            requests.paced(rate=rate, count=rate * WARM_UP_SECONDS)
            before = cpu_seconds(pids)
            time.sleep(options.seconds)
            rest = (cpu_seconds(pids) - before) / options.seconds
            before, began = cpu_seconds(pids), time.monotonic()
            taken = requests.paced(rate=rate, count=rate * options.seconds)
            seconds = time.monotonic() - began
            used = cpu_seconds(pids) - before
    finally:
        servers.close()
    return percentiles("request", taken) | {
        "requests_per_second": len(taken) / seconds,
        "cpu_us": used / len(taken) * 1e6,
        "served_cpu_us": (used - rest * seconds) / len(taken) * 1e6,
        "rest_cpu_percent_of_server": rest / count * 100,
    }
