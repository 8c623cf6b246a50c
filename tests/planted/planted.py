"""Bugs planted on purpose that a unit test must catch: the lessons of public vulnerabilities.

    python -m tests.planted.planted [--only NAME...]        each of them

One is a patch file, `NN-name.patch`: a sentence that names the CVE and states the planted bug; a
line `Test: FILE::NAME` with the test that must fail then; a unified diff with one line of context.
It is applied to a copy of the packages and of the unit tests, never to the tree it came from. All
those tests pass in the copy before anything is planted.

Does not depend on what the bugs are.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ("ids", "raft", "rpc", "segments", "vdl")
COPIED = (
    *PACKAGES,
    "tests/unit",
    "tests/conftest.py",
    "tests/hangs.py",
    "tests/parts.py",
    "tests/wire.py",
    "pyproject.toml",
    "docs",
)
TEST = "Test: "
FILE_NAME = re.compile(r"(\d{2})-([a-z0-9-]+)\.patch")
_SECONDS_MAX = 300
_FAILED = 1
"""pytest's exit status when tests ran and some failed; a load error has another one."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted bug."""

    number: int
    name: str
    sentence: str
    test: str
    path: Path

    @property
    def files(self) -> list[str]:
        """Return the files that it changes."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def load_all() -> list[Planted]:
    """Return all planted bugs, by number. Raises ValueError for a malformed file."""
    found = []
    for path in sorted(HERE.glob("*.patch")):
        match = FILE_NAME.fullmatch(path.name)
        sentence, test, *_ = path.read_text(encoding="utf-8").splitlines()
        if match is None or not test.startswith(TEST):
            raise ValueError(f"{path.name}: NN-name.patch, a sentence, and `{TEST}FILE::NAME`")
        found.append(Planted(int(match[1]), match[2], sentence, test.removeprefix(TEST), path))
    return found


def copy_tree(target: Path) -> None:
    """Copy the files that the tests need, in their current state."""
    ignore = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    for name in COPIED:
        source = ROOT / name
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy2(source, target / name)


def plant(one: Planted, tree: Path) -> None:
    """Apply its patch. Raises ValueError when its context no longer exists."""
    _git_apply(one, tree, ())


def take_out(one: Planted, tree: Path) -> None:
    """Revert its patch."""
    _git_apply(one, tree, ("--reverse",))


def _git_apply(one: Planted, tree: Path, options: tuple[str, ...]) -> None:
    command = ["git", "apply", "-p1", "--whitespace=nowarn", *options, str(one.path)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{one.path.name}: {done.stderr.strip()}")


def run_tests(tree: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run the tests up to the first that fails."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    # Whole lists: a test that takes turns catches its bug whosever turn it is.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PART": "all"}
    return subprocess.run(
        command,
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_MAX,
    )


def survivors(some: list[Planted], tree: Path) -> Iterator[tuple[Planted, str]]:
    """Yield each bug with the reason why its test did not catch it; empty if it did.

    Works in a copy of the tree.
    """
    for one in some:
        plant(one, tree)
        done = run_tests(tree, [one.test])
        take_out(one, tree)
        yield one, "" if done.returncode == _FAILED else done.stdout[-2_000:] or done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description="Have unit tests catch planted bugs.")
    parser.add_argument("--only", nargs="*", default=[], help="names, or parts of them")
    only = parser.parse_args().only
    some = [one for one in load_all() if not only or any(part in one.path.name for part in only)]
    with tempfile.TemporaryDirectory(prefix="vdl-planted-") as name:
        tree = Path(name)
        copy_tree(tree)
        clean = run_tests(tree, sorted({one.test for one in some}))
        if clean.returncode:
            print(clean.stdout)
            return 1
        count = 0
        before = time.monotonic()
        for one, complaint in survivors(some, tree):
            count += bool(complaint)
            now = time.monotonic()
            outcome = "SURVIVED" if complaint else "caught"
            print(f"{one.path.stem:<44}{outcome:>9}{now - before:7.1f} s", flush=True)
            if complaint:
                print(complaint)
            before = now
    print(f"{len(some) - count} of {len(some)} caught")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
