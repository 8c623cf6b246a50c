"""Distance from the least work that moves the data: a minimal program, and the servers.

`limit` moves chunks of a megabyte from a client to three durable files, two of which must have each
(tests/bench/mover.py). `vdl` takes the same bytes as records of 1,000 bytes through librdkafka,
acks=all, one partition: with an index, segments, a leader that can be replaced, and a client that
has to form batches. The last column is VDL's share of the limit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.load import send, throughput, throughput_producer
from tests.bench.mover import Mover
from tests.bench.rounds import Comparison, Figures
from tests.bench.servers import Servers
from tests.bench.topics import create_topic

LIMIT = "limit"
CHUNK_BYTES = 1_000_000
WARM_UP_MB = 300
"""Until the journal reuses its files."""
TOPIC = "moved"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=1_000, help="of payload, in each run")
    parser.set_defaults(rounds=3)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    runs = {LIMIT: partial(_limit, options.megabytes), "vdl": partial(_vdl, options.megabytes)}
    yield Comparison(runs, LIMIT)


def _limit(megabytes: int) -> Figures:
    with (
        TemporaryDirectory(prefix="vdl-limit-") as folder,
        Mover(Path(folder), CHUNK_BYTES) as mover,
    ):
        mover.send(min(WARM_UP_MB, megabytes))
        return throughput(mover.pids(), megabytes, lambda: mover.send(megabytes))


def _vdl(megabytes: int) -> Figures:
    servers = Servers()
    try:
        servers.up()
        create_topic(servers.bootstrap, TOPIC, 1)
        producer = throughput_producer(servers.bootstrap)
        send(producer, TOPIC, 1, min(WARM_UP_MB, megabytes))
        return throughput(servers.pids(), megabytes, lambda: send(producer, TOPIC, 1, megabytes))
    finally:
        servers.down()
