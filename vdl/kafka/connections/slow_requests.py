"""Slow requests of one server: the slowest of the last minutes, and those that a trace selects.

A request that was answered is looked at only if it took at least the threshold of its API
(`ApiStats.slow_ns`), which is one comparison. So long as nothing is traced, that threshold is the
time of the least of the slowest requests of the present minute, and few requests reach it.

* The ring keeps the `SLOWEST` slowest requests of each API in each of the last `MINUTES` minutes.
  The wait of a long poll does not count: it is what the client asked for.
* A trace lowers the threshold of the APIs that it selects. It ends after its time, its number of
  requests, or its number of looks, whichever comes first.

Everything is bounded: the ring and each trace in bytes, a record in names and in characters of each
name. Records are counted before they are kept.

Does not depend on how requests are shown, or on what they mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from typing import Final, Protocol

from rpc.traces import TracedRequest, TracedRequests, TraceFilter
from vdl.clock import MS

LEAST_SLOW_NS: Final = MS
"""Requests that took less are never kept in the ring."""
MINUTE_NS: Final = 60_000 * MS
MINUTES: Final = 10
SLOWEST: Final = 8
RING_BYTES_MAX: Final = 2 << 20

TRACES_MAX: Final = 4
"""Traces at a time, those included whose requests are still to be read."""
TRACE_NS_MAX: Final = 600_000 * MS
TRACE_REQUESTS_MAX: Final = 1_000
TRACE_BYTES_MAX: Final = 1 << 20
LOOKS_MAX: Final = 100_000
"""Requests that a trace may look at. One look costs some microseconds of the loop."""
UNREAD_NS: Final = 60_000 * MS
"""Time after which a trace is dropped that was not read."""

UNKNOWN: Final = "this server has no such trace: it was not read for a minute, or it restarted"


class Threshold(Protocol):
    """Counters of one API that are looked at after each request."""

    slow_ns: int


@dataclass(slots=True)
class _Minute:
    """The slowest requests of one minute."""

    number: int
    by_api: dict[str, list[tuple[int, int, TracedRequest]]] = field(default_factory=dict)
    """By API: a heap of (time, number, request), the least slow first."""
    bytes: int = 0


@dataclass(slots=True)
class _Trace:
    """A trace that was asked for."""

    filter: TraceFilter
    left: int
    """Requests that it may still take."""
    ends_ns: int
    read_ns: int
    """Time at which it was last read."""
    requests: list[TracedRequest] = field(default_factory=list)
    bytes: int = 0
    looks: int = 0
    ended: str = ""

    def look(self, request: TracedRequest, now_ns: int) -> bool:
        """Keep the request if it is selected. Return True if it was."""
        if self.is_over(now_ns):
            return False
        self.looks += 1
        if self.filter.takes(request):
            size = request.bytes
            if self.bytes + size > TRACE_BYTES_MAX:
                self.ended = "its memory is full"
                return False
            self.bytes += size
            self.requests.append(request)
            self.left -= 1
            if not self.left:
                self.ended = "it has its number of requests"
            return True
        if self.looks >= LOOKS_MAX:
            self.ended = "it has looked at its maximum of requests"
        return False

    def is_over(self, now_ns: int) -> bool:
        """Return True if it takes no further request."""
        if not self.ended and now_ns >= self.ends_ns:
            self.ended = "its time is over"
        return self.ended != ""


class SlowRequests:
    """The slow requests of one server; see the module."""

    __slots__ = (
        "_by_api", "_minutes", "_next_trace", "_now_ns", "_number", "_traces", "noted", "on_slow",
    )  # fmt: skip

    def __init__(self, by_api: Mapping[str, Threshold], now_ns: Callable[[], int]) -> None:
        """`by_api`: their `slow_ns` are set here."""
        self._by_api = by_api
        self._now_ns = now_ns
        self._minutes: deque[_Minute] = deque()
        self._traces: dict[int, _Trace] = {}
        self._number = 0
        self._next_trace = 1
        self.noted = 0
        """Requests that were kept since the start."""
        self.on_slow: Callable[[TracedRequest], object] | None = None
        """Called with each request that enters the ring, if set; it must not raise."""

    # --- requests ------------------------------------------------------------------------------
    def note(self, request: TracedRequest) -> None:
        """Keep an answered request if it is one of the slowest, or if a trace selects it."""
        now_ns = self._now_ns()
        self._number += 1
        request.number = self._number
        is_kept = False
        for trace in self._traces.values():
            is_kept = trace.look(request, now_ns) or is_kept
        request.topics = frozenset()  # they may be long; only filters need them
        if self._enters(request, now_ns):
            is_kept = True
            if self.on_slow is not None:
                self.on_slow(request)
        self.noted += is_kept
        self._set_threshold(request.api)

    def _enters(self, request: TracedRequest, now_ns: int) -> bool:
        """Put the request into the ring if it is slow enough. Return True if it was."""
        if request.busy_ns < LEAST_SLOW_NS:
            return False
        minute = self._minute(now_ns)
        heap = minute.by_api.setdefault(request.api, [])
        is_full = len(heap) >= SLOWEST
        if is_full and request.busy_ns <= heap[0][0]:
            return False
        more = request.bytes - (heap[0][2].bytes if is_full else 0)
        while len(self._minutes) > 1 and self.ring_bytes + more > RING_BYTES_MAX:
            self._minutes.popleft()
        if self.ring_bytes + more > RING_BYTES_MAX:
            return False
        item = request.busy_ns, request.number, request
        if is_full:
            heapreplace(heap, item)
        else:
            heappush(heap, item)
        minute.bytes += more
        return True

    def _minute(self, now_ns: int) -> _Minute:
        number = now_ns // MINUTE_NS
        minutes = self._minutes
        if not minutes or minutes[-1].number != number:
            minutes.append(_Minute(number))
        while minutes[0].number <= number - MINUTES:
            minutes.popleft()
        return minutes[-1]

    def turn_minute(self) -> None:
        """Begin a new minute if it is time, and drop what is over. Use: every few seconds."""
        now_ns = self._now_ns()
        is_new = not self._minutes or self._minutes[-1].number != now_ns // MINUTE_NS
        self._minute(now_ns)
        if is_new or self._traces:
            self._drop_unread(now_ns)
            self._set_thresholds()

    def _set_thresholds(self) -> None:
        for api in self._by_api:
            self._set_threshold(api)

    def _set_threshold(self, api: str) -> None:
        """Set the time from which on a request of this API is looked at."""
        now_ns = self._now_ns()
        heap = self._minutes[-1].by_api.get(api, ()) if self._minutes else ()
        threshold_ns = max(LEAST_SLOW_NS, heap[0][0] + 1 if len(heap) >= SLOWEST else 0)
        for trace in self._traces.values():
            apis = trace.filter.apis
            if (not apis or api in apis) and not trace.is_over(now_ns):
                threshold_ns = min(threshold_ns, trace.filter.slower_than_ns)
        self._by_api[api].slow_ns = threshold_ns

    def slowest(self) -> Iterator[TracedRequest]:
        """Yield the slowest requests of the last minutes, in no order."""
        self._minute(self._now_ns())
        for minute in list(self._minutes):
            for heap in minute.by_api.values():
                for _, _, request in heap:
                    yield request

    @property
    def ring_bytes(self) -> int:
        """Upper bound of the memory of the ring."""
        return sum(minute.bytes for minute in self._minutes)

    @property
    def bytes(self) -> int:
        """Upper bound of the memory of the ring and of all traces."""
        return self.ring_bytes + sum(trace.bytes for trace in self._traces.values())

    # --- traces --------------------------------------------------------------------------------
    @property
    def running(self) -> int:
        """Number of traces that run now."""
        now_ns = self._now_ns()
        return sum(not trace.is_over(now_ns) for trace in self._traces.values())

    def start(self, wanted: TraceFilter) -> int:
        """Begin a trace. Return its number; 0 if there are too many."""
        now_ns = self._now_ns()
        self._drop_unread(now_ns)
        if len(self._traces) >= TRACES_MAX:
            return 0
        number, self._next_trace = self._next_trace, self._next_trace + 1
        duration_ns = min(max(MS, wanted.duration_ns), TRACE_NS_MAX)
        left = min(max(1, wanted.requests_max), TRACE_REQUESTS_MAX)
        self._traces[number] = _Trace(wanted, left, now_ns + duration_ns, now_ns)
        self._set_thresholds()
        return number

    def read(self, number: int, *, ends: bool) -> TracedRequests:
        """Return the requests of a trace since it was last read, which are then forgotten here.

        `ends`: end the trace. One that is over is forgotten with its last requests.
        """
        trace = self._traces.get(number)
        if trace is None:
            return TracedRequests(ended=UNKNOWN)
        now_ns = trace.read_ns = self._now_ns()
        requests, trace.requests, trace.bytes = trace.requests, [], 0
        if ends and not trace.is_over(now_ns):
            trace.ended = "it was stopped"
        if trace.is_over(now_ns):
            del self._traces[number]
            self._set_thresholds()
        return TracedRequests(requests, trace.ended)

    def _drop_unread(self, now_ns: int) -> None:
        for number, trace in list(self._traces.items()):
            if now_ns - trace.read_ns >= UNREAD_NS:
                del self._traces[number]
