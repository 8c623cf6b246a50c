"""Throughput and latency of a replica set, beside a peer if there is one (the default measurement).

Runs the rows of tests/bench/rows.py in two passes (tests/bench/beside_peer.py); the last column of
the table is VDL's target (tests/bench/targets.py). Nothing here is tuned for either side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tests.bench.beside_peer import comparison, say, set_peer_defaults
from tests.bench.rounds import Comparison, Figures
from tests.bench.rows import FULL, QUICK, ROWS, Size
from tests.bench.systems import System, rss_mb, wait_quiet
from tests.bench.targets import WORKLOADS


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="shorter: less than half the time")
    parser.add_argument(
        "--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS)
    )
    set_peer_defaults(parser)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    names = [name for name in ROWS if name in options.only]
    size = QUICK if options.quick else FULL
    one_pass = partial(_one_pass, names=names, size=size, before_each=options.fill_memory)
    yield comparison(one_pass, WORKLOADS)


def _one_pass(
    system: System,
    name: str,
    *,
    names: Sequence[str],
    size: Size,
    before_each: Callable[[], None],
) -> Figures:
    figures: Figures = {}
    for row in names:
        before_each()
        rested = wait_quiet(system.pids())
        began = time.monotonic()
        measured = ROWS[row](system, f"{row}-{name}", size)
        say(
            f"{system.name}, {name}: {row} took {time.monotonic() - began:.1f} s,"
            f" after {rested:.1f} s of rest; now {rss_mb(system.pids()):.0f} MB a server"
        )
        figures |= {f"{row}_{figure}": value for figure, value in measured.items()}
    return figures
