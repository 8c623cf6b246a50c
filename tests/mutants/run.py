"""`make mutants`: the simulator must find every planted bug.

    python -m tests.mutants.run                 all, seeds 1 to 1,000 each
    python -m tests.mutants.run --only NAME     some
    python -m tests.mutants.run --record        and write seeds.toml anew
    python -m tests.mutants.run --unseen        those that no seed has found yet

Prints one row a mutation as it is found: number of seeds run, the seed that shows it, the
violations. Exits with 1 when a mutation survives or a finding does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.mutants.hunt import Copies, Hunt, hunt_all
from tests.mutants.patches import HERE, UNSEEN, load_all

SEEDS_FILE = HERE / "seeds.toml"
SEEDS_MAX = 1_000
RECORDED_MAX = 3
RECORDED_WITHIN = 40
"""A mutation that shows in fewer worlds than one in this number is missed when seeds change."""

_HEAD = """\
# Seeds that showed each mutation when they were recorded: `make mutants RECORD=1` writes this file.
# A change of the production code changes what a seed does; tests/mutants then searches further.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Find every planted bug.")
    parser.add_argument("--only", nargs="*", default=[], help="names, or parts of them")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many to try each")
    parser.add_argument("--record", action="store_true", help="write seeds.toml anew")
    parser.add_argument("--processes", type=int, default=0, help="0: one a processor")
    parser.add_argument("--unseen", action="store_true", help="those in unseen/ instead")
    arguments = parser.parse_args()
    mutations = [
        mutation
        for mutation in load_all(UNSEEN if arguments.unseen else HERE)
        if not arguments.only or any(part in mutation.path.name for part in arguments.only)
    ]
    if not mutations:
        parser.error(f"no mutation is called {' or '.join(arguments.only)}")
    with (
        tempfile.TemporaryDirectory(prefix="vdl-mutants-") as name,
        closing(Copies(Path(name))) as copies,
    ):
        seeds = range(1, arguments.seeds + 1)
        hunts: list[Hunt] = []
        print(f"{'mutation':<44}{'seeds':>6}{'seed':>6}  violations")
        enough = RECORDED_MAX if arguments.record else 1
        for one in hunt_all(
            copies,
            [(mutation, seeds) for mutation in mutations],
            enough=enough,
            calm=True,
            processes=arguments.processes,
        ):
            hunts.append(one)
            print(row(one), flush=True)
        failing = copies.failing()
    for command in failing:
        print(f"fails without any mutation: {command}")
    if arguments.record:
        record(hunts)
    print(last_line(hunts))
    return 1 if failing or any(one.complaint for one in hunts) else 0


def row(one: Hunt) -> str:
    mutation = f"{one.mutation.number:02}-{one.mutation.name}"
    found = f"{one.tried:>6}{one.found[0].seed:>6}" if one.found else f"{one.tried:>6}{'-':>6}"
    names = one.found[0].names if one.found else []
    told = ", ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")
    parts = [part for part in (told, one.complaint and f"! {one.complaint}") if part]
    return f"{mutation:<44}{found}  {'  '.join(parts)}"


def last_line(hunts: Sequence[Hunt]) -> str:
    found = [one.tried for one in hunts if one.is_found]
    median = f"{statistics.median(found):g}" if found else "-"
    return f"{len(hunts)} mutations, {len(found)} found, median {median} seeds"


def recorded() -> dict[str, list[int]]:
    """Return seeds by mutation."""
    with SEEDS_FILE.open("rb") as file:
        seeds: dict[str, list[int]] = tomllib.load(file)
    return seeds


def record(hunts: Sequence[Hunt]) -> None:
    """Write the new findings; mutations that were not searched for stay unchanged.

    A finding that took more worlds than the stage has time for is not recorded, and is left to the
    full search.
    """
    seeds = recorded() if SEEDS_FILE.exists() else {}
    for one in hunts:
        seeds.pop(one.mutation.name, None)
        if one.found and one.tried <= RECORDED_WITHIN:
            # The stage begins with the seed that shows the bug soonest.
            soonest = sorted(one.found, key=lambda world: world.cpu_s)
            seeds[one.mutation.name] = [world.seed for world in soonest]
    known = {mutation.name for mutation in load_all()}
    lines = [f"{name} = {seeds[name]}\n" for name in sorted(seeds) if name in known]
    SEEDS_FILE.write_text(_HEAD + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
