"""Differences between the answers of two clusters, and the list of known ones.

`known.toml` lists each difference that is intended, or not yet fixed, with its reason:

    [[difference]]
    where = "fetch: * / responses * aborted_transactions"
    kafka = ...                 # optional: only where Kafka's value is this one
    vdl = ...                   # optional: only where ours is this one
    reason = "..."

`where` is `SCENARIO: LABEL / PATH`, as a difference is printed, with `*` for any text. A difference
that no row matches fails the test, and so does a row that matches none: then it is fixed.

Does not depend on how requests were sent.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.differential.normal import Tree

KNOWN_FILE = Path(__file__).with_name("known.toml")
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the two answers differ."""

    where: str
    kafka: Tree
    vdl: Tree

    def __str__(self) -> str:
        return f"{self.where}: kafka {self.kafka!r}, vdl {self.vdl!r}"


@dataclass(slots=True)
class Known:
    """One row of the list."""

    where: str
    reason: str
    values: Mapping[str, Any]
    used: int = 0
    """Number of differences that it has matched."""

    def names(self, difference: Difference) -> bool:
        found = {"kafka": difference.kafka, "vdl": difference.vdl}
        pattern = ".*".join(map(re.escape, self.where.split("*")))
        return re.fullmatch(pattern, difference.where, re.DOTALL) is not None and all(
            found[side] == value for side, value in self.values.items()
        )

    @property
    def scenario(self) -> str:
        return self.where.partition(":")[0]


def load_known(path: Path = KNOWN_FILE) -> list[Known]:
    rows: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["difference"]
    return [Known(row.pop("where"), row.pop("reason"), row) for row in rows]


def differences(
    scenario: str, kafka: Mapping[str, Tree], vdl: Mapping[str, Tree]
) -> list[Difference]:
    """Return every difference, in the order of the requests."""
    return [
        found
        for label in dict.fromkeys([*kafka, *vdl])
        for found in _between(
            f"{scenario}: {label} /", kafka.get(label, MISSING), vdl.get(label, MISSING)
        )
    ]


def _between(where: str, one: Tree, other: Tree) -> Iterator[Difference]:
    """Yield the differences below `where`. A struct that only one of them has is one difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys([*one, *other]):
            values = one.get(name, MISSING), other.get(name, MISSING)
            yield from _between(f"{where} {name}", *values)
    elif one != other:
        yield Difference(where, _short(one), _short(other))


def _short(tree: Tree) -> Tree:
    """Return the form of a value in a difference: TOML has no null."""
    if isinstance(tree, dict):
        return "a struct"
    return "none" if tree is None else tree


def unlisted(found: Iterable[Difference], known: Iterable[Known]) -> list[Difference]:
    """Return the differences that no row matches; matching rows count them."""
    rows = list(known)
    left = []
    for difference in found:
        naming = [row for row in rows if row.names(difference)]
        for row in naming:
            row.used += 1
        if not naming:
            left.append(difference)
    return left
