"""The largest timestamps of a log's sealed segments, so that a look-up by time need not ask each.

Clients set timestamps, so they come in any order, and no list of them can be bisected. What can be
is a tree: a level holds the larger of each two neighbours of the level below. "The first segment
from here on that has a time at or after this one" goes up until a block has it and down again into
the first half that does: twice the logarithm of the number of segments. A new segment changes one
number a level. Those that are trimmed away stay until they are half of all, and then the rest moves
up; what they held is never looked at, because a look-up says where it begins.

A segment of an earlier life may hold any time until somebody has looked: UNKNOWN is later than all.

Must not know: files, entries, who asks.
"""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = 1 << 63


class LargestTimestamps:
    """By position: 0 is the oldest segment there is."""

    __slots__ = ("_gone", "_levels")

    def __init__(self, values: Sequence[int] = ()) -> None:
        self._gone = 0
        """So many of the first were dropped and are still there."""
        self._levels: list[list[int]] = [[]]
        self._build(list(values))

    def __len__(self) -> int:
        return len(self._levels[0]) - self._gone

    def __getitem__(self, position: int) -> int:
        assert position >= 0, position
        return self._levels[0][self._gone + position]

    def __setitem__(self, position: int, value: int) -> None:
        assert 0 <= position < len(self), (position, len(self))
        self._levels[0][self._gone + position] = value
        self._settle(self._gone + position)

    def append(self, value: int) -> None:
        self._levels[0].append(value)
        self._settle(len(self._levels[0]) - 1)

    def drop(self, count: int) -> None:
        """The oldest `count` are gone."""
        assert 0 <= count <= len(self), (count, len(self))
        self._gone += count
        if 2 * self._gone > len(self._levels[0]):
            left = self._levels[0][self._gone :]
            self._gone = 0
            self._build(left)

    def join(self, position: int, count: int) -> None:
        """The `count` from there on are one from now on."""
        assert 0 < count <= len(self) - position, (position, count, len(self))
        if count > 1:
            left = self._levels[0][self._gone :]
            left[position : position + count] = [max(left[position : position + count])]
            self._gone = 0
            self._build(left)

    def first(self, start: int, least: int) -> int:
        """The first position from `start` on whose value is ≥ `least`, or the length."""
        levels = self._levels
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
        """The value there has changed, or is new and the last: so do those above it."""
        below = self._levels[0]
        level = 0
        while len(below) > 1:
            place >>= 1
            level += 1
            if level == len(self._levels):
                self._levels.append([])
            row = self._levels[level]
            largest = max(below[2 * place : 2 * place + 2])
            if place == len(row):
                row.append(largest)
            else:
                row[place] = largest
            below = row
