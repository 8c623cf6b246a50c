"""A replica set with the largest permitted number of partitions: operation and recovery.

A run is three new servers. Topics are created one after the other, up to the number of partitions
that `cluster.replicas_per_server` allows (each has a replica on every server): seconds for each
step, the longest of them, and until all have leaders. A further topic must be refused. Then seconds
until each partition has acknowledged a record; the servers' idle use of CPU and memory; CPU time of
a page of metrics beyond that, and its size; and, each time until every group has a leader again,
seconds from: the SIGKILL of one server (the other two lead); its restart (until it has all its
replicas); a planned stop and restart of all; the SIGKILL and restart of all.
`..._elections_per_group` counts the elections won meanwhile, for each group, or for each of the
approximate third that the killed server led: a group needs one, more were unnecessary. With
PEER=NAME in the environment each round measures that system too (tests/bench/peer_partitions.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.beside_peer import say
from tests.bench.partition_load import create_topics, record_to_each
from tests.bench.peer_partitions import run_peer
from tests.bench.rounds import Comparison, Figures, Run
from tests.bench.servers import SETTLE_SECONDS, Servers
from tests.bench.systems import Vdl, peer_from_environment
from tests.bench.topics import CALL_SECONDS_MAX
from vdl.kafka.configs.options import KafkaOptions

SCRAPES = 40
SCRAPE_SECONDS = 0.5
"""Interval between two scrapes of all servers."""
POLL_SECONDS = 0.1
"""Interval between two checks of the servers; a check costs them a millisecond for some thousand
groups.
"""
WAIT_SECONDS_MAX = 180.0
KILLED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partitions",
        type=int,
        default=KafkaOptions().replicas_per_server_max,
        help="the most a server may have, unless told otherwise",
    )
    parser.add_argument("--step", type=int, default=1_000, help="partitions of one topic")
    parser.add_argument("--seconds", type=float, default=30.0, help="of idleness")


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    size = (options.partitions, options.step, options.seconds)
    runs: dict[str, Run] = {Vdl.name: partial(run, *size)}
    peer = peer_from_environment()
    if peer is not None:
        runs[peer.name] = partial(run_peer, peer, *size)
    yield Comparison(runs, peer.name if peer else "")


def run(partitions: int, step: int, seconds: float) -> Figures:
    servers = Servers(settings=f"[cluster]\nreplicas_per_server = {partitions}\n")
    try:
        servers.up()
        groups = servers.groups() + partitions
        figures = _make(servers, partitions, step, groups)
        figures["refused_beyond"] = _refused(servers)
        figures |= record_to_each(servers.bootstrap, partitions, step)
        time.sleep(SETTLE_SECONDS)
        figures |= _idleness(servers, partitions, seconds)
        figures |= _scraped(servers, figures["idle_cpu_percent_of_all"] / 100)
        figures |= _kill_one(servers, groups)
        servers.stop()
        figures |= _start_all(servers, groups, "planned_stop")
        servers.kill()
        figures |= _start_all(servers, groups, "kill_of_all")
    finally:
        servers.down()
    return figures


def _make(servers: Servers, partitions: int, step: int, groups: int) -> Figures:
    began = time.monotonic()
    figures = create_topics(servers.bootstrap, partitions, step)
    figures["create_to_all_led_seconds"] = _wait_led(servers, groups) - began
    figures["create_elections_per_group"] = _elections(servers, servers.ids) / groups
    return figures


def _refused(servers: Servers) -> float:
    """Return 1 if a topic beyond the limit is refused with the right error, else 0."""
    admin = AdminClient({"bootstrap.servers": servers.bootstrap, "log_level": 0})
    topic = NewTopic("beyond", num_partitions=1, replication_factor=3)
    try:
        admin.create_topics([topic])["beyond"].result(timeout=CALL_SECONDS_MAX)
    except KafkaException as error:
        say(f"  beyond: {error}")
        return float(error.args[0].code() == KafkaError.POLICY_VIOLATION)
    return 0.0


def _idleness(servers: Servers, partitions: int, seconds: float) -> Figures:
    before, began = servers.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    elapsed, after = time.monotonic() - began, servers.cpu_seconds()
    used = [(after[number] - before[number]) / elapsed * 100 for number in servers.ids]
    thousands = partitions / 1_000
    return {
        "idle_cpu_percent_of_the_busiest": max(used),
        "idle_cpu_percent_of_all": sum(used),
        "idle_cpu_percent_per_thousand": sum(used) / len(used) / thousands,
        "rss_mb_of_the_largest": max(servers.rss_mb().values()),
    }


def _scraped(servers: Servers, idle_cpu: float) -> Figures:
    """Return the cost of a page of one server; `idle_cpu`: of all of them, seconds a second."""
    before, began = sum(servers.cpu_seconds().values()), time.monotonic()
    for _ in range(SCRAPES):
        sizes = [len(servers.metrics_page(number)) for number in servers.ids]
        time.sleep(SCRAPE_SECONDS)
    used = sum(servers.cpu_seconds().values()) - before - idle_cpu * (time.monotonic() - began)
    return {
        "scrape_cpu_ms": used / (SCRAPES * len(servers.ids)) * 1_000,
        "scrape_kb": max(sizes) / 1_000,
    }


def _kill_one(servers: Servers, groups: int) -> Figures:
    survivors = [number for number in servers.ids if number != KILLED]
    before = _elections(servers, survivors)
    figures = _until_led(servers, groups, "kill_of_one", lambda: servers.kill_one(KILLED))
    won = _elections(servers, survivors) - before
    led_by_killed = groups / len(servers.ids)
    figures["kill_of_one_elections_per_lost_group"] = won / led_by_killed
    began = time.monotonic()
    servers.start_one(KILLED)
    while int(servers.health(KILLED).get("groups", 0)) < groups:
        assert time.monotonic() - began < WAIT_SECONDS_MAX, "the killed server does not come back"
        time.sleep(POLL_SECONDS)
    figures["kill_of_one_back_seconds"] = time.monotonic() - began
    say(f"  back after {time.monotonic() - began:.2f} s")
    _wait_led(servers, groups)
    time.sleep(SETTLE_SECONDS)
    return figures


def _until_led(servers: Servers, groups: int, name: str, act: Callable[[], object]) -> Figures:
    began = time.monotonic()
    act()
    return {f"{name}_to_all_led_seconds": _wait_led(servers, groups) - began}


def _start_all(servers: Servers, groups: int, name: str) -> Figures:
    """Start all and wait for leaders. Counters of a process start at 0."""
    figures = _until_led(servers, groups, name, servers.start)
    elections = _elections(servers, servers.ids) / groups
    return figures | {f"{name}_elections_per_group": elections}


def _wait_led(servers: Servers, groups: int) -> float:
    """Return when the running servers lead `groups` groups between them (monotonic)."""
    deadline, told = time.monotonic() + WAIT_SECONDS_MAX, 0.0
    while True:
        states = {number: servers.health(number) for number in servers.running()}
        leading = sum(int(state.get("leading", 0)) for state in states.values())
        now = time.monotonic()
        if leading >= groups:
            return now
        if now - told > 1.0:
            told = now
            say(f"  {leading} of {groups} are led; {states}")
        assert now < deadline, f"{leading} of {groups} groups are led; {states}"
        time.sleep(POLL_SECONDS)


def _elections(servers: Servers, of: Sequence[int]) -> float:
    name = "vdl_server_leaderships_won_total"
    return sum(servers.metrics(number).get(name, 0.0) for number in of)
