"""Comparison of a table's columns with those of new rows.

Columns are compared by name. Rows may have columns that the table does not have yet, in any place,
and wider types of the same kind: the table grows. Any other difference would change existing data,
or leave it without a value, so it stops the job, and each difference is named.

Columns are kept as text, a line `name: type` for each, with types as Arrow writes them.

Does not depend on table formats.
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
"""Type → wider types that hold each of its values and that readers of both can read."""
DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")


@dataclass(frozen=True, slots=True)
class Change:
    """Difference between rows and a table.

    `added` and `widened`: lines of columns; `breaking`: sentences, none if the rows fit.
    """

    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    breaking: tuple[str, ...] = ()


def schema_lines(arrow_schema: Any) -> str:
    """Return the columns of an Arrow schema as text."""
    return "\n".join(f"{f.name}: {f.type}" for f in arrow_schema)


def types_of(lines: str) -> dict[str, str]:
    """Return column → type, in order."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        name, _, kind = line.partition(": ")
        found[name] = kind
    return found


def change_of(known: str, found: str) -> Change:
    """Return the change from a table's columns to those of rows.

    A table without any accepts all.
    """
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
        f"{name} ({kind}) is in the table but not in the rows"
        for name, kind in old.items()
        if name not in new
    ]
    return Change(tuple(added), tuple(widened), tuple(breaking))


def problem_of(change: Change) -> str:
    """Return the breaking changes as text; "" if there are none."""
    return f"its columns have changed: {'; '.join(change.breaking)}" if change.breaking else ""


def grown(known: str, change: Change) -> str:
    """Return the table's columns after the change: its own in order, then new ones."""
    types = types_of(known) | types_of("\n".join(change.widened + change.added))
    return "\n".join(f"{name}: {kind}" for name, kind in types.items())


def digits_of(kind: str) -> int:
    """Return the number of digits after the decimal point; 0 for other types."""
    found = DECIMAL.fullmatch(kind)
    return int(found[2]) if found else 0


def is_wider(kind: str, *, than: str) -> bool:
    """Return True if the type has room for each value of `than`, which is another type."""
    old, new = DECIMAL.fullmatch(than), DECIMAL.fullmatch(kind)
    if old is not None and new is not None:
        precision, scale = int(new[1]) - int(old[1]), int(new[2]) - int(old[2])
        return scale >= 0 and precision >= scale
    return kind in WIDER.get(than, ())
