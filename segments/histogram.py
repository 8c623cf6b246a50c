"""Histogram of durations: counts by bucket, incremented where the event happens.

An observation is one bisection, an addition to a list of integers and one to the sum; it allocates
nothing. Buckets are not cumulative here; the page of metrics adds them up.

Does not depend on what is measured, or on how it is shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

_MS = 1_000_000
DURATION_BOUNDS_NS = tuple(
    int(ms * _MS)
    for ms in (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
)
"""Upper bounds of the buckets of waits within a server, ascending: 0.25 ms to 30 s."""


class Histogram:
    """Counts of durations in nanoseconds; bucket i holds those ≤ `bounds_ns[i]`."""

    __slots__ = ("bounds_ns", "counts", "sum_ns")

    def __init__(self, bounds_ns: Sequence[int] = DURATION_BOUNDS_NS) -> None:
        self.bounds_ns = bounds_ns
        self.counts = [0] * (len(bounds_ns) + 1)
        """Observations by bucket; the last has those above all bounds."""
        self.sum_ns = 0

    def observe(self, duration_ns: int) -> None:
        self.counts[bisect_left(self.bounds_ns, duration_ns)] += 1
        self.sum_ns += duration_ns
