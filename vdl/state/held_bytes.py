"""Estimated snapshot size of all groups of a table.

A command may change a group many times, and few commands need the sum. So a change only marks the
group as stale, and the next query measures the stale ones again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Sized(Protocol):
    """Something with a size."""

    @property
    def bytes(self) -> int: ...


class HeldBytes:
    """Lazily updated sum of sizes; see the module."""

    __slots__ = ("_sizes", "stale", "total")

    def __init__(self) -> None:
        self.total = 0
        """The sum of `_sizes`: the size of all, if none is stale."""
        self._sizes: dict[str, int] = {}
        """Size of each name when last measured."""
        self.stale: set[str] = set()
        """Names that were added, changed or removed since. Use: extended at every change."""

    def of(self, known: Mapping[str, Sized]) -> int:
        """Return the total size of `known`, the mapping that changes were recorded for."""
        for name in self.stale:
            one = known.get(name)
            now = 0 if one is None else one.bytes
            self.total += now - self._sizes.pop(name, 0)
            if now:
                self._sizes[name] = now
        self.stale.clear()
        return self.total

    def load(self, known: Mapping[str, Sized]) -> None:
        """Measure everything again."""
        self.stale = set()
        self._sizes = {name: one.bytes for name, one in known.items()}
        self.total = sum(self._sizes.values())
