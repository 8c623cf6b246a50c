"""The search for planted bugs: which worlds show one, and how many had to be looked at.

A mutation is looked for in two ways. *Full*: seeds 1, 2, 3, … up to a limit. *Recorded*: first the
seeds of `seeds.toml`, which found it before; what a seed does changes with the production code, so
when those miss, a bounded search from seed 1 follows. Either way one world without faults is lived
first, and must show nothing but what the patch says: a bug that any happy path meets proves nothing
about faults.

A finding counts only if the unmutated code passes the same seed: `false_alarms`.

Must not know: what the bugs are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.patches import HERE, ROOT, Mutation, PatchError, apply, copy_packages

WORKER = HERE / "worker.py"
QUIET_SEED = 1
BEHIND_MAX = 100
"""Where more than one finding is wanted: how far behind the first the others are looked for."""


class WorkerError(Exception):
    """The process that runs worlds broke down: the copy does not even start."""


@dataclass(frozen=True, slots=True)
class World:
    """What came of one seed. `ended` False: it ran for too long."""

    seed: int
    violations: tuple[str, ...]
    ended: bool

    @property
    def names(self) -> list[str]:
        """Names of its violations, in the order they were noticed."""
        return list(dict.fromkeys(text.partition(":")[0] for text in self.violations))


@dataclass(slots=True)
class Hunt:
    """What came of the search for one mutation."""

    mutation: Mutation
    tried: int = 0
    """Worlds looked at, the finding one included."""
    found: list[World] = field(default_factory=list)
    """Worlds that show it, in the order they were looked at."""
    unended: int = 0
    quiet: list[str] = field(default_factory=list)
    """Names of what the world without faults violated."""
    problem: str = ""
    """Why there was no search."""

    @property
    def is_found(self) -> bool:
        return bool(self.found)

    @property
    def complaint(self) -> str:
        """What is wrong, empty when all is as it should be."""
        if self.problem:
            return self.problem
        if not self.found:
            unended = f", {self.unended} of them did not end" if self.unended else ""
            return f"survived {self.tried} seeds{unended}"
        unexpected = [name for name in self.quiet if name not in self.mutation.quiet]
        if unexpected:
            return f"a world without faults shows {', '.join(unexpected)}"
        return ""


class Copies:
    """Copies of the production code as it was when the search began."""

    def __init__(self, directory: Path) -> None:
        self.clean = directory / "clean"
        self._directory = directory
        copy_packages(ROOT, self.clean)

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            tree = Path(name)
            copy_packages(self.clean, tree)
            apply(mutation, tree)
            yield tree


def live(tree: Path, seeds: Sequence[int], *, quiet: bool = False) -> Iterator[World]:
    """The worlds of `seeds` with the code in `tree`, as they end. Raises WorkerError."""
    command = [sys.executable, "-P", str(WORKER), str(tree)]
    command += ["--quiet"] if quiet else []
    command += [str(seed) for seed in seeds]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None, "a pipe was asked for"
            for line in process.stdout:
                world = json.loads(line)
                yield World(world["seed"], tuple(world["violations"]), world["ended"])
            if process.wait():
                errors.seek(0)
                raise WorkerError(errors.read()[-2_000:])
        finally:
            process.kill()


def hunt(copies: Copies, mutation: Mutation, seeds: Sequence[int], *, enough: int = 1) -> Hunt:
    """Look for one mutation in the worlds of `seeds`, in this order."""
    result = Hunt(mutation)
    try:
        with copies.mutated(mutation) as tree:
            (calm,) = live(tree, [QUIET_SEED], quiet=True)
            result.quiet = calm.names
            behind = 0
            for world in live(tree, seeds):
                if result.found:
                    behind += 1
                else:
                    result.tried += 1
                result.unended += not world.ended
                if world.violations:
                    result.found.append(world)
                if len(result.found) >= enough or behind >= BEHIND_MAX:
                    break
    except (PatchError, WorkerError) as error:
        result.problem = str(error)
    return result


def hunt_all(
    copies: Copies,
    work: Sequence[tuple[Mutation, Sequence[int]]],
    *,
    enough: int = 1,
    processes: int = 0,
) -> Iterator[Hunt]:
    """Every search, several at a time, in the order given."""
    with ThreadPoolExecutor(processes or os.cpu_count() or 1) as pool:
        futures = [pool.submit(hunt, copies, m, seeds, enough=enough) for m, seeds in work]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def false_alarms(copies: Copies, hunts: Sequence[Hunt]) -> list[World]:
    """Worlds of findings that the unmutated code does not pass either, and its quiet world."""
    seeds = sorted({world.seed for one in hunts for world in one.found})
    worlds = list(live(copies.clean, [QUIET_SEED], quiet=True))
    if seeds:
        worlds += live(copies.clean, seeds)
    return [world for world in worlds if world.violations or not world.ended]
