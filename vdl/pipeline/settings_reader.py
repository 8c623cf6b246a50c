"""Reader of settings in a TOML file that finds every problem of a file, not only the first.

Does not depend on which settings exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Reader:
    """Takes values out of sections and records missing, wrong or unknown ones."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)
        self._taken: dict[str, set[str]] = {}
        self.problems: list[str] = []

    def has(self, section: str) -> bool:
        return section in self._data

    def _take(self, section: str, key: str, default: Any, kind: type, what: str) -> Any:
        self._taken.setdefault(section, set()).add(key)
        table = self._data.get(section, {})
        if not isinstance(table, Mapping):
            return kind() if default is None else default
        if key not in table:
            if default is None:
                self.problems.append(f"{section}.{key}: is required")
                return kind()
            return default
        value = table[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind):
            self.problems.append(f"{section}.{key}: must be {what}")
            return default if default is not None else kind()
        return value

    def text(self, section: str, key: str, default: str | None = None) -> str:
        return str(self._take(section, key, default, str, "text"))

    def number(self, section: str, key: str, default: float) -> float:
        found = float(self._take(section, key, float(default), float, "a number"))
        if math.isfinite(found):
            return found
        self.problems.append(f"{section}.{key}: must be finite")
        return float(default)

    def count(self, section: str, key: str, default: int) -> int:
        found = self.number(section, key, default)
        if not found.is_integer():
            self.problems.append(f"{section}.{key}: must be an integer")
        return int(found)

    def texts(self, section: str, key: str, default: list[str] | None = None) -> list[str]:
        found = self._take(section, key, default, list, "a list of strings")
        if not all(isinstance(value, str) for value in found):
            self.problems.append(f"{section}.{key}: must be a list of strings")
        return [str(value) for value in found]

    def rows(self, section: str, key: str) -> list[str]:
        """Return the tables of a list, each as the name of a section to read it by."""
        found = self._take(section, key, [], list, "a list of tables")
        return [
            place
            for n, row in enumerate(found, 1)
            for place in self._inner(f"{section}.{key}[{n}]", row)
        ]

    def tables(self, section: str, key: str) -> dict[str, str]:
        """Return name → the section to read that table by."""
        found = self._take(section, key, {}, dict, "a table")
        return {
            str(name): place
            for name, row in found.items()
            for place in self._inner(f"{section}.{key}.{name}", row)
        }

    def _inner(self, place: str, row: Any) -> list[str]:
        """Return a section for the table, or none if `row` is no table."""
        if not isinstance(row, Mapping):
            self.problems.append(f"{place}: must be a table")
            return []
        self._data[place] = row
        return [place]

    def mapping(self, section: str, key: str) -> dict[str, str]:
        found = self._take(section, key, {}, dict, "a table")
        return self._settings(f"{section}.{key}", found)

    def whole(self, section: str) -> dict[str, str]:
        found = self._data.get(section, {})
        known = found if isinstance(found, Mapping) else {}
        self._taken[section] = set(known)
        return self._settings(section, known)

    def _settings(self, place: str, found: Mapping[str, Any]) -> dict[str, str]:
        for name, value in found.items():
            if isinstance(value, Mapping | list):
                self.problems.append(
                    f"{place}.{name}: must be one value; quote a name that has dots"
                )
        return {str(name): _plain(value) for name, value in found.items()}

    def finish(self) -> None:
        """Record settings that were not read: a misspelt setting must not be ignored."""
        for section, table in self._data.items():
            if section not in self._taken:
                self.problems.append(f"{section}: unknown section")
            elif not isinstance(table, Mapping):
                self.problems.append(f"{section}: must be a table")
            else:
                unknown = sorted(set(table) - self._taken[section])
                self.problems += [f"{section}.{key}: unknown setting" for key in unknown]


def _plain(value: Any) -> str:
    """Return a TOML value as Spark's settings have them."""
    return str(value).lower() if isinstance(value, bool) else str(value)
