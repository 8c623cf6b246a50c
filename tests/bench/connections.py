"""Cost of connections: the same load over one client's connections, and over those of 500.

A run is three new servers and one topic of 30 partitions; a client is one connection to each of the
leaders. First 1,000 produce requests of one record a second in all, sent when due, over the clients
in turn: milliseconds to the answer, and CPU time of the servers. Then as many requests as the
servers take with a constant number in flight. Ratios are to one client.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.load import RECORD_BYTES
from tests.bench.requests import Requests
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.servers import Servers
from tests.bench.systems import cpu_seconds, rss_mb
from tests.bench.topics import create_led_topic

RATE = 1_000
PARTITIONS = 30
IN_FLIGHT = 500
"""The same for any number of clients, so that only their connections differ."""
WARM_UP_SECONDS = 3
FILES_SPARE = 200
LEADERS_MAX = 3
TOPIC = "connected"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 500])
    parser.add_argument("--seconds", type=int, default=20, help="each load, in each run")
    parser.set_defaults(rounds=3)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    allow_files(max(options.clients) * LEADERS_MAX + FILES_SPARE)
    runs = {str(count): partial(run, count, options.seconds) for count in options.clients}
    yield Comparison(runs, baseline=str(options.clients[0]))


def allow_files(count: int) -> None:
    """Raise the limit of open files of this process, and of the servers started from it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def run(clients: int, seconds: int) -> Figures:
    servers = Servers()
    try:
        servers.up()
        create_led_topic(servers.bootstrap, TOPIC, PARTITIONS)
        with Requests(servers.bootstrap, TOPIC, clients=clients) as requests:
            requests.paced(rate=RATE, count=RATE * WARM_UP_SECONDS)
            figures = _paced(servers, requests, seconds) | _flood(servers, requests, seconds)
        return figures | {"rss_mb": rss_mb(servers.pids())}
    finally:
        servers.down()


def _paced(servers: Servers, requests: Requests, seconds: int) -> Figures:
    before = cpu_seconds(servers.pids())
    taken = requests.paced(rate=RATE, count=RATE * seconds)
    used = cpu_seconds(servers.pids()) - before
    return percentiles("request", taken) | {"request_server_cpu_us": used / len(taken) * 1e6}


def _flood(servers: Servers, requests: Requests, seconds: int) -> Figures:
    before = cpu_seconds(servers.pids())
    taken = requests.in_flight(IN_FLIGHT, seconds=seconds)
    used = cpu_seconds(servers.pids()) - before
    return {
        "requests_per_second": len(taken) / seconds,
        "mb_per_second": len(taken) * RECORD_BYTES / 1e6 / seconds,
        "flood_server_cpu_us": used / len(taken) * 1e6,
    } | percentiles("flood", taken)
