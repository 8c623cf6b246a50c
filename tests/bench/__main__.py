"""Run the benchmark and print its figures.

    python -m tests.bench [--quick] [--rounds N] [--json FILE]

With PEER=NAME in the environment, and the program that starts that system in PEER_COMMAND
(tests/bench/systems.py says what it must answer), each round measures both, one after the other;
figures are medians over the rounds, and the last column is VDL divided by the peer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from tests.bench.systems import Peer, System, Vdl
from tests.bench.workloads import FULL, QUICK, Bench, Figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measure a replica set.")
    parser.add_argument("--quick", action="store_true", help="less data: about half a minute")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    rounds: dict[str, list[Figures]] = defaultdict(list)
    for number in range(options.rounds):
        for system in systems():
            print(f"round {number + 1}: {system.name}", file=sys.stderr, flush=True)
            rounds[system.name].append(Bench(system, size).run())
    medians = {name: median(figures) for name, figures in rounds.items()}
    show(medians)
    if options.json is not None:
        text = json.dumps({"medians": medians, "rounds": rounds}, indent=2)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


def systems() -> list[System]:
    """Those to measure, new for each round."""
    found: list[System] = [Vdl()]
    peer = os.environ.get("PEER")
    if peer:
        command = os.environ.get("PEER_COMMAND")
        if not command:
            raise SystemExit("PEER needs PEER_COMMAND, the program that starts it")
        found.append(Peer(peer, command))
    return found


def median(rounds: list[Figures]) -> Figures:
    """Each figure's median over the rounds."""
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def show(medians: dict[str, Figures]) -> None:
    """One line a figure, one column a system, and the ratio where there are two."""
    names = list(medians)
    columns = [*names, f"{names[0]}/{names[1]}"] if len(names) > 1 else names
    print(f"{'':<52}" + "".join(f"{column:>14}" for column in columns))
    for figure in medians[names[0]]:
        values = [medians[name][figure] for name in names]
        if len(values) > 1:
            values.append(values[0] / values[1] if values[1] else float("nan"))
        print(f"{figure:<52}" + "".join(f"{value:>14,.2f}" for value in values))


if __name__ == "__main__":
    sys.exit(main())
