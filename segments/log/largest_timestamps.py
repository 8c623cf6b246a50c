"""Largest timestamps of a log's sealed segments, so that a look-up by time need not read each.

Clients set timestamps, so they come in any order and a list of them cannot be bisected. A tree can:
each level holds the larger of every two neighbours of the level below. The search for the first
segment from some position on with at least a given time goes up until a block has it, and down
again into the first half that does: twice the logarithm of the number of segments. A new segment
changes one number per level. Trimmed segments stay in the tree until they are half of it; then the
rest moves up. Their values are never read, because a look-up gives its start position.

The timestamp of a segment from an earlier run is UNKNOWN, later than all, until it is looked up.

Does not depend on files, entries or readers.
"""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = 1 << 63


class LargestTimestamps:
    """Tree of timestamps by position; 0 is the oldest existing segment."""

    __slots__ = ("_gone", "_levels")

    def __init__(self, values: Sequence[int] = ()) -> None:
        self._gone = 0
        """Number of dropped values that are still at the beginning of the tree."""
        self._levels: list[list[int]] | None = None
        """None before the first value: most logs of a large set have none."""
        if values:
            self._build(list(values))

    def __len__(self) -> int:
        return 0 if self._levels is None else len(self._levels[0]) - self._gone

    def __getitem__(self, position: int) -> int:
        assert position >= 0, position
        assert self._levels is not None, position
        return self._levels[0][self._gone + position]

    def __setitem__(self, position: int, value: int) -> None:
        assert 0 <= position < len(self), (position, len(self))
        assert self._levels is not None, position
        self._levels[0][self._gone + position] = value
        self._settle(self._gone + position)

    def append(self, value: int) -> None:
        if self._levels is None:
            self._levels = [[]]
        self._levels[0].append(value)
        self._settle(len(self._levels[0]) - 1)

    def drop(self, count: int) -> None:
        """Drop the oldest `count` values."""
        assert 0 <= count <= len(self), (count, len(self))
        if self._levels is None:
            return
        self._gone += count
        if 2 * self._gone > len(self._levels[0]):
            left = self._levels[0][self._gone :]
            self._gone = 0
            self._build(left)

    def join(self, position: int, count: int) -> None:
        """Replace `count` values from `position` on by their maximum."""
        assert 0 < count <= len(self) - position, (position, count, len(self))
        if count > 1 and self._levels is not None:
            left = self._levels[0][self._gone :]
            left[position : position + count] = [max(left[position : position + count])]
            self._gone = 0
            self._build(left)

    def first(self, start: int, least: int) -> int:
        """Return the first position from `start` on whose value is ≥ `least`, or the length."""
        levels = self._levels
        if levels is None:
            return 0
        level, place = 0, self._gone + start
        while place >= len(levels[level]) or levels[level][place] < least:
            place += 1
            if place >= len(levels[level]) and level == len(levels) - 1:
                return len(self)
            while not place & 1 and level < len(levels) - 1:
                place >>= 1
                level += 1
        while level:
            level -= 1
            place *= 2
            if levels[level][place] < least:
                place += 1
        return place - self._gone

    def _build(self, values: list[int]) -> None:
        self._levels = [values]
        while len(values) > 1:
            values = [max(values[n : n + 2]) for n in range(0, len(values), 2)]
            self._levels.append(values)

    def _settle(self, place: int) -> None:
        """Update the levels above a value that has changed, or was appended."""
        levels = self._levels
        assert levels is not None, place
        below = levels[0]
        level = 0
        while len(below) > 1:
            place >>= 1
            level += 1
            if level == len(levels):
                levels.append([])
            row = levels[level]
            largest = max(below[2 * place : 2 * place + 2])
            if place == len(row):
                row.append(largest)
            else:
                row[place] = largest
            below = row
