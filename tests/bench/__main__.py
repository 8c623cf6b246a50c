"""Run one measurement and print its figures.

    python -m tests.bench [MEASUREMENT] [--rounds N] [--json FILE] [its own options]

Figures are medians over alternating rounds; the last columns are ratios to the baseline.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, cast

from tests.bench.page_cache import memory_in_use
from tests.bench.rounds import Comparison, Rounds, alternate, judged, medians, table

DEFAULT = "workloads"
MEASUREMENTS = (
    DEFAULT,
    "sarama",
    "double_writing",
    "encryption",
    "transactions",
    "scale",
    "connections",
    "handshakes",
    "log_size",
    "compaction",
    "cold_reader",
    "catch_up",
    "readers",
    "returning",
    "large_records",
    "hosts",
    "idle",
    "many_partitions",
    "overload",
    "memory",
    "recovery",
    "failover",
    "limit",
)
"""Measurements; each is a module in this package."""


class Measurement(Protocol):
    """Interface of a measurement's module."""

    __doc__: str

    def add_options(self, parser: argparse.ArgumentParser) -> None: ...
    def prepared(self, options: argparse.Namespace) -> AbstractContextManager[Comparison]:
        """Yield the runs, with the state that all rounds share; clean up at the end.

        `options.fill_memory` carries out --memory-in-use; it is called before each run.
        """


def parse(arguments: Sequence[str]) -> tuple[str, Measurement, argparse.Namespace]:
    """Return (name, measurement, options). Without a name the default measurement is taken."""
    named = arguments[:1] and arguments[0] in MEASUREMENTS
    name = arguments[0] if named else DEFAULT
    # A module is a `Measurement` if it has these functions.
    measurement = cast(Measurement, importlib.import_module(f"tests.bench.{name}"))
    parser = argparse.ArgumentParser(
        prog=f"bench {name}",
        description=measurement.__doc__,
        epilog=f"measurements: {', '.join(MEASUREMENTS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument(
        "--memory-in-use",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="fill free memory with cached pages before",
    )
    measurement.add_options(parser)
    return name, measurement, parser.parse_args(arguments[1:] if named else arguments)


def main(arguments: Sequence[str]) -> int:
    name, measurement, options = parse(arguments)
    # Servers that cannot store bytecode compile their modules at each start, for seconds in a
    # thread beside the measurement. An installed server has its bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # As for ^C: stop the servers and remove their data.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    around = memory_in_use() if options.memory_in_use else nullcontext(lambda: None)
    with around as fill_memory:
        options.fill_memory = fill_memory
        with measurement.prepared(options) as comparison:
            rounds = alternate(comparison, options.rounds, fill_memory)
    for side, settings in comparison.settings.items():
        print(f"{side}: {', '.join(f'{name} {value}' for name, value in settings.items())}")
    print("\n".join(table(rounds, comparison.baseline, comparison.targets)))
    if options.json is not None:
        told = as_json(name, comparison, rounds)
        options.json.write_text(f"{json.dumps(told, indent=2)}\n", encoding="utf-8")
    return 0


def as_json(name: str, comparison: Comparison, rounds: Rounds) -> dict[str, object]:
    """Return everything that is reported, with each round and the settings."""
    columns = medians(rounds)
    return {
        "measurement": name,
        "settings": comparison.settings,
        "baseline": comparison.baseline,
        "verdicts": judged(columns, comparison.baseline, comparison.targets),
        "medians": columns,
        "rounds": rounds,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
