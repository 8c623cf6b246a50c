"""Run the transcripts and tables of a folder: `python -m tests.conformance.run [FOLDER]`.

Prints every difference, then `N passed, N failed`; exits 1 if any failed. A transcript counts as
one case, and so does each row of a table.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.interaction import Cluster, without_log_lines
from tests.conformance.script import Block, blocks
from tests.conformance.tables import Changer, run_quorum

DEFAULT_FOLDER = Path(__file__).parents[2].parent / "shared" / "raft-conformance"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one case came to; no differences: passed."""

    name: str
    differences: list[str]


def run_folder(folder: Path) -> Iterator[Outcome]:
    """All cases of a folder with `interaction`, `quorum` and `confchange` in it."""
    for path in _files(folder, "interaction"):
        yield run_transcript(path)
    for path in _files(folder, "quorum"):
        for block in blocks(path):
            yield _compared(path, block, run_quorum(block))
    for path in _files(folder, "confchange"):
        changer = Changer()
        for block in blocks(path):
            yield _compared(path, block, changer.run(block))


def run_transcript(path: Path) -> Outcome:
    """One scripted cluster. State lives through the whole file."""
    cluster = Cluster()
    differences: list[str] = []
    for block in blocks(path):
        output = cluster.run(block)
        differences += _differences(block, without_log_lines(block.expected), output)
    return Outcome(path.stem, differences)


def _files(folder: Path, kind: str) -> list[Path]:
    files = sorted((folder / kind).glob("*.txt"))
    if not files:
        raise FileNotFoundError(f"no conformance data in {folder / kind}")
    return files


def _compared(path: Path, block: Block, output: list[str]) -> Outcome:
    return Outcome(f"{path.stem}:{block.line}", _differences(block, block.expected, output))


def _differences(block: Block, expected: list[str], actual: list[str]) -> list[str]:
    if actual == expected:
        return []
    lines = difflib.unified_diff(expected, actual, "expected", "actual", lineterm="", n=2)
    return [f"line {block.line}: {block.command}", *lines]


def main(arguments: list[str]) -> int:
    """Run and report."""
    passed = failed = 0
    for outcome in run_folder(Path(arguments[0]) if arguments else DEFAULT_FOLDER):
        if outcome.differences:
            failed += 1
            print(f"FAILED {outcome.name}", *outcome.differences, sep="\n")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
