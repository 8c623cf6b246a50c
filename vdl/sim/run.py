"""`vdl sim`: run seeds and print what they were and their results.

    vdl sim --seed 7                 one seed, with its options and its trace hash
    vdl sim --seeds 100 --first 1    many, over all processors
    vdl sim --seeds 200 --minutes 8  these, then fresh ones for 8 minutes
    vdl sim --kind power --seeds 40  worlds of one kind (`kinds.py`)

A failing seed prints the one command that runs it again. The same seed gives the same hash on any
machine, whatever Python's own hash seed is.

A seed *counts* if its world went through enough to be meaningful: elections, crashes and
acknowledgements after its birth. A seed that does not count is run and checked all the same, and
further seeds take its place. The totals of the last line cover the seeds that count.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from random import Random

from vdl.check import history
from vdl.sim.kinds import draw_of
from vdl.sim.options import Options
from vdl.sim.world import ACKNOWLEDGEMENTS_MIN, CRASHES_MIN, ELECTIONS_MIN, Outcome, World

VIOLATIONS_SHOWN = 10
TAIL_SHOWN = 60
RUNS_PER_SEED_MAX = 2
"""Limit on the seeds run for each one requested. Reaching it means that options are drawn badly."""
GC_THRESHOLDS = (50_000, 20, 20)
FRESH_SEEDS = 1 << 40
"""Fresh seeds are above this, so that they do not collide with seeds named by people."""


@dataclass(frozen=True, slots=True)
class Summary:
    """An outcome without its history, small enough to pass between processes."""

    seed: int
    kind: str
    options: str
    violations: tuple[str, ...]
    tail: tuple[str, ...]
    events: int
    faults: int
    crashes: int
    elections: int
    acknowledgements: int
    polled: int
    virtual_s: float
    cpu_s: float
    hash: str
    counts: bool

    @property
    def ok(self) -> bool:
        return not self.violations

    def line(self) -> str:
        verdict = "ok" if self.ok else f"{len(self.violations)} VIOLATIONS"
        if not self.counts:
            verdict += ", too quiet to count"
        return (
            f"seed {self.seed}: {verdict}; {self.events} events, {self.faults} faults, "
            f"{self.crashes} crashes, {self.elections} elections, "
            f"{self.acknowledgements} acknowledgements, {self.polled} records read, "
            f"{self.virtual_s:.1f} s in {self.cpu_s:.1f} s, trace {self.hash}"
        )


def run_seed(
    seed: int, *, kind: str = "", echo: bool = False, options: Options | None = None
) -> Outcome:
    """Run the world of a seed and return its outcome.

    `kind`: see `kinds`. `options` overrides the options drawn from the seed. Raises KeyError if
    there is no such kind.
    """
    name = f"{kind} {seed}" if kind else str(seed)
    drawn = options or draw_of(kind, Random(f"options {name}"))
    return World(seed, drawn, echo=echo).run()


def summarize(seed: int, *, kind: str = "") -> Summary:
    """Run a seed and return its summary.

    Defined at top level so that a process pool can call it.
    """
    began = time.process_time()
    outcome = run_seed(seed, kind=kind)
    found = summary(outcome, time.process_time() - began, kind)
    # A world is one reference cycle. Without an explicit collection hundreds of worlds pile up:
    # gigabytes, in which the next worlds take five times as long.
    del outcome
    gc.collect()
    return found


def summary(outcome: Outcome, cpu_s: float, kind: str) -> Summary:
    return Summary(
        seed=outcome.seed,
        kind=kind,
        options=outcome.options.describe(),
        violations=tuple(map(str, outcome.violations)),
        tail=tuple(outcome.trace.tail)[-TAIL_SHOWN:] if outcome.violations else (),
        events=outcome.events,
        faults=outcome.faults,
        crashes=outcome.crashes,
        elections=outcome.elections,
        acknowledgements=outcome.acknowledgements,
        polled=outcome.polled,
        virtual_s=outcome.virtual_ns / 1e9,
        cpu_s=cpu_s,
        hash=outcome.hash,
        counts=outcome.counts,
    )


def run_seeds(first: int, count: int, *, kind: str = "", processes: int = 0) -> Iterator[Summary]:
    """Run seeds from `first` on until `count` of them count; yield in order of completion.

    The set of seeds run depends only on the seeds: each round is as large as the number still
    missing after the round before.
    """
    end, runs_left = first, RUNS_PER_SEED_MAX * count
    with _Pool(processes, kind) as pool:
        while count > 0 and runs_left > 0:
            begin, end = end, end + min(count, runs_left)
            runs_left -= end - begin
            for result in pool.run(range(begin, end)):
                count -= result.counts
                yield result


def run_fresh(
    minutes: float, *, first: int = 0, kind: str = "", processes: int = 0
) -> Iterator[Summary]:
    """Run seeds that were never run before until the time is over; from `first` on, if given."""
    first = first or FRESH_SEEDS + time.time_ns() // 1_000_000
    sys.stdout.write(f"fresh seeds from {first}\n")
    sys.stdout.flush()
    until = time.monotonic() + minutes * 60
    with _Pool(processes, kind) as pool:
        yield from pool.run(takewhile(lambda _: time.monotonic() < until, itertools.count(first)))


def _begin_worker() -> None:
    """Set up a worker process.

    It collects garbage seldom, because a world consists of young objects. It exits when its parent
    exits for any reason.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    parent = multiprocessing.parent_process()
    assert parent is not None, "only workers receive seeds"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Pool:
    """Pool of fresh interpreters that run seeds.

    They are fresh because a world must not depend on modules its parent has loaded. With one
    process the seeds run in this interpreter.
    """

    def __init__(self, processes: int, kind: str) -> None:
        self._live: Callable[[int], Summary] = partial(summarize, kind=kind)
        self._processes = processes or os.cpu_count() or 1
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> _Pool:
        if self._processes > 1:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(
                self._processes, mp_context=context, initializer=_begin_worker
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(self, seeds: Iterable[int]) -> Iterator[Summary]:
        """Yield each seed's summary as it completes.

        Take the next seed when a worker has room for it.
        """
        if self._executor is None:
            yield from map(self._live, seeds)
            return
        left = iter(seeds)
        running: set[Future[Summary]] = set()
        while True:
            room = 2 * self._processes - len(running)
            running |= {self._executor.submit(self._live, seed) for seed in islice(left, room)}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda future: future.result().seed):
                yield future.result()


