"""Cost of writing twice: this build, one that always writes twice, and two without a part.

Small appends are written to the journal and later to a segment, large ones to their segment alone;
`twice` is the same servers with `storage.place_bytes` 0. Two variants are measured beside them
(tests/bench/variants.py describes what each leaves out): `journal_only` is the most that could be
gained if segments cost nothing; `segments_only` is the design without a journal, at its best.

A run is three new servers, a topic, a warm-up, then records of 1,000 bytes as fast as librdkafka
sends them, acks=all. Bytes written are those that the servers' processes made dirty, divided by
three times the payload: one is the least that three replicas can write. Up to a checkpoint's worth
is written after the last acknowledgement, or before the first. CPU time of the kernel's own
threads, which write pages back, is not counted.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.load import send, throughput, throughput_producer
from tests.bench.rounds import Comparison, Figures
from tests.bench.servers import COUNT, Servers
from tests.bench.topics import create_topic

BASELINE = "as_it_is"
TWICE = "twice"
VARIANTS = ("journal_only", "segments_only")
RUNS = (BASELINE, TWICE, *VARIANTS)
NONE_PLACED = "[storage]\nplace_bytes = 0\n"
WARM_UP_MB = 300
"""Until the journal reuses its files instead of filling new ones with zeros."""
TOPIC = "written"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=1_000, help="of payload, in each run")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=RUNS, metavar="RUN")
    parser.set_defaults(rounds=5)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    runs = {
        name: partial(run, name, options.megabytes, options.partitions) for name in options.only
    }
    yield Comparison(runs, options.only[0])


def run(name: str, megabytes: int, partitions: int) -> Figures:
    servers = Servers(name if name in VARIANTS else "", "" if name == BASELINE else NONE_PLACED)
    try:
        servers.up()
        create_topic(servers.bootstrap, TOPIC, partitions)
        producer = throughput_producer(servers.bootstrap)
        send(producer, TOPIC, partitions, min(WARM_UP_MB, megabytes))
        os.sync()
        written_before = servers.written_bytes()
        figures = throughput(
            servers.pids(), megabytes, lambda: send(producer, TOPIC, partitions, megabytes)
        )
        written = servers.written_bytes() - written_before
        figures["bytes_written_per_replica_and_byte"] = written / (COUNT * megabytes * 1e6)
    finally:
        servers.down()
    return figures
