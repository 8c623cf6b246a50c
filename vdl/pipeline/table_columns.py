"""Columns of a table beside those of the rows that are to come in: what fits, and what does not.

Columns are compared by name. Rows may have columns that the table does not have yet, in any place,
and wider types of the same kind: the table grows. Everything else would change what is there
already, or leave it without a value, so it stops the job, and each difference is named.

Columns are kept as text, a line `name: type` for each, types as Arrow writes them.

Must not know: formats of tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WIDER: Mapping[str, tuple[str, ...]] = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "float": ("double",),
}
"""Type → those that hold each of its values, and that readers of both find."""
DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")


@dataclass(frozen=True, slots=True)
class Change:
    """What rows bring to a table. `added` and `widened`: lines of columns; `breaking`: sentences,
    none where the rows fit."""

    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    breaking: tuple[str, ...] = ()


def schema_lines(arrow_schema: Any) -> str:
    """The columns of an Arrow schema as text."""
    return "\n".join(f"{f.name}: {f.type}" for f in arrow_schema)


def types_of(lines: str) -> dict[str, str]:
    """Column → type, in order."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        name, _, kind = line.partition(": ")
        found[name] = kind
    return found


def change_of(known: str, found: str) -> Change:
    """From a table's columns to those of rows; a table without any takes all."""
    if not known or known == found:
        return Change()
    old, new = types_of(known), types_of(found)
    folded = {name.lower(): name for name in old}
    added, widened, breaking = [], [], []
    for name, kind in new.items():
        if name in old:
            if kind == old[name]:
                continue
            if is_wider(kind, than=old[name]):
                widened.append(f"{name}: {kind}")
            else:
                breaking.append(f"{name} is {old[name]} in the table and {kind} in the rows")
        elif name.lower() in folded:
            breaking.append(f"{name} is {folded[name.lower()]} in the table")
        else:
            added.append(f"{name}: {kind}")
    breaking += [
        f"{name} ({kind}) is in the table and not in the rows"
        for name, kind in old.items()
        if name not in new
    ]
    return Change(tuple(added), tuple(widened), tuple(breaking))


def problem_of(change: Change) -> str:
    """In words; "" where there is none."""
    return f"its columns have changed: {'; '.join(change.breaking)}" if change.breaking else ""


def grown(known: str, change: Change) -> str:
    """The table's columns after rows with this change: its own in their order, new ones behind."""
    types = types_of(known) | types_of("\n".join(change.widened + change.added))
    return "\n".join(f"{name}: {kind}" for name, kind in types.items())


def digits_of(kind: str) -> int:
    """Behind the point; 0 of what is no decimal."""
    found = DECIMAL.fullmatch(kind)
    return int(found[2]) if found else 0


def is_wider(kind: str, *, than: str) -> bool:
    """Whether it has room for each value of the other, which is another."""
    old, new = DECIMAL.fullmatch(than), DECIMAL.fullmatch(kind)
    if old is not None and new is not None:
        precision, scale = int(new[1]) - int(old[1]), int(new[2]) - int(old[2])
        return scale >= 0 and precision >= scale
    return kind in WIDER.get(than, ())
