"""`make cost`: cost of producing and fetching in calls, system calls and bytes.

    python -m tests.cost.run                    all workloads, beside the recorded figures
    python -m tests.cost.run --only NAME ...    some
    python -m tests.cost.run --top 40           with the largest contributors to each figure
    python -m tests.cost.run --record           and write figures.toml anew
    python -m tests.cost.run --plant NAME       with waste planted, to see its effect

No figure is a time: the same code has the same figures on each run and machine. Exits with 1 when a
figure is off by more than the tolerance, unless it is recorded.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.cost.counting import FIGURES, Counted
from tests.cost.plants import PLANTS
from tests.cost.record import VERSION, Change, changes, record, recorded
from tests.cost.worker import count_apart
from tests.cost.workloads import WORKLOADS, Workload


def main() -> int:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description="Count what the workloads cost.")
    parser.add_argument("--only", nargs="*", default=names, choices=names, metavar="NAME")
    parser.add_argument("--top", type=int, default=0, help="contributors named for each figure")
    parser.add_argument("--plant", default="", choices=PLANTS, help="waste to be planted before")
    parser.add_argument("--record", action="store_true", help="write figures.toml anew")
    arguments = parser.parse_args()
    if arguments.record and arguments.plant:
        parser.error("what is planted is not recorded")
    chosen = [workload for workload in WORKLOADS if workload.name in arguments.only]
    before = recorded()
    counted: dict[str, dict[str, float]] = {}
    found: list[Change] = []
    for workload, one in count_all(chosen, plant=arguments.plant, top=arguments.top):
        counted[workload.name] = one.figures
        was = before.get(workload.name, {})
        rows = changes(workload.name, workload.unit, was, one.figures, FIGURES)
        print_one(workload, rows, one)
        found += [change for change in rows if change.is_fault]
    if arguments.record:
        record(counted, names)
        print(f"recorded for Python {VERSION}")
        return 0
    if not before:
        print(f"nothing is recorded for Python {VERSION}: `make cost RECORD=1` does")
        return 0
    for change in found:
        print(change)
    return 1 if found else 0


def count_all(
    chosen: Sequence[Workload], *, plant: str, top: int
) -> Iterator[tuple[Workload, Counted]]:
    """Yield each workload and its counts; up to one per processor runs at a time."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        names = [workload.name for workload in chosen]
        yield from zip(
            chosen, pool.map(partial(count_apart, plant=plant, top=top), names), strict=True
        )


def print_one(workload: Workload, rows: Sequence[Change], counted: Counted) -> None:
    print(f"\n{workload.name}: {workload.about}; per {workload.unit}, three servers together")
    for row in rows:
        rise = f"{row.rise:+8.1%}" if row.recorded else f"{'new':>8}"
        print(f"  {row.figure:<14}{row.counted:>16,.3f}{rise}  {row.meaning}")
    for figure, contributors in counted.top.items():
        if contributors:
            print(f"  most {FIGURES[figure]}:")
        for name, value in contributors.items():
            print(f"  {value:>16,.3f}  {name}")


if __name__ == "__main__":
    sys.exit(main())
