"""A follower that returns while producers go on: does it catch up, and at what cost to others?

A run is three new servers and one topic with a replica on each, which server 1 leads. A producer
appends at a steady rate, in a process of its own. Server 3 is killed until `--gigabytes` have been
acknowledged, and restarted; the data it missed is dropped from the page cache first. Its links are
reset `--resets` times while it catches up, once a second, by the system (`ss -K`; needs root).

* `seconds` from its start until it misses less than half a second of producing in all partitions,
  `is_back` 0 if that did not happen within the limit;
* `follower_mb_per_second` of the data it missed and the data written meanwhile;
* `leader_read_per_missed`: bytes that server 1 read from its disk for each byte that server 3 had
  to get (near 1; more was read in vain, less was still in memory);
* `alone_ack`, `beside_ack`: acknowledgement times of one record in fifty of that producer while the
  server is away, and while it catches up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.bench.catch_up import NEAR_SECONDS, Producing
from tests.bench.load import RECORD_BYTES
from tests.bench.page_cache import forget
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.servers import Servers
from tests.bench.settings import client_settings, machine_settings
from tests.chaos.harness.cluster import create_topic, partitions, status, wait_healthy
from vdl.commands.servers.replica_set import PEER_PORT_STEP

TOPIC = "returning"
LEADER, AWAY = 1, 3
POLL_SECONDS = 0.2
RESET_SECONDS = 1.0
FILL_SECONDS_MAX = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gigabytes", type=float, default=5.0, help="written while it is away")
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s produced")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--resets", type=int, default=0)
    parser.add_argument("--seconds-max", type=float, default=300.0, help="for catching up")
    parser.add_argument(
        "--settings", default="", help="lines of every server's configuration besides"
    )


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    settings = {"machine": machine_settings(), "client": client_settings()}
    yield Comparison({"vdl": partial(run, options)}, settings=settings)


def run(options: argparse.Namespace) -> Figures:
    servers = Servers(settings=options.settings)
    try:
        servers.up()
        create_topic(servers.replica_set, TOPIC, partitions=options.partitions, first_on=LEADER)
        wait_healthy(servers.replica_set)
        with Producing(
            servers.bootstrap, TOPIC, options.rate, partitions=options.partitions
        ) as producing:
            producing.wait_going()
            return _away(servers, producing, options)
    finally:
        servers.down()


def _away(servers: Servers, producing: Producing, options: argparse.Namespace) -> Figures:
    servers.kill_one(AWAY)
    producing.clear()
    before = producing.acknowledged
    wanted = options.gigabytes * 1e9 / RECORD_BYTES
    deadline = time.monotonic() + FILL_SECONDS_MAX
    while producing.acknowledged - before < wanted:
        assert time.monotonic() < deadline, "the producer is too slow"
        time.sleep(POLL_SECONDS)
    figures = percentiles("alone_ack", producing.taken())
    forget(servers.store(LEADER))
    read, missed = _read_bytes(servers), producing.acknowledged
    began = time.monotonic()
    servers.start_one(AWAY)
    near = options.rate * 1e6 * NEAR_SECONDS / RECORD_BYTES
    resets, lag = 0, -1
    while True:
        elapsed = time.monotonic() - began
        if resets < options.resets and elapsed > (resets + 1) * RESET_SECONDS:
            _reset_links(servers)
            resets += 1
        lag = _lag(servers)
        if 0 <= lag < near or elapsed > options.seconds_max:
            break
        time.sleep(POLL_SECONDS)
    elapsed = time.monotonic() - began
    written = producing.acknowledged - missed
    got = (missed - before + written - max(0, lag)) * RECORD_BYTES
    figures |= percentiles("beside_ack", producing.taken())
    return figures | {
        "is_back": float(0 <= lag < near),
        "seconds": elapsed,
        "resets": float(resets),
        "follower_mb_per_second": got / 1e6 / elapsed,
        "producer_mb_per_second": written * RECORD_BYTES / 1e6 / elapsed,
        "leader_read_per_missed": (_read_bytes(servers) - read) / got,
    }


def _lag(servers: Servers) -> int:
    """Return the number of records server 3 misses in all partitions; -1 while it is unknown."""
    lags = [
        replica.lag
        for partition in partitions(status(servers.replica_set))
        for replica in partition.replicas
        if replica.server == AWAY
    ]
    _say(f"lags {lags}")
    return sum(lags) if lags and min(lags) >= 0 else -1


def _read_bytes(servers: Servers) -> int:
    """Return the bytes that server 1 has read from files, also from the page cache."""
    text = Path(f"/proc/{servers.pid(LEADER)}/io").read_text(encoding="ascii")
    return int(text.partition("rchar: ")[2].split()[0])


def _reset_links(servers: Servers) -> None:
    """Reset the links of server 3. The others dial it: the dial of the lower id is kept."""
    port = servers.replica_set.base_port + PEER_PORT_STEP + AWAY - 1
    ends = ["sport", "=", f":{port}", "or", "dport", "=", f":{port}"]
    subprocess.run(
        ["ss", "-K", "-tn", "state", "connected", *ends], capture_output=True, check=True
    )


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
