"""VDL and a peer, each started on no data and measured in two passes.

The first pass runs on servers just started: a JVM has compiled nothing yet. It is told as
`NAME_cold`; the second, on the same servers, is what is compared. With PEER=NAME in the environment
each round measures both systems; PEER_COMMAND is the program that starts the peer
(tests/bench/systems.py says what it must answer).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from confluent_kafka import Producer

from tests.bench.load import raise_failed
from tests.bench.rounds import Comparison, Figures, Passes, Run
from tests.bench.settings import client_settings, machine_settings, system_settings
from tests.bench.systems import System, Vdl, peer_from_environment, rss_mb
from tests.bench.targets import Targets
from tests.bench.topics import CALL_SECONDS_MAX, create_topic

PEER_ROUNDS = 3
FIRST_TOPIC = "first"

OnePass = Callable[[System, str], Figures]
"""Measure a running system; topics are named with the second argument, the pass."""


def set_peer_defaults(parser: argparse.ArgumentParser) -> None:
    """Beside a peer, what a comparison needs: several rounds, and memory in the same state."""
    if peer_from_environment() is not None:
        parser.set_defaults(rounds=PEER_ROUNDS, memory_in_use=True)


def comparison(one_pass: OnePass, targets: Targets) -> Comparison:
    peer = peer_from_environment()
    settings = {"machine": machine_settings(), "client": client_settings()}

    def measured(make: Callable[[], System]) -> Run:
        return lambda: _measured(make(), one_pass, settings)

    runs = {Vdl.name: measured(Vdl)}
    if peer is not None:
        runs[peer.name] = measured(lambda: peer)
    return Comparison(runs, peer.name if peer else "", targets, settings)


def _measured(system: System, one_pass: OnePass, settings: dict[str, dict[str, str]]) -> Passes:
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
    # Of the run and of no pass: beside what is compared.
    return Passes(cold, start | warm)


def _start(system: System) -> Figures:
    """From the command that starts the servers to the first acknowledged record."""
    began = time.monotonic()
    system.up()
    create_topic(system.bootstrap, FIRST_TOPIC, 1)
    producer = Producer({"bootstrap.servers": system.bootstrap, "acks": "all"})
    producer.produce(FIRST_TOPIC, b"first", partition=0, on_delivery=raise_failed)
    assert producer.flush(CALL_SECONDS_MAX) == 0, "the first record was not acknowledged"
    return {"start_seconds": time.monotonic() - began, "rss_idle_mb": rss_mb(system.pids())}


def say(text: str) -> None:
    """To whoever watches: figures go to standard output."""
    print(text, file=sys.stderr, flush=True)