@dataclass(slots=True)
class Totals:
    """Sums over many seeds."""

    run: int = 0
    counted: int = 0
    events: int = 0
    faults: int = 0
    elections: int = 0
    acknowledgements: int = 0
    violations: int = 0
    cpu_s: float = 0.0

    def add(self, result: Summary) -> None:
        self.run += 1
        self.cpu_s += result.cpu_s
        self.violations += len(result.violations)
        if result.counts:
            self.counted += 1
            self.events += result.events
            self.faults += result.faults
            self.elections += result.elections
            self.acknowledgements += result.acknowledgements

    def lines(self) -> str:
        return (
            f"{self.counted} of {self.run} seeds count (at least {ELECTIONS_MIN} elections, "
            f"{CRASHES_MIN} crashes and {ACKNOWLEDGEMENTS_MIN} acknowledged batches each); "
            f"{self.cpu_s / max(1, self.run):.2f} CPU seconds a seed\n"
            f"{self.counted} seeds, {self.events} events, {self.faults} faults, "
            f"{self.elections} elections, {self.acknowledgements} acknowledgements, "
            f"{self.violations} violations\n"
        )


def main(
    *,
    seed: int | None = None,
    seeds: int = 1,
    first: int = 1,
    minutes: float = 0.0,
    kind: str = "",
    echo: bool = False,
    history_path: str = "",
) -> int:
    """Run the command. Return 0 if nothing was violated and enough seeds counted, else 1."""
    if seed is not None:
        return _one(seed, kind=kind, echo=echo, history_path=history_path)
    totals = Totals()
    fresh = run_fresh(minutes, kind=kind) if minutes else ()
    for result in itertools.chain(run_seeds(first, seeds, kind=kind), fresh):
        totals.add(result)
        sys.stdout.write(result.line() + "\n")
        if not result.ok:
            _show(result)
        sys.stdout.flush()
    sys.stdout.write(totals.lines())
    return 1 if totals.violations or totals.counted < seeds else 0


def _one(seed: int, *, kind: str, echo: bool, history_path: str) -> int:
    began = time.process_time()
    outcome = run_seed(seed, kind=kind, echo=echo)
    result = summary(outcome, time.process_time() - began, kind)
    sys.stdout.write(f"options: {result.options}\n{result.line()}\n")
    if history_path:
        with Path(history_path).open("w") as file:
            history.write(outcome.history, file)
    if not result.ok:
        _show(result)
    return 0 if result.ok else 1


def _show(result: Summary) -> None:
    """Print the last events, the violations and the command that runs the world again."""
    for line in result.tail:
        sys.stdout.write(f"    {line}\n")
    for violation in result.violations[:VIOLATIONS_SHOWN]:
        sys.stdout.write(f"  {violation}\n")
    if len(result.violations) > VIOLATIONS_SHOWN:
        sys.stdout.write(f"  … and {len(result.violations) - VIOLATIONS_SHOWN} more\n")
    sys.stdout.write(f"  again: {again(result.seed, result.kind)}\n")


def again(seed: int, kind: str) -> str:
    """Return the command that runs a world again."""
    return f"vdl sim --seed {seed}" + (f" --kind {kind}" if kind else "")
