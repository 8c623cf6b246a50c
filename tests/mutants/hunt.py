"""Search for planted bugs: which simulated worlds show one, and how many had to be run.

A mutation is searched for in worlds of the kind that its patch names, or of all kinds, in two ways.
*Full*: seeds 1, 2, 3, … up to a limit. *Recorded*: first the seeds of `seeds.toml`, which found it
before. A seed's meaning changes with the production code, so when those miss, a bounded search from
seed 1 follows. The full search begins with one world without faults, in which clients must see no
error: a bug that any happy path shows proves nothing about faults.

A finding counts only if the unmutated code passes the same seed.

Does not depend on what the bugs are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol

from tests.mutants.patches import HERE, ROOT, Mutation, PatchError, apply, copy_packages, touched
from vdl.sim.run import again

WORKER = HERE / "worker.py"
# A copy: pytest changes the environment in one thread while others start processes.
ENVIRONMENT = dict(os.environ)
QUIET_SEED = 1
BEHIND_MAX = 10
"""Range behind the first finding in which further ones are searched for, if wanted."""


class WorkerError(Exception):
    """Raised when the process that runs worlds failed: the mutated copy does not even start."""


@dataclass(frozen=True, slots=True)
class World:
    """Result of one seed. `ended` is False if it exceeded its time limit."""

    seed: int
    violations: tuple[str, ...]
    ended: bool
    happy: bool
    """True if the clients' observations were correct."""
    cpu_s: float = 0.0
    """Processor time up to its first violation, or to its end."""

    @property
    def names(self) -> list[str]:
        """Return the names of its violations, in order of detection."""
        return list(dict.fromkeys(text.partition(":")[0] for text in self.violations))


@dataclass(slots=True)
class Hunt:
    """Result of the search for one mutation."""

    mutation: Mutation
    tried: int = 0
    """Number of worlds run, the finding one included."""
    found: list[World] = field(default_factory=list)
    """Worlds that show it, in the order of running."""
    unended: int = 0
    calm: World | None = None
    """The world without faults, if it was run."""
    problem: str = ""
    """Reason why there was no search."""

    @property
    def is_found(self) -> bool:
        return bool(self.found)

    @property
    def complaint(self) -> str:
        """Return the fault of this result; empty if there is none."""
        if self.problem:
            return self.problem
        if not self.found:
            unended = f", {self.unended} of them did not end" if self.unended else ""
            return f"survived {self.tried} seeds{unended}"
        if self.calm is None:
            return ""
        shown = ", ".join(self.calm.names)
        if not self.calm.happy:
            return f"breaks the happy path: {shown}"
        if shown and not self.mutation.quiet:
            return f"a world without faults shows {shown}: say why"
        return ""


class Live(Protocol):
    """Runs worlds with some code.

    `kind`: of that kind; `quiet`: without faults; `first`: up to the first violation only. Yields
    them as they end. Raises WorkerError.
    """

    def __call__(
        self, seeds: Sequence[int], *, kind: str = "", quiet: bool = False, first: bool = False
    ) -> Generator[World, None, None]: ...


class Copies:
    """Copies of the production code as of the start of the search. To be closed at the end."""

    def __init__(self, directory: Path, *, passed: Iterable[int] = ()) -> None:
        """Copy the code. `passed`: seeds of worlds of all kinds that this code is known to pass."""
        self.clean = directory / "clean"
        self._directory = directory
        copy_packages(ROOT, self.clean)
        (self.calm,) = live(self.clean, [QUIET_SEED], quiet=True)
        """Its world without faults.

        The bytecode that it compiled is copied with the code from now on.
        """
        self._passes = {("", seed): True for seed in passed}
        self._lock = Lock()
        self._idle: SimpleQueue[Warm] = SimpleQueue()

    def passes(self, seed: int, kind: str) -> bool:
        """Return True if the unmutated code passes the seed; each seed is run once."""
        with self._lock:
            if (kind, seed) not in self._passes:
                (world,) = live(self.clean, [seed], kind=kind)
                self._passes[kind, seed] = world.ended and not world.violations
            return self._passes[kind, seed]

    def failing(self) -> list[str]:
        """Return commands that reproduce violations of the unmutated code."""
        return sorted(
            again(seed, kind) for (kind, seed), passed in self._passes.items() if not passed
        )

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[Live]:
        """Yield a function that runs worlds with the mutation planted. Raises PatchError."""
        with tempfile.TemporaryDirectory(dir=self._directory) as name, self._warm() as warm:
            part, whole = Path(name, "part"), Path(name, "whole")
            sources: dict[str, str] = {}
            for file in touched(mutation):
                copy = part / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes((self.clean / file).read_bytes())
                sources[file.removesuffix(".py").replace("/", ".")] = str(copy)
            apply(mutation, part)
            if warm.takes(sources):
                yield partial(warm.live, sources)
                return
            copy_packages(self.clean, whole)
            apply(mutation, whole)
            yield partial(live, whole)

    @contextmanager
    def _warm(self) -> Iterator[Warm]:
        """Yield an idle process, or a new one."""
        try:
            warm = self._idle.get_nowait()
        except Empty:
            warm = Warm(self.clean)
        try:
            yield warm
        except BaseException:
            warm.end()
            raise
        self._idle.put(warm)

    def close(self) -> None:
        """End the idle processes."""
        while not self._idle.empty():
            self._idle.get().end()


