"""Recovery time of servers: 1,000 partitions, a full journal, SIGKILL of all three.

The journal is filled under its default limits: single records go to all partitions in turn until
one server's journal has more files than it keeps without need, just before the oldest tails are
rewritten at its head. A start never finds more. Then all servers are killed at once, while the last
records are in flight, and restarted.

Each server reports (in its log and metrics): wall and CPU seconds in which its store was opened,
that is identity, journal, segments and meta read back and the first block of a new journal file
written; the journal blocks and bytes it read; the CPU time its process had used when all groups had
leaders. Measured from outside: seconds from its process's start until every group had a leader.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from segments.checkpoint.scheduler import JOURNAL_FILES_MIN
from tests.bench.idle import led_after_start
from tests.bench.load import RECORD_BYTES, send, throughput_producer
from tests.bench.page_cache import forget
from tests.bench.rounds import Comparison, Figures
from tests.bench.servers import Servers
from tests.bench.topics import create_topic
from tests.bench.variants import OPENED

TOPIC = "recovered"
STEP_MB = 8.0
FILL_MB_MAX = 2_000.0
LAST_RECORDS = 10_000
"""Records in flight when the servers are killed."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument(
        "--journal-files", type=int, default=JOURNAL_FILES_MIN + 1, help="of a full journal"
    )
    parser.add_argument(
        "--cold", action="store_true", help="drop the data files from the page cache first"
    )
    parser.set_defaults(rounds=5)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    servers = Servers("timed")
    try:
        servers.up()
        before = servers.groups()
        create_topic(servers.bootstrap, TOPIC, options.partitions)
        servers.wait_led(before + options.partitions)
        yield Comparison(
            {
                "vdl": partial(
                    run,
                    servers,
                    options.partitions,
                    options.journal_files,
                    is_cold=options.cold,
                )
            }
        )
    finally:
        servers.down()


def run(servers: Servers, partitions: int, journal_files: int, *, is_cold: bool) -> Figures:
    groups = servers.groups()
    _fill_and_kill(servers, partitions, journal_files)
    journals = {number: servers.store(number) / "journal" for number in servers.ids}
    figures = {f"server_{number}_journal_mb": _size_mb(path) for number, path in journals.items()}
    for number in servers.ids if is_cold else ():
        forget(servers.store(number))
    figures |= led_after_start(servers, groups)
    for number, cpu in servers.cpu_seconds().items():
        wall, opening_cpu = _opened(servers.log(number))
        figures |= {
            f"server_{number}_open_seconds": wall,
            f"server_{number}_open_cpu_seconds": opening_cpu,
            f"server_{number}_cpu_seconds_until_led": cpu,
            f"server_{number}_blocks": servers.metrics(number)["vdl_store_recovered_blocks"],
        }
    return figures


def _fill_and_kill(servers: Servers, partitions: int, journal_files: int) -> None:
    producer = throughput_producer(servers.bootstrap)
    sent_mb = 0.0
    while _journal_files(servers) < journal_files and sent_mb < FILL_MB_MAX:
        send(producer, TOPIC, partitions, STEP_MB)
        sent_mb += STEP_MB
    value = os.urandom(RECORD_BYTES)
    for number in range(LAST_RECORDS):
        producer.produce(TOPIC, value, partition=number % partitions, on_delivery=lambda *_: None)
    servers.kill()
    producer.purge()


def _journal_files(servers: Servers) -> float:
    return max(servers.metrics(number)["vdl_store_journal_files"] for number in servers.ids)


def _size_mb(directory: Path) -> float:
    """Return the size of a directory in MB, including files prepared and not yet used."""
    return sum(path.stat().st_size for path in directory.iterdir()) / 1e6


def _opened(log: str) -> tuple[float, float]:
    """Return (wall, CPU) seconds of the last opening of a store."""
    found = re.findall(rf"^{OPENED} seconds=(\S+) cpu_seconds=(\S+)$", log, re.MULTILINE)
    return float(found[-1][0]), float(found[-1][1])
