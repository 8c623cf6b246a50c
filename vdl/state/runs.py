"""Runs of offsets: which value each offset of a range has, where neighbours mostly have the same.

A run is (first, last, value), both ends included. Runs lie in order, do not overlap, and neighbours
that touch have different values. Setting some offsets of a run splits it; what has become equal
is joined again. So equal contents are equal runs, whatever led to them.

Must not know: what the values mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")
Run = tuple[int, int, Value]


class Runs(Generic[Value]):
    """See the module. Values are compared with `==` and never changed in place."""

    __slots__ = ("_firsts", "_lasts", "_values")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._values: list[Value] = []

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Run[Value]]:
        return zip(self._firsts, self._lasts, self._values, strict=True)

    @property
    def first(self) -> Run[Value] | None:
        """The run with the lowest offsets."""
        return (self._firsts[0], self._lasts[0], self._values[0]) if self._firsts else None

    def within(self, first: int, last: int) -> list[Run[Value]]:
        """What is set of [first, last], cut to it."""
        found: list[Run[Value]] = []
        for i in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[i] > last:
                break
            found.append((max(first, self._firsts[i]), min(last, self._lasts[i]), self._values[i]))
        return found

    def since(self, offset: int) -> Iterator[Run[Value]]:
        """The runs that end at an offset or behind it, in order and whole. Nothing may be changed
        meanwhile."""
        for i in range(bisect_left(self._lasts, offset), len(self._firsts)):
            yield self._firsts[i], self._lasts[i], self._values[i]

    def covers(self, first: int, last: int) -> bool:
        """Whether every offset of [first, last] has a value."""
        return sum(end - start + 1 for start, end, _ in self.within(first, last)) == (
            last - first + 1
        )

    def put(self, first: int, last: int, value: Value) -> None:
        """All offsets of [first, last] have this value from now on."""
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
        """Forget all offsets below."""
        gone = bisect_left(self._lasts, offset)
        if gone:
            del self._firsts[:gone], self._lasts[:gone], self._values[:gone]
        if self._firsts and self._firsts[0] < offset:
            self._firsts[0] = offset

    def clear(self) -> None:
        """Forget all."""
        self._firsts, self._lasts, self._values = [], [], []


def _joined(runs: list[Run[Value]]) -> list[Run[Value]]:
    """Runs in order, neighbours that touch and are equal as one."""
    joined = [runs[0]]
    for run in runs[1:]:
        before = joined[-1]
        if before[1] + 1 == run[0] and before[2] == run[2]:
            joined[-1] = (before[0], run[1], run[2])
        else:
            joined.append(run)
    return joined
