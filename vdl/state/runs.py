"""Runs of offsets: a mapping from offsets to values, compact if neighbours have equal values.

A run is (first, last, value), both ends included. Runs are in order, do not overlap, and adjacent
runs have different values. Setting some offsets of a run splits it; adjacent runs with equal values
are merged. So equal contents have equal runs, regardless of how they were built.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")
Run = tuple[int, int, Value]


class Runs(Generic[Value]):
    """Ordered runs of offsets; see the module.

    Values are compared with `==` and never changed in place.
    """

    __slots__ = ("_firsts", "_lasts", "_values")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._values: list[Value] = []

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Run[Value]]:
        return zip(self._firsts, self._lasts, self._values, strict=True)

    @property
    def first(self) -> Run[Value] | None:
        """Run with the lowest offsets; None if there is none."""
        return (self._firsts[0], self._lasts[0], self._values[0]) if self._firsts else None

    def within(self, first: int, last: int) -> list[Run[Value]]:
        """Return the runs in [first, last], clipped to it."""
        found: list[Run[Value]] = []
        for i in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[i] > last:
                break
            found.append((max(first, self._firsts[i]), min(last, self._lasts[i]), self._values[i]))
        return found

    def since(self, offset: int) -> Iterator[Run[Value]]:
        """Yield the runs that end at `offset` or later, in order and whole.

        The runs must not change meanwhile.
        """
        for i in range(bisect_left(self._lasts, offset), len(self._firsts)):
            yield self._firsts[i], self._lasts[i], self._values[i]

    def covers(self, first: int, last: int) -> bool:
        """Return True if every offset of [first, last] has a value."""
        return sum(end - start + 1 for start, end, _ in self.within(first, last)) == (
            last - first + 1
        )

    def put(self, first: int, last: int, value: Value) -> None:
        """Set the value of all offsets of [first, last]."""
        assert first <= last, (first, last)
        begin = bisect_left(self._lasts, first)
        end = begin
        while end < len(self._firsts) and self._firsts[end] <= last:
            end += 1
        runs: list[Run[Value]] = []
        if begin < end and self._firsts[begin] < first:
            runs.append((self._firsts[begin], first - 1, self._values[begin]))
        runs.append((first, last, value))
        if begin < end and self._lasts[end - 1] > last:
            runs.append((last + 1, self._lasts[end - 1], self._values[end - 1]))
        if begin and self._lasts[begin - 1] == runs[0][0] - 1:
            begin -= 1
            runs.insert(0, (self._firsts[begin], self._lasts[begin], self._values[begin]))
        if end < len(self._firsts) and self._firsts[end] == runs[-1][1] + 1:
            runs.append((self._firsts[end], self._lasts[end], self._values[end]))
            end += 1
        joined = _joined(runs)
        self._firsts[begin:end] = [run[0] for run in joined]
        self._lasts[begin:end] = [run[1] for run in joined]
        self._values[begin:end] = [run[2] for run in joined]

    def cut_below(self, offset: int) -> None:
        """Remove all offsets below `offset`."""
        gone = bisect_left(self._lasts, offset)
        if gone:
            del self._firsts[:gone], self._lasts[:gone], self._values[:gone]
        if self._firsts and self._firsts[0] < offset:
            self._firsts[0] = offset

    def clear(self) -> None:
        """Remove everything."""
        self._firsts, self._lasts, self._values = [], [], []


def _joined(runs: list[Run[Value]]) -> list[Run[Value]]:
    """Return ordered runs, with adjacent ones of equal value merged."""
    joined = [runs[0]]
    for run in runs[1:]:
        before = joined[-1]
        if before[1] + 1 == run[0] and before[2] == run[2]:
            joined[-1] = (before[0], run[1], run[2])
        else:
            joined.append(run)
    return joined
