"""Ranges of a log's entries that are known to be damaged.

Must not know: how they are found or repaired.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from ids import NO_INDEX, Index


class DamagedRanges:
    """Ranges [first, end), ascending, apart from each other. A bad medium may bring many thousands:
    each change and each look-up is a search."""

    __slots__ = ("_ends", "_firsts", "_ranges", "repairs")

    def __init__(self) -> None:
        self._firsts: list[Index] = []
        self._ends: list[Index] = []
        """Invariant: range n is [`_firsts[n]`, `_ends[n]`), and `_ends[n]` < `_firsts[n + 1]`."""
        self._ranges: tuple[tuple[Index, Index], ...] | None = ()
        """As they were last asked for; None: something has changed."""
        self.repairs = 0
        """What was read before a repair says nothing about what is there after it."""

    @property
    def ranges(self) -> tuple[tuple[Index, Index], ...]:
        if self._ranges is None:
            self._ranges = tuple(zip(self._firsts, self._ends, strict=True))
        return self._ranges

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, index: Index) -> bool:
        return self.covers(index, index + 1)

    def covers(self, first: Index, end: Index) -> bool:
        """Every entry of [first, end), which is not empty, is known to be damaged."""
        assert first < end, (first, end)
        place = bisect_right(self._firsts, first) - 1
        return place >= 0 and end <= self._ends[place]

    def add(self, first: Index, end: Index) -> None:
        if first >= end:
            return
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:  # those that it touches
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._put(low, high, [(first, end)])

    def repaired(self, indexes: Iterable[Index]) -> None:
        """These entries are good again."""
        self.repairs += 1
        for index in indexes:
            self.cut(index, index + 1)

    def trim(self, first_index: Index) -> None:
        """Entries below are gone."""
        self.cut(NO_INDEX, first_index)

    def clear(self) -> None:
        self._put(0, len(self._firsts), [])

    def cut(self, first: Index, end: Index) -> None:
        """Of the entries of [first, end) none is damaged."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if low < high:
            left = [(self._firsts[low], first), (end, self._ends[high - 1])]
            self._put(low, high, [(a, b) for a, b in left if a < b])

    def _put(self, low: int, high: int, ranges: list[tuple[Index, Index]]) -> None:
        """Let `ranges` take the place of those from number `low` on, up to `high`."""
        self._firsts[low:high] = [first for first, _ in ranges]
        self._ends[low:high] = [end for _, end in ranges]
        self._ranges = None
