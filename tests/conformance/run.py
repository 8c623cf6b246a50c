"""Run the transcripts and tables of a folder: `python -m tests.conformance.run [FOLDER]`.

Prints every difference, then `N passed, N failed`; exits 1 if any failed, 2 if there is no data. A
transcript counts as one case, and so does each row of a table.

The folder has the folders `interaction`, `quorum` and `confchange`, or is a clone of etcd-io/raft.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.interaction import Cluster, without_log_lines
from tests.conformance.script import Block, blocks
from tests.conformance.tables import Changer, run_quorum

DEFAULT_FOLDER = Path(__file__).parents[2].parent / "shared" / "raft-conformance"
PLACES = {
    "interaction": ("interaction", "testdata"),
    "quorum": ("quorum", "quorum/testdata"),
    "confchange": ("confchange", "confchange/testdata"),
}
"""Kind -> location of its files: in a folder of the data alone, and in a clone of etcd-io/raft."""
HOW_TO_GET_IT = "git clone https://github.com/etcd-io/raft, and set RAFT_CONFORMANCE to that folder"


class NoData(Exception):
    """Raised when a folder lacks the files of a kind."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one case; without differences it passed."""

    name: str
    differences: list[str]


def data_folder() -> Path:
    """Return the folder that RAFT_CONFORMANCE names, or else the one beside the repository."""
    return Path(os.environ.get("RAFT_CONFORMANCE") or DEFAULT_FOLDER)


def run_folder(folder: Path) -> Iterator[Outcome]:
    """Yield all cases of a folder. Raises NoData if it lacks a kind."""
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
    """Run one scripted cluster, whose state persists through the file."""
    cluster = Cluster()
    differences: list[str] = []
    for block in blocks(path):
        output = cluster.run(block)
        differences += _differences(block, without_log_lines(block.expected), output)
    return Outcome(path.stem, differences)


def _files(folder: Path, kind: str) -> list[Path]:
    for place in PLACES[kind]:
        files = sorted((folder / place).glob("*.txt"))
        if files:
            return files
    raise NoData(f"no conformance data ({kind}) in {folder}: {HOW_TO_GET_IT}")


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
    try:
        for outcome in run_folder(Path(arguments[0]) if arguments else data_folder()):
            if outcome.differences:
                failed += 1
                print(f"FAILED {outcome.name}", *outcome.differences, sep="\n")
            else:
                passed += 1
    except NoData as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
