"""Mutations: bugs planted on purpose, each in a private copy of the production code.

A mutation is a patch file, `NN-name.patch`: a sentence that states the planted bug and the rule
that it breaks, then a unified diff with one line of context. It is applied to a copy of the
packages in a temporary directory, never to the tree it came from.

A planted bug must leave the happy path alone: in a world without faults, clients produce and
consume as usual. The simulator may see it even there, because it checks the disks and every replica
and not only the clients' results; then a line gives the reason: `Quiet: why`.

Most bugs show in worlds of all kinds. One that needs several of the same faults is searched for in
worlds of one kind (`vdl/sim/kinds.py`), which a line names: `Worlds: power`.

Does not depend on how a mutated copy is run, nor on what finds it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from vdl.sim.kinds import KINDS

HERE = Path(__file__).resolve().parent
UNSEEN = HERE / "unseen"
"""Mutations that no seed has found yet: blind spots of the simulator."""

ROOT = HERE.parents[1]
PACKAGES = ("ids", "raft", "rpc", "segments", "vdl")
"""Packages needed by a simulated world."""

FILE_NAME = re.compile(r"(\d{2,3})-([a-z0-9-]+)\.patch")
CITATION = re.compile(r"§|Figure 2|RELIABILITY|segments/README|KIP-\d|KAFKA-\d")
WORLDS, QUIET = "Worlds: ", "Quiet: "


class PatchError(Exception):
    """Raised when a patch file is malformed, or no longer applies."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug.

    `worlds`: the kind of worlds in which it is searched for, empty for all kinds; `quiet`: why a
    world without faults shows it, empty when none does.
    """

    number: int
    name: str
    sentence: str
    worlds: str
    quiet: str
    path: Path


def load(path: Path) -> Mutation:
    """Load a patch file. Raises PatchError."""
    match = FILE_NAME.fullmatch(path.name)
    if match is None:
        raise PatchError(f"{path.name}: not NN-name.patch")
    head, separator, _ = path.read_text(encoding="utf-8").partition("--- a/")
    lines = head.splitlines()
    if not separator or not lines:
        raise PatchError(f"{path.name}: a sentence, then the diff")
    told = {WORLDS: "", QUIET: ""}
    for line in lines[1:]:
        key = next((key for key in told if line.startswith(key) and not told[key]), None)
        if key is None:
            raise PatchError(f"{path.name}: below the sentence, only `{WORLDS}` and `{QUIET}`")
        told[key] = line.removeprefix(key)
    if told[WORLDS] and told[WORLDS] not in KINDS:
        raise PatchError(f"{path.name}: there are no worlds of kind {told[WORLDS]}")
    return Mutation(int(match[1]), match[2], lines[0], told[WORLDS], told[QUIET], path)


def load_all(directory: Path = HERE) -> list[Mutation]:
    """Return every mutation, by number."""
    found = [load(path) for path in sorted(directory.glob("*.patch"))]
    return sorted(found, key=lambda mutation: mutation.number)


def touched(mutation: Mutation) -> list[str]:
    """Return the files that its patch changes, as paths from the root."""
    lines = mutation.path.read_text(encoding="utf-8").splitlines()
    return sorted({line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")})


def copy_packages(source: Path, target: Path) -> None:
    """Copy the packages in their current state, with their compiled bytecode."""
    for package in PACKAGES:
        shutil.copytree(source / package, target / package)


def apply(mutation: Mutation, tree: Path) -> None:
    """Plant the bug in `tree`. Raises PatchError when its context no longer exists."""
    command = ["git", "apply", "-p1", "--whitespace=nowarn", str(mutation.path)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PatchError(f"{mutation.path.name}: {done.stderr.strip()}")