class Warm:
    """Process with the unmutated code loaded, which runs worlds in children.

    The children have replaced functions. Loading the code took half of a search.
    """

    def __init__(self, tree: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), str(tree), "--warm"],
            cwd=tree, env={**ENVIRONMENT, "PYTHONPATH": str(tree)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def takes(self, sources: Mapping[str, str]) -> bool:
        """Return True if the files differ from the modules in bodies of functions only."""
        takes: bool = self._ask(asked(sources))["planted"]
        if takes:
            self._say("")
        return takes

    def live(
        self,
        sources: Mapping[str, str],
        seeds: Sequence[int],
        *,
        kind: str = "",
        quiet: bool = False,
        first: bool = False,
    ) -> Generator[World, None, None]:
        """See `Live`; `sources`: by module, the files to take the functions from."""
        question = asked(sources, kind=kind, quiet=quiet, first=first)
        assert self._ask(question)["planted"], "it took them before"
        try:
            for seed in seeds:
                yield _world(self._ask(seed))
        finally:
            self._say("")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None, "a pipe was asked for"
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._complaint()) from None

    def _ask(self, question: object) -> dict[str, Any]:
        self._say(json.dumps(question))
        assert self._process.stdout is not None, "a pipe was asked for"
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._complaint())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _complaint(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read()[-2_000:]


def asked(
    sources: Mapping[str, str], *, kind: str = "", quiet: bool = False, first: bool = False
) -> dict[str, object]:
    """Return the request to a warm process for running worlds: see `worker`."""
    return {"sources": sources, "kind": kind, "quiet": quiet, "first": first}


def live(
    tree: Path,
    seeds: Sequence[int],
    *,
    kind: str = "",
    quiet: bool = False,
    first: bool = False,
) -> Generator[World, None, None]:
    """See `Live`; with the code in `tree`, which is loaded anew."""
    command = [sys.executable, "-P", str(WORKER), str(tree)]
    command += ["--kind", kind, *["--quiet"] * quiet, *["--first"] * first]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tree)}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=tree, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdin is not None, "a pipe was asked for"
            assert process.stdout is not None, "a pipe was asked for"
            process.stdin.write(" ".join(map(str, seeds)))
            process.stdin.close()
            for line in process.stdout:
                yield _world(json.loads(line))
            if process.wait():
                errors.seek(0)
                raise WorkerError(errors.read()[-2_000:])
        finally:
            process.kill()


def _world(told: Mapping[str, Any]) -> World:
    return World(
        told["seed"], tuple(told["violations"]), told["ended"], told["happy"], told["cpu_s"]
    )


def hunt(
    copies: Copies,
    mutation: Mutation,
    seeds: Sequence[int],
    *,
    enough: int = 1,
    calm: bool = False,
    first: bool = False,
) -> Hunt:
    """Search for one mutation in the worlds of `seeds`, in this order.

    `calm`: and in one without faults; `first`: end each world at its first violation.
    """
    result = Hunt(mutation)
    try:
        with copies.mutated(mutation) as live_mutated:
            if calm:
                (result.calm,) = live_mutated([QUIET_SEED], quiet=True)
            with closing(live_mutated(seeds, kind=mutation.worlds, first=first)) as worlds:
                _look_at(worlds, copies, result, enough)
    except (PatchError, WorkerError) as error:
        result.problem = str(error)
    return result


def _look_at(worlds: Iterator[World], copies: Copies, result: Hunt, enough: int) -> None:
    behind = 0
    for world in worlds:
        if result.found:
            behind += 1
        else:
            result.tried += 1
        result.unended += not world.ended
        if world.violations and copies.passes(world.seed, result.mutation.worlds):
            result.found.append(world)
        if len(result.found) >= enough or behind >= BEHIND_MAX:
            return


def hunt_all(
    copies: Copies,
    work: Sequence[tuple[Mutation, Sequence[int]]],
    *,
    enough: int = 1,
    calm: bool = False,
    processes: int = 0,
) -> Iterator[Hunt]:
    """Yield every search's result in the given order; several run at a time."""
    with ThreadPoolExecutor(processes or os.cpu_count() or 1) as pool:
        futures = [
            pool.submit(hunt, copies, mutation, seeds, enough=enough, calm=calm, first=True)
            for mutation, seeds in work
        ]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
