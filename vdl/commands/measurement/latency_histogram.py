"""Latencies in buckets: bounded memory for any number of values.

A value below 2,048 µs has a bucket of its own; above, each power of two has 1,024 buckets. So a
percentile is at most 0.1 % above the true one (as in HdrHistogram).

Does not depend on what is measured.
"""

from __future__ import annotations

EXACT_BITS = 11
_HALF = 1 << EXACT_BITS - 1
_BUCKETS = 40 * _HALF
"""Enough for 2^49 µs, eighteen years."""
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class LatencyHistogram:
    """Counts of values in microseconds."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.max_us = 0

    def add(self, value_us: int) -> None:
        """Count a value; one below 0 counts as 0."""
        value_us = max(value_us, 0)
        shift = max(value_us.bit_length() - EXACT_BITS, 0)
        # The top bits of the value, in the row of its power of two.
        self._counts[min(shift * _HALF + (value_us >> shift), _BUCKETS - 1)] += 1
        self.count += 1
        self.max_us = max(self.max_us, value_us)

    def percentile_us(self, percent: float) -> int:
        """Return the value that `percent` of all values do not exceed; 0 without values."""
        wanted = self.count * percent / 100
        seen = 0
        for place, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_upper_us(place), self.max_us)
        return self.max_us

    def document(self) -> dict[str, float]:
        """Return the percentiles and the maximum in milliseconds."""
        found = {f"p{percent:g}_ms": self.percentile_us(percent) / 1_000 for percent in PERCENTILES}
        return {"count": self.count, **found, "max_ms": self.max_us / 1_000}


def _upper_us(place: int) -> int:
    """Return the largest value of a bucket."""
    if place < 2 * _HALF:
        return place
    shift = place // _HALF - 1
    return ((place - shift * _HALF + 1) << shift) - 1
