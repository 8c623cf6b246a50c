"""VDL and a peer, each started without data and measured in two passes.

The first pass runs on servers just started: a JVM has compiled nothing yet. It is reported as
`NAME_cold`; the second, on the same servers, is compared. With PEER=NAME in the environment each
round measures both systems; PEER_COMMAND is the program that starts the peer
(tests/bench/systems.py describes its interface).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping

from confluent_kafka import Producer

from tests.bench.load import raise_failed
from tests.bench.rounds import Comparison, Figures, Passes, Run
from tests.bench.settings import client_settings, machine_settings, system_settings
from tests.bench.systems import System, Vdl, peer_from_environment, rss_mb
from tests.bench.targets import Targets
from tests.bench.topics import CALL_SECONDS_MAX, create_topic

PEER_ROUNDS = 3
FIRST_TOPIC = "first"

Settings = dict[str, dict[str, str]]
Row = Callable[[System, argparse.Namespace], Figures]
"""Measures a running system; the figures are named after the row."""

OnePass = Callable[[System, str], Figures]
"""Measures a running system; the second argument, the pass, is used in names of topics."""


def set_peer_defaults(parser: argparse.ArgumentParser) -> None:
    """Set the defaults of a comparison: several rounds, and memory in the same state."""
    if peer_from_environment() is not None:
        parser.set_defaults(rounds=PEER_ROUNDS, memory_in_use=True)


def comparison(one_pass: OnePass, targets: Targets) -> Comparison:
    return _compared(lambda system, settings: _passes(system, one_pass, settings), targets)


def comparison_of_rows(rows: Mapping[str, Row], options: argparse.Namespace) -> Comparison:
    """Start each system once and measure it row by row. `options.only`: some of the rows."""
    return _compared(lambda system, settings: _rows(system, rows, options, settings), {})


def _compared(
    measure: Callable[[System, Settings], Figures | Passes], targets: Targets
) -> Comparison:
    """Return a comparison of VDL and the peer, if one is named."""
    peer = peer_from_environment()
    settings = {"machine": machine_settings(), "client": client_settings()}

    def measured(make: Callable[[], System]) -> Run:
        return lambda: measure(make(), settings)

    runs = {Vdl.name: measured(Vdl)}
    if peer is not None:
        runs[peer.name] = measured(lambda: peer)
    return Comparison(runs, peer.name if peer else "", targets, settings)


def _rows(
    system: System, rows: Mapping[str, Row], options: argparse.Namespace, settings: Settings
) -> Figures:
    figures: Figures = {}
    try:
        system.up()
        settings[system.name] = system_settings(system)
        for name in options.only or rows:
            found = rows[name](system, options)
            say(f"{system.name}: {name}: {found}")
            figures |= {f"{name}_{key}": value for key, value in found.items()}
        figures["rss_after_mb"] = rss_mb(system.pids())
    finally:
        system.down()
    return figures


def _passes(system: System, one_pass: OnePass, settings: Settings) -> Passes:
    try:
        start = _start(system)
        settings[system.name] = system_settings(system)
        passes = []
        for name in ("cold", "warm"):
            began = time.monotonic()
            figures = one_pass(system, name)
            figures["rss_after_mb"] = rss_mb(system.pids())
            passes.append(figures)
            say(f"{system.name}, {name}: {time.monotonic() - began:.0f} s")
    finally:
        system.down()
    cold, warm = passes
    # Figures of the whole run, not of a pass, are reported beside those compared.
    return Passes(cold, start | warm)


def _start(system: System) -> Figures:
    """Measure the time from the servers' start to the first acknowledged record."""
    began = time.monotonic()
    system.up()
    create_topic(system.bootstrap, FIRST_TOPIC, 1)
    producer = Producer({"bootstrap.servers": system.bootstrap, "acks": "all"})
    producer.produce(FIRST_TOPIC, b"first", partition=0, on_delivery=raise_failed)
    assert producer.flush(CALL_SECONDS_MAX) == 0, "the first record was not acknowledged"
    return {"start_seconds": time.monotonic() - began, "rss_idle_mb": rss_mb(system.pids())}


def say(text: str) -> None:
    """Print progress to standard error; figures go to standard output."""
    print(text, file=sys.stderr, flush=True)
