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
    "idle",
    "many_partitions",
    "overload",
    "memory",
    "recovery",
    "failover",
    "limit",
)
"""Each a module beside this one."""


class Measurement(Protocol):
    """What such a module has."""

    __doc__: str

    def add_options(self, parser: argparse.ArgumentParser) -> None: ...
    def prepared(self, options: argparse.Namespace) -> AbstractContextManager[Comparison]:
        """What all rounds share, and the runs; undone at the end. `options.fill_memory` does what
        --memory-in-use asks for, and has been called before each run."""


def parse(arguments: Sequence[str]) -> tuple[str, Measurement, argparse.Namespace]:
    """(name, measurement, options); the default's options may stand without its name."""
    named = arguments[:1] and arguments[0] in MEASUREMENTS
    name = arguments[0] if named else DEFAULT
    # A module is a `Measurement` by having its functions.
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
    # Servers that may keep no bytecode compile their modules at each start, for seconds in a thread
    # beside what is measured. Who has installed them has it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # As ^C does: what was started is stopped, and its data removed.
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
    """Everything that is told, each round of it, and of what."""
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
