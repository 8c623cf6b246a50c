"""Prometheus metrics of a running job.

They use a registry of their own, so several jobs in one driver do not mix. Does not depend on
Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from vdl.pipeline.runner import BatchReport


class JobMetrics:
    """Metrics served on `listen` (host:port) from the first call on.

    Use: pass `on_batch` to the runner.
    """

    def __init__(self, job: str, listen: str, *, clock: Callable[[], float] = time.time) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self.registry = CollectorRegistry()
        self._job = job
        self._clock = clock
        registry: Any = self.registry
        self._rows = Counter("vdl_pipeline_rows", "Rows committed.", ["job"], registry=registry)
        self._dead = Counter(
            "vdl_pipeline_dead_letters", "Records that could not be decoded.", ["job"],
            registry=registry,
        )  # fmt: skip
        self._batches = Counter(
            "vdl_pipeline_batches", "Batches committed.", ["job"], registry=registry
        )
        self._phase = Gauge(
            "vdl_pipeline_phase_seconds",
            ("Duration of a phase of the last batch."),
            ["job", "phase"],
            registry=registry,
        )
        self._lag = Gauge(
            "vdl_pipeline_lag_offsets", "Offsets that are not in the table yet.",
            ["job", "topic", "partition"], registry=registry,
        )  # fmt: skip
        self._time_lag = Gauge(
            "vdl_pipeline_lag_seconds", "Age of the newest row when it was committed.", ["job"],
            registry=registry,
        )  # fmt: skip
        self._last = Gauge(
            "vdl_pipeline_last_commit_timestamp_seconds", "Time of the last commit.",
            ["job"], registry=registry,
        )  # fmt: skip
        self._late = Counter(
            "vdl_pipeline_late_rows", "Rows that arrived after their window was closed.",
            ["job"], registry=registry,
        )  # fmt: skip
        self._open = Gauge(
            "vdl_pipeline_open_windows", "Windows, by key, that are not written yet.", ["job"],
            registry=registry,
        )  # fmt: skip
        self._watermark = Gauge(
            "vdl_pipeline_watermark_timestamp_seconds", (
                "Watermark: windows that end later are open."
            ),
            ["job"], registry=registry,
        )  # fmt: skip
        self._failed = Counter(
            "vdl_pipeline_expectation_failures", "Rows that do not meet an expectation.",
            ["job", "rule"], registry=registry,
        )  # fmt: skip
        self._lag_asked = Gauge(
            "vdl_pipeline_lag_asked_timestamp_seconds",
            (
                "Time of the last report of the topics' ends by the servers."
            ), ["job"], registry=registry,
        )  # fmt: skip
        self._lineage = Counter(
            "vdl_pipeline_lineage_events", "Events of OpenLineage, by outcome.",
            ["job", "outcome"], registry=registry,
        )  # fmt: skip
        if listen:
            host, _, port = listen.rpartition(":")
            start_http_server(int(port), addr=host or "127.0.0.1", registry=registry)

    def on_batch(self, report: BatchReport) -> None:
        now = self._clock()
        self._rows.labels(self._job).inc(report.rows)
        self._dead.labels(self._job).inc(report.dead)
        self._batches.labels(self._job).inc()
        self._last.labels(self._job).set(now)
        for phase, millis in report.phases_ms.items():
            self._phase.labels(self._job, phase).set(millis / 1000)
        for rule, count in report.failed.items():
            self._failed.labels(self._job, rule).inc(count)
        self.on_lag(report.lag)
        if report.newest_ms >= 0:
            self._time_lag.labels(self._job).set(max(0.0, now - report.newest_ms / 1000))
        if report.windows is not None:
            self._late.labels(self._job).inc(report.windows.late)
            self._open.labels(self._job).set(report.windows.open)
            if report.windows.watermark_us is not None:
                self._watermark.labels(self._job).set(report.windows.watermark_us / 1e6)

    def on_lineage(self, outcome: str) -> None:
        """Count one event: "sent", "failed" or "dropped"; from any thread."""
        self._lineage.labels(self._job, outcome).inc()

    def on_lag(self, lag: Mapping[tuple[str, int], int]) -> None:
        """Record lag by (topic, partition); from any thread."""
        self._lag_asked.labels(self._job).set(self._clock())
        for (topic, partition), offsets in lag.items():
            self._lag.labels(self._job, topic, str(partition)).set(offsets)
