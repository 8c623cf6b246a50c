"""Cost of unused partitions, and the time until they have leaders after a start.

A run is three new servers, one topic with 1,000 partitions and no clients: seconds until all have
leaders, CPU time of each server as a percentage of one core, its resident memory; then all three
are stopped and restarted, and every group (partitions, catalog, coordinators) must have a leader.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.rounds import Comparison, Figures
from tests.bench.servers import SETTLE_SECONDS, Servers
from tests.bench.topics import create_topic

TOPIC = "idle"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of idleness")
    parser.set_defaults(rounds=3)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    yield Comparison({"vdl": partial(run, options.partitions, options.seconds)})


def run(partitions: int, seconds: float) -> Figures:
    servers = Servers()
    try:
        servers.up()
        before = servers.groups()
        began = time.monotonic()
        create_topic(servers.bootstrap, TOPIC, partitions)
        figures = {"create_seconds": servers.wait_led(before + partitions) - began}
        time.sleep(SETTLE_SECONDS)
        figures |= _idleness(servers, seconds)
        figures |= restart(servers)
    finally:
        servers.down()
    return figures


def _idleness(servers: Servers, seconds: float) -> Figures:
    cpu_before, began = servers.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    cpu, elapsed = servers.cpu_seconds(), time.monotonic() - began
    figures = {
        f"server_{number}_cpu_percent": (cpu[number] - cpu_before[number]) / elapsed * 100
        for number in servers.ids
    }
    return figures | {f"server_{number}_rss_mb": mb for number, mb in servers.rss_mb().items()}


def restart(servers: Servers) -> Figures:
    """Stop all servers as planned and restart them."""
    groups = servers.groups()
    servers.stop()
    return led_after_start(servers, groups)


def led_after_start(servers: Servers, groups: int) -> Figures:
    """Start all three; return the seconds from each one's start until every group has a leader."""
    started = servers.start()
    led = servers.wait_led(groups)
    figures = {
        f"server_{number}_start_to_all_led_seconds": led - at for number, at in started.items()
    }
    return figures | {"first_start_to_all_led_seconds": led - min(started.values())}
