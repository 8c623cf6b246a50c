"""End to end lag: how old records are, by their timestamps, when consumers are given them.

Answers are sampled by time, so that a busy server reads few timestamps, and an idle one each. The
oldest batch of an answer counts. Timestamps are clients' own, unless the topic's are set by the
log; their clocks are part of the result.

Does not depend on requests.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.api import Buffer
from segments.histogram import Histogram
from vdl.clock import MS
from vdl.records.batch import max_timestamp_of

SAMPLE_NS = 20 * MS
"""Least time between two samples."""
_SECOND_NS = 1_000 * MS
LAG_BOUNDS_NS = tuple(
    int(seconds * _SECOND_NS)
    for seconds in (
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200, 86_400,
    )
)  # fmt: skip
"""Upper bounds of the buckets: 5 ms, since timestamps are of a millisecond, to a day."""


class DeliveryLag:
    """End to end lag of the records that one server gives out."""

    __slots__ = ("due_ns", "lag")

    def __init__(self) -> None:
        self.due_ns = 0
        """Time from which on the next answer is a sample."""
        self.lag = Histogram(LAG_BOUNDS_NS)

    def given(self, batches: Buffer, now_ns: int, agreed_ms: Callable[[], int]) -> None:
        """Observe the first of consecutive batches, if a sample is due.

        `now_ns`: the monotonic clock when the answer is made, not when it was asked for: a request
        may have waited for its records. `agreed_ms`: returns the time in ms since 1970.
        """
        if now_ns < self.due_ns:
            return
        self.due_ns = now_ns + SAMPLE_NS
        timestamp_ms = max_timestamp_of(batches)
        if timestamp_ms >= 0:
            self.lag.observe(max(0, agreed_ms() - timestamp_ms) * MS)
