"""`vdl sim`: run seeds, print what they were and what became of them.

    vdl sim --seed 7                 one seed, with its options and its trace hash
    vdl sim --seeds 100 --first 1    many, over all processors

A failing seed prints the one command that runs it again; the same seed gives the same hash, on any
machine, whatever Python's own hash seed is.

Must not know: what a world does.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from vdl.check import history
from vdl.sim.options import Options, draw
from vdl.sim.world import Outcome, World

VIOLATIONS_SHOWN = 10
TAIL_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Summary:
    """An outcome without its history: what travels between processes."""

    seed: int
    options: str
    violations: tuple[str, ...]
    tail: tuple[str, ...]
    events: int
    faults: int
    lives: int
    crashes: int
    elections: int
    acknowledgements: int
    polled: int
    virtual_s: float
    cpu_s: float
    hash: str

    @property
    def ok(self) -> bool:
        return not self.violations

    def line(self) -> str:
        verdict = "ok" if self.ok else f"{len(self.violations)} VIOLATIONS"
        return (
            f"seed {self.seed}: {verdict}; {self.events} events, {self.faults} faults, "
            f"{self.crashes} crashes, {self.elections} elections, "
            f"{self.acknowledgements} acknowledgements, {self.polled} records read, "
            f"{self.virtual_s:.1f} s in {self.cpu_s:.1f} s, trace {self.hash}"
        )


def run_seed(seed: int, *, echo: bool = False, options: Options | None = None) -> Outcome:
    """The world of a seed, lived to its end. `options` overrides what the seed would draw."""
    return World(seed, options or draw(Random(f"options {seed}")), echo=echo).run()


def summarize(seed: int) -> Summary:
    """Run a seed and keep what is worth telling. Top level, so that a process pool can call it."""
    began = time.process_time()
    outcome = run_seed(seed)
    return summary(outcome, time.process_time() - began)


def summary(outcome: Outcome, cpu_s: float) -> Summary:
    return Summary(
        seed=outcome.seed,
        options=outcome.options.describe(),
        violations=tuple(map(str, outcome.violations)),
        tail=tuple(outcome.trace.tail)[-TAIL_SHOWN:] if outcome.violations else (),
        events=outcome.events,
        faults=outcome.faults,
        lives=outcome.lives,
        crashes=outcome.lives - outcome.options.servers,
        elections=outcome.elections,
        acknowledgements=outcome.acknowledgements,
        polled=outcome.polled,
        virtual_s=outcome.virtual_ns / 1e9,
        cpu_s=cpu_s,
        hash=outcome.hash,
    )


def run_seeds(first: int, count: int, *, processes: int = 0) -> Iterator[Summary]:
    """Run seeds [first, first + count), in order of completion."""
    processes = min(count, processes or os.cpu_count() or 1)
    seeds = range(first, first + count)
    if processes == 1:
        yield from map(summarize, seeds)
        return
    # Fresh interpreters: a world must not depend on what its parent had loaded.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap_unordered(summarize, seeds)


def main(
    *,
    seed: int | None = None,
    seeds: int = 1,
    first: int = 1,
    echo: bool = False,
    history_path: str = "",
) -> int:
    """The command; 0 when nothing was violated."""
    if seed is not None:
        return _one(seed, echo=echo, history_path=history_path)
    totals = [0, 0, 0, 0, 0]
    bad = 0
    for result in run_seeds(first, seeds):
        figures = (
            1, result.events, result.faults, result.elections, result.acknowledgements
        )  # fmt: skip
        totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        sys.stdout.write(result.line() + "\n")
        if not result.ok:
            bad += len(result.violations)
            _show(result)
    sys.stdout.write(
        "{} seeds, {} events, {} faults, {} elections, {} acknowledgements, ".format(*totals)
        + f"{bad} violations\n"
    )
    return 1 if bad else 0


def _one(seed: int, *, echo: bool, history_path: str) -> int:
    began = time.process_time()
    outcome = run_seed(seed, echo=echo)
    result = summary(outcome, time.process_time() - began)
    sys.stdout.write(f"options: {result.options}\n{result.line()}\n")
    if history_path:
        with Path(history_path).open("w") as file:
            history.write(outcome.history, file)
    if not result.ok:
        _show(result)
    return 0 if result.ok else 1


def _show(result: Summary) -> None:
    """What went wrong, what had just happened, and how to see it again."""
    for line in result.tail:
        sys.stdout.write(f"    {line}\n")
    for violation in result.violations[:VIOLATIONS_SHOWN]:
        sys.stdout.write(f"  {violation}\n")
    if len(result.violations) > VIOLATIONS_SHOWN:
        sys.stdout.write(f"  … and {len(result.violations) - VIOLATIONS_SHOWN} more\n")
    sys.stdout.write(f"  again: vdl sim --seed {result.seed}\n")
