"""Time without acknowledgements for a producer of librdkafka when a partition's leader fails.

A run is three new servers and one partition on all of them. An idempotent producer sends 200
records a second. The partition's leader is struck repeatedly: healed when half a second's records
have been acknowledged since, and struck anew when all replicas have everything. Each strike's gap
is the longest time between two acknowledgements around it. At the end no acknowledged record may be
lost.

* `kill`: SIGKILL of the leader's server, and a restart. The producer is at its defaults.
* `pause`: SIGSTOP, and SIGCONT. Connections stay up and silent. The time until a client leaves one
  is its own setting, so this producer waits for an answer for one second instead of a minute.
* `silence`: the other servers receive nothing from the leader's, which receives from them and is
  reached by clients; `deafen`: it receives nothing from them (`tests/chaos/harness/wires.py`). The
  producer is at its defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.settings import client_settings, machine_settings
from tests.chaos.harness.cluster import create_topic
from tests.chaos.harness.load import IDEMPOTENT, Load, assert_kept, read_back
from tests.chaos.harness.replica_set import ReplicaSet
from tests.chaos.harness.strikes import Strike, strike_leader
from tests.chaos.harness.wires import Wires

IMPATIENT = {"socket.timeout.ms": 1_000, "request.timeout.ms": 1_000}
"""Settings of a producer whose connections may go silent."""
LONG_MS = {"kill": 300.0, "pause": 2_000.0, "silence": 2_000.0, "deafen": 2_000.0}
"""Gaps above this are counted, and marked in the output."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--cuts", type=int, default=20, help="each way")


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    settings = {"machine": machine_settings(), "client": client_settings()}
    runs = {"vdl": partial(run, options.kills, options.pauses, options.cuts)}
    yield Comparison(runs, settings=settings)


def run(kills: int, pauses: int, cuts: int) -> Figures:
    """Run the strikes: at least two of each kind, or none."""
    figures: Figures = {}
    if kills or pauses:
        servers = ReplicaSet(3)
        try:
            servers.up()
            if kills:
                figures |= _struck(servers, "kill", kills, servers.kill, servers.start)
            if pauses:
                figures |= _struck(
                    servers, "pause", pauses, servers.pause, servers.resume, **IMPATIENT
                )
        finally:
            servers.close()
    if cuts:
        figures |= _cut(cuts)
    return figures


def _cut(count: int) -> Figures:
    figures: Figures = {}
    servers = ReplicaSet(3)
    with Wires(servers) as wires:
        try:
            servers.up()
            for name, fault in (("silence", wires.silence), ("deafen", wires.deafen)):
                figures |= _struck(servers, name, count, fault, lambda server_id: wires.heal())
        finally:
            servers.close()
    return figures


def _struck(
    servers: ReplicaSet,
    name: str,
    count: int,
    fault: Callable[[int], object],
    heal: Callable[[int], object],
    **settings: object,
) -> Figures:
    create_topic(servers, name)
    load = Load(servers.bootstrap, name, IDEMPOTENT, **settings)
    told: list[float] = []

    def struck(strike: Strike) -> None:
        told.append(load.longest_gap_ms(strike.start_ns, strike.end_ns))
        mark = " (long)" if told[-1] > LONG_MS[name] else ""
        _say(f"{name} {len(told)} of {count}: server {strike.server_id}, {told[-1]:.0f} ms{mark}")

    gaps = strike_leader(servers, load, fault, heal, count=count, struck=struck)
    assert not load.failures, load.failures
    assert_kept(load, read_back(servers.bootstrap, name))
    figures = percentiles(f"{name}_gap", gaps)
    figures[f"{name}_gap_max_ms"] = max(gaps)
    figures[f"{name}_gaps_above_{LONG_MS[name]:.0f}_ms"] = float(
        sum(gap > LONG_MS[name] for gap in gaps)
    )
    return figures


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
