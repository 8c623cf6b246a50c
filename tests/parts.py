"""Parts of long lists, which take turns in CI.

`make test` and CI run one part of each such list: the one that `PART` selects, a number drawn from
the name of the commit (.ci/stages.py). So two runs over the same code do the same, and the commits
of some days run everything. `make test PART=17` repeats a run, `make test PART=all` and pytest by
itself run whole lists.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

NUMBER = os.environ.get("PART", "all")


def parts_and_turn(parts: int) -> tuple[int, int]:
    """Return the number of parts, and the one whose turn it is; a single one for whole lists."""
    return (1, 0) if NUMBER == "all" else (parts, int(NUMBER) % parts)


def part_of(items: Sequence[Item], parts: int) -> list[Item]:
    """Return every `parts`-th item, from that on whose turn it is."""
    count, turn = parts_and_turn(parts)
    return list(items[turn::count])
