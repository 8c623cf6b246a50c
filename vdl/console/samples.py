"""Throughput and latency of a server over the last ten minutes, for plots.

Taken by the server itself every two seconds, from counters that exist anyway. The topics are added
up in steps, because a server may have thousands. The ring is bounded in points and in size.

Does not depend on how they are shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from segments.histogram import Histogram
from vdl.console.points import POINTS_MAX, Point
from vdl.server.server import Server

_STEP_TOPICS: Final = 500


@dataclass(slots=True)
class _Counts:
    """Counters at one moment."""

    at_ns: int
    records_in: int
    bytes_in: int
    bytes_out: int
    requests: int
    cpu_ns: int
    late_ns: int
    produce: list[int] = field(default_factory=list)
    delivery: list[int] = field(default_factory=list)


class Samples:
    """The points of one server, oldest first."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._last: _Counts | None = None
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)

    def take(self) -> Iterator[None]:
        """Add a point, if there was a sample before. Yield between the steps."""
        host, frontend = self._server.host, self._server.frontend
        if host is None or frontend is None:
            return
        records = bytes_in = bytes_out = 0
        for position, reference in enumerate(host.measures.traffic.valuerefs(), start=1):
            if position % _STEP_TOPICS == 0:
                yield
            topic = reference()
            if topic is not None:
                records += topic.records_in
                bytes_in += topic.bytes_in
                bytes_out += topic.bytes_out
        produce = frontend.stats.by_api["Produce"].total
        delivery = frontend.context.delivery_lag.lag
        now = _Counts(
            time.monotonic_ns(),
            records,
            bytes_in,
            bytes_out,
            sum(api.requests for api in frontend.stats.by_api.values()),
            time.process_time_ns(),
            host.loop_time.late_total_ns,
            list(produce.counts),
            list(delivery.counts),
        )
        last, self._last = self._last, now
        if last is not None and now.at_ns > last.at_ns:
            self.points.append(_point(last, now, len(frontend), produce, delivery))


def _point(
    last: _Counts, now: _Counts, connections: int, produce: Histogram, delivery: Histogram
) -> Point:
    seconds = (now.at_ns - last.at_ns) / 1e9

    def rate(before: int, after: int) -> float:
        # A topic that is deleted takes its counts with it.
        return round(max(0, after - before) / seconds, 3)

    made = [a - b for a, b in zip(now.produce, last.produce, strict=True)]
    delivered = [a - b for a, b in zip(now.delivery, last.delivery, strict=True)]
    return {
        "ms": time.time_ns() // 1_000_000,
        "records_in_per_second": rate(last.records_in, now.records_in),
        "bytes_in_per_second": rate(last.bytes_in, now.bytes_in),
        "bytes_out_per_second": rate(last.bytes_out, now.bytes_out),
        "requests_per_second": rate(last.requests, now.requests),
        "produce_seconds_p50": quantile(produce.bounds_ns, made, 0.5),
        "produce_seconds_p99": quantile(produce.bounds_ns, made, 0.99),
        "delivery_seconds_p50": quantile(delivery.bounds_ns, delivered, 0.5),
        "delivery_seconds_p99": quantile(delivery.bounds_ns, delivered, 0.99),
        "loop_late_ratio": round((now.late_ns - last.late_ns) / 1e9 / seconds, 4),
        "cpu_ratio": round((now.cpu_ns - last.cpu_ns) / 1e9 / seconds, 4),
        "client_connections": connections,
    }


def quantile(bounds_ns: Sequence[int], counts: Sequence[int], part: float) -> float | None:
    """Return a quantile in seconds, by linear interpolation in its bucket; None without a count.

    The last bucket has no upper bound: its lower one is returned."""
    wanted = part * sum(counts)
    if wanted <= 0:
        return None
    below = 0
    for number, count in enumerate(counts):
        if count and below + count >= wanted:
            low = bounds_ns[number - 1] if number else 0
            high = bounds_ns[number] if number < len(bounds_ns) else low
            return round((low + (high - low) * (wanted - below) / count) / 1e9, 6)
        below += count
    return None
