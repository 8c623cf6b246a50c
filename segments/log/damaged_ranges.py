"""Ranges of a log's entries that are known to be damaged.

Must not know: how they are found or repaired.
"""

from __future__ import annotations

from collections.abc import Iterable

from ids import NO_INDEX, Index


class DamagedRanges:
    """Ranges [first, end), ascending, apart from each other."""

    __slots__ = ("ranges", "repairs")

    def __init__(self) -> None:
        self.ranges: tuple[tuple[Index, Index], ...] = ()
        self.repairs = 0
        """What was read before a repair says nothing about what is there after it."""

    def __contains__(self, index: Index) -> bool:
        return any(first <= index < end for first, end in self.ranges)

    def add(self, first: Index, end: Index) -> None:
        merged: list[tuple[Index, Index]] = []
        for a, b in sorted([*self.ranges, (first, end)]):
            if merged and a <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], b)
            else:
                merged.append((a, b))
        self.ranges = tuple(merged)

    def repaired(self, indexes: Iterable[Index]) -> None:
        """These entries are good again."""
        self.repairs += 1
        for index in indexes:
            self._cut(index, index + 1)

    def trim(self, first_index: Index) -> None:
        """Entries below are gone."""
        self._cut(NO_INDEX, first_index)

    def clear(self) -> None:
        self.ranges = ()

    def _cut(self, first: Index, end: Index) -> None:
        left: list[tuple[Index, Index]] = []
        for a, b in self.ranges:
            left += [(a, min(b, first)), (max(a, end), b)]
        self.ranges = tuple((a, b) for a, b in left if a < b)
