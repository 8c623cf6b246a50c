"""Parts of long lists of tests, which take turns in CI.

`make test` and CI run one part of each such list: the one that `PART` selects, a number drawn from
the name of the commit (.ci/stages.py). So two runs over the same code do the same, and the commits
of some days run everything. `make test PART=17` repeats a run, `make test PART=all` and pytest by
itself run whole lists.

A list is the tests of a file that are marked `takes_turns(parts=N)`, or a sequence of a test's own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest

Item = TypeVar("Item")


def parts_and_turn(parts: int) -> tuple[int, int]:
    """Return the number of parts, and the one whose turn it is; a single one for whole lists."""
    number = os.environ.get("PART", "all")
    return (1, 0) if number == "all" else (parts, int(number) % parts)


def part_of(items: Sequence[Item], parts: int) -> list[Item]:
    """Return every `parts`-th item, from that on whose turn it is."""
    count, turn = parts_and_turn(parts)
    return list(items[turn::count])


def without_turn(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests marked `takes_turns` whose turn it is not.

    A mark of a test or of its file may be repeated: the nearest one holds.
    """
    marked: Counter[tuple[Path, int]] = Counter()
    found: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("takes_turns")
        if mark is None:
            continue
        parts: int = mark.kwargs["parts"]
        count, turn = parts_and_turn(parts)
        # Files begin at different turns: otherwise the only test of each would run in the first.
        if (crc32(item.path.name.encode()) + marked[item.path, parts]) % count != turn:
            found.append(item)
        marked[item.path, parts] += 1
    return found
