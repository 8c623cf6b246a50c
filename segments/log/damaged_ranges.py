"""Ranges of a log's entries that are known to be damaged.

Does not depend on how damage is found or repaired.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from ids import NO_INDEX, Index


class DamagedRanges:
    """Ascending, disjoint ranges [first, end).

    A bad medium may cause many thousands, so each look-up is a binary search.
    """

    __slots__ = ("_ends", "_firsts", "_ranges", "repairs")

    def __init__(self) -> None:
        self._firsts: tuple[Index, ...] = ()
        self._ends: tuple[Index, ...] = ()
        """Invariant: range n is [`_firsts[n]`, `_ends[n]`), and `_ends[n]` < `_firsts[n + 1]`."""
        self._ranges: tuple[tuple[Index, Index], ...] | None = ()
        """Cached result of `ranges`; None after a change."""
        self.repairs = 0
        """Number of repairs. Data read before a repair may differ from what is there after it."""

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
        """Return True if every entry of the non-empty range [first, end) is known to be damaged."""
        assert first < end, (first, end)
        place = bisect_right(self._firsts, first) - 1
        return place >= 0 and end <= self._ends[place]

    def add(self, first: Index, end: Index) -> None:
        if first >= end:
            return
        low, high = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if low < high:  # ranges that overlap or touch
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._put(low, high, [(first, end)])

    def repaired(self, indexes: Iterable[Index]) -> None:
        """Remove entries that were repaired."""
        self.repairs += 1
        for index in indexes:
            self.cut(index, index + 1)

    def trim(self, first_index: Index) -> None:
        """Remove entries below `first_index`, which no longer exist."""
        self.cut(NO_INDEX, first_index)

    def clear(self) -> None:
        self._put(0, len(self._firsts), [])

    def cut(self, first: Index, end: Index) -> None:
        """Remove the entries of [first, end)."""
        low, high = bisect_right(self._ends, first), bisect_left(self._firsts, end)
        if low < high:
            left = [(self._firsts[low], first), (end, self._ends[high - 1])]
            self._put(low, high, [(a, b) for a, b in left if a < b])

    def _put(self, low: int, high: int, ranges: list[tuple[Index, Index]]) -> None:
        """Replace the ranges from number `low` up to `high` by `ranges`."""
        firsts, ends = [first for first, _ in ranges], [end for _, end in ranges]
        self._firsts = (*self._firsts[:low], *firsts, *self._firsts[high:])
        self._ends = (*self._ends[:low], *ends, *self._ends[high:])
        self._ranges = None
