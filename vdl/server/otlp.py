"""Export to OpenTelemetry, as the loop sees it: what is sent when, and what is dropped.

The loop makes the page of metrics in steps, as for a scrape, and hands it to a thread, which sends
it (`otlp_exporter.py`). The thread has at most one page and one list of requests at a time. So long
as it is busy, because the receiver hangs, pages are skipped, and requests wait up to a bound.

A failure is counted. The log has one event a minute, with the number of failures since the last.

Does not depend on the SDK, which is loaded in the thread, after the server has begun to serve.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rpc.traces import TracedRequest
from vdl.clock import MS, Clock
from vdl.config.settings import OtlpOptions
from vdl.kafka.host import Compute
from vdl.log import Log, Repeats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from vdl.server.otlp_exporter import OtlpExporter

REQUESTS_MAX: Final = 200
"""Requests that wait to be sent. More are dropped, and counted."""
SPANS_AFTER_NS: Final = 1_000 * MS
"""Delay between a slow request and its spans, so that several are sent together."""
_SLICE_SECONDS: Final = 0.002
"""Time of one turn of the loop for a page."""
_CAUSE_CHARS_MAX: Final = 300

Collect = Callable[[], Iterator["Metric | None"]]
"""Yields the metrics of a page; None after a step of work that gives none."""


@dataclass(slots=True)
class OtlpStats:
    """Counters of the export."""

    pages: int = 0
    """Pages of metrics that were sent."""
    pages_skipped: int = 0
    """Pages that were not made, because the one before was still being sent."""
    requests: int = 0
    """Requests that were sent as spans."""
    requests_dropped: int = 0
    failures: int = 0

    def numbers(self) -> dict[str, int]:
        """Return the counters for the metrics."""
        return {
            "pages_sent_total": self.pages,
            "pages_skipped_total": self.pages_skipped,
            "requests_sent_total": self.requests,
            "requests_dropped_total": self.requests_dropped,
            "failures_total": self.failures,
        }


class OtlpExport:
    """Export of one server's metrics and slow requests; see the module."""

    def __init__(
        self,
        options: OtlpOptions,
        *,
        collect: Collect,
        compute: Compute,
        clock: Clock,
        log: Log,
    ) -> None:
        """`compute`: a thread for nothing else."""
        self._options = options
        self._collect = collect
        self._compute = compute
        self._clock = clock
        self._log = log
        self._repeats = Repeats()
        self._exporter: OtlpExporter | None = None
        self._page: Iterator[Metric | None] | None = None
        """The page that is being made or sent; None: neither."""
        self._waiting: deque[TracedRequest] = deque()
        self._sends_requests = False
        """True if requests are being sent, or will be after a delay."""
        self.stats = OtlpStats()

    def start(self, facts: Mapping[str, str]) -> None:
        """Load the SDK in the thread, and begin to send. `facts`: attributes of the server."""
        self._compute(partial(_make_exporter, self._options, facts), self._made)

    def _made(self, made: OtlpExporter | BaseException) -> None:
        if isinstance(made, BaseException):
            self._log.error("otlp_not_started", error=f"{type(made).__name__}: {made}")
            return
        self._exporter = made
        if self._options.metrics:
            self._begin_page()
        if self._waiting:
            self._send_later()

    # --- metrics -------------------------------------------------------------------------------
    def _begin_page(self) -> None:
        self._clock.call_later(self._options.interval_ms * MS, self._begin_page)
        if self._page is not None:
            self.stats.pages_skipped += 1
            return
        self._page = self._collect()
        self._make_page([])

    def _make_page(self, found: list[Metric]) -> None:
        """Make the page as far as there is time in this turn, and send it once it is whole."""
        assert self._page is not None
        assert self._exporter is not None
        ends = time.thread_time() + _SLICE_SECONDS
        try:
            for metric in self._page:
                if metric is not None:
                    found.append(metric)
                if time.thread_time() >= ends:
                    self._clock.call_soon(partial(self._make_page, found))
                    return
        except Exception as error:  # noqa: BLE001 - an edge: metrics must not end the server
            self._sent_page(error)
            return
        now_ns = self._clock.wall_ms() * MS
        self._compute(partial(self._exporter.send_metrics, found, now_ns), self._sent_page)

    def _sent_page(self, result: int | BaseException) -> None:
        self._page = None
        if isinstance(result, BaseException):
            self._failed(result)
        else:
            self.stats.pages += 1

    # --- slow requests -------------------------------------------------------------------------
    def note(self, request: TracedRequest) -> None:
        """Send a request that was slow, later. Use: for requests among the slowest of a minute."""
        if request.busy_ns < self._options.traces_slower_than_ms * MS:
            return
        if len(self._waiting) >= REQUESTS_MAX:
            self.stats.requests_dropped += 1
            return
        self._waiting.append(request)
        if self._exporter is not None:
            self._send_later()

    def _send_later(self) -> None:
        if not self._sends_requests:
            self._sends_requests = True
            self._clock.call_later(SPANS_AFTER_NS, self._send_requests)

    def _send_requests(self) -> None:
        assert self._exporter is not None
        requests = [*self._waiting]
        self._waiting.clear()
        self._compute(
            partial(self._exporter.send_spans, requests), partial(self._sent_requests, requests)
        )

    def _sent_requests(self, requests: list[TracedRequest], result: int | BaseException) -> None:
        self._sends_requests = False
        if isinstance(result, BaseException):
            self.stats.requests_dropped += len(requests)
            self._failed(result)
        else:
            self.stats.requests += result
        if self._waiting:
            self._send_later()

    def _failed(self, error: BaseException) -> None:
        self.stats.failures += 1
        if count := self._repeats.count("otlp_export_failed", self._clock.now_ns()):
            cause = f"{type(error).__name__}: {error}"
            self._log.warning("otlp_export_failed", count=count, cause=cause[:_CAUSE_CHARS_MAX])


def _make_exporter(options: OtlpOptions, facts: Mapping[str, str]) -> Any:
    from vdl import __version__
    from vdl.server.metrics import started_seconds
    from vdl.server.otlp_exporter import OtlpExporter

    started_ns = int(started_seconds() * 1_000) * MS
    return OtlpExporter(options.endpoint, facts, started_ns=started_ns, version=__version__)
