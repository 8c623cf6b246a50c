"""Parameters of a question, checked: each is known, given once, and within its bounds.

Does not depend on questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from vdl.console.problems import ConsoleError

NAME_CHARS_MAX: Final = 32_767
INT64_MAX: Final = (1 << 63) - 1
PAGE_MAX: Final = 1_000_000
ROWS_MAX: Final = 200
ROWS_DEFAULT: Final = 50


class Parameters:
    """Texts by name."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        """`known`: names that may be given. Raises ConsoleError for another one."""
        for name in given:
            if name not in frozenset(known):
                raise ConsoleError("bad_request", f"{name[:40]}: unknown parameter")
        self._given = given

    def text(self, name: str, default: str | None = None, *, most: int = NAME_CHARS_MAX) -> str:
        """Return a text. Raises ConsoleError if it is too long, or missing without a default."""
        found = self._given.get(name, default)
        if found is None:
            raise ConsoleError("bad_request", f"{name}: required")
        if len(found) > most:
            raise ConsoleError("bad_request", f"{name}: expected at most {most} characters")
        return found

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return a number. Raises ConsoleError unless it is one from `low` to `high`."""
        if name not in self._given and default is not None:
            return default
        return integer(name, self.text(name, most=40), low, high)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return one of the texts allowed, by default the first. Raises ConsoleError."""
        found = self._given.get(name, allowed[0])
        if found not in allowed:
            raise ConsoleError("bad_request", f"{name}: expected {' or '.join(allowed)}")
        return found

    def boolean(self, name: str) -> bool:
        """Return True or False, by default False. Raises ConsoleError."""
        return self.choice(name, ("false", "true")) == "true"


def integer(name: str, text: str, low: int, high: int) -> int:
    """Return a number. Raises ConsoleError unless it is one from `low` to `high`."""
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not low <= int(text) <= high:
        raise ConsoleError("bad_request", f"{name}: expected a number from {low} to {high}")
    return int(text)


LIST: Final = ("page", "per_page", "search", "sort", "order")
"""Parameters of every list."""


class Listing:
    """The part of a list that was asked for."""

    def __init__(self, parameters: Parameters, sorts: tuple[str, ...]) -> None:
        """`sorts`: the columns by which it can be sorted, the default first."""
        self.page = parameters.integer("page", 1, PAGE_MAX, 1)
        self.per_page = parameters.integer("per_page", 1, ROWS_MAX, ROWS_DEFAULT)
        self.search = parameters.text("search", "", most=249).casefold()
        self.sort = parameters.choice("sort", sorts)
        self.is_descending = parameters.choice("order", ("asc", "desc")) == "desc"

    @property
    def place(self) -> slice:
        """The place of the page among all rows."""
        start = (self.page - 1) * self.per_page
        return slice(start, start + self.per_page)

    def info(self, total: int) -> dict[str, int]:
        """Return the `Page` of API.md."""
        return {
            "page": self.page,
            "per_page": self.per_page,
            "pages": -(-total // self.per_page),
            "total": total,
        }

    def finds(self, text: str) -> bool:
        """Return True if a row with this text is searched for."""
        return self.search in text.casefold()

    def choose(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Sort rows by the column, and return those of the page. The first column decides among
        equals, so the rows must come in its order."""
        rows.sort(key=lambda row: row[self.sort], reverse=self.is_descending)
        return rows[self.place]


def long(number: int | None) -> str | None:
    """Return a number of 64 bits as JSON has it here: digits, because browsers keep 53 bits."""
    return None if number is None else str(number)
