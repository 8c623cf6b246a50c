"""Sends metrics and spans by the OpenTelemetry SDK's exporters (OTLP over HTTP).

Everything here runs in a thread of its own, and may block there. The metrics are those of a page of
`/metrics`, turned into the SDK's data model: there is no second list of them. A traced request is a
server span with a child for each stage.

The exporters read the standard variables of the environment: OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT,
_CERTIFICATE, _COMPRESSION and others. They report failures to Python's logging only. Those lines
are kept from the server's log, and the last one is the reason of a failure.

Only this file imports the SDK. Does not depend on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from rpc.traces import TracedRequest
from vdl.clock import MS
from vdl.server.otlp_names import otel_name

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.samples import Sample

_ENVIRONMENT = "environment"
_LOGGER = "opentelemetry"


class ExportFailed(Exception):
    """Raised if the receiver does not take what is sent, with the SDK's reason."""


class _LastLine(logging.Handler):
    """Keeps the last line that the SDK logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class OtlpExporter:
    """Exporter of one server. Use: in one thread."""

    def __init__(
        self, endpoint: str, facts: Mapping[str, str], *, started_ns: int, version: str
    ) -> None:
        """`endpoint`: a base URL, or "environment" for OTEL_EXPORTER_OTLP_ENDPOINT.

        `facts`: attributes of the server; the environment's take precedence. `started_ns`: begin
        of all counters, since 1970.
        """
        self._reason = _LastLine()
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._reason)
        logger.propagate = False
        self._resource = Resource(dict(facts)).merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("vdl", version)
        self._started_ns = started_ns
        self._ids = RandomIdGenerator()
        urls: list[str | None] = [None, None]
        if endpoint != _ENVIRONMENT:
            urls = [f"{endpoint.rstrip('/')}/v1/{signal}" for signal in ("metrics", "traces")]
        self._metrics = OTLPMetricExporter(endpoint=urls[0])
        self._spans = OTLPSpanExporter(endpoint=urls[1])

    # --- metrics -------------------------------------------------------------------------------
    def send_metrics(self, families: Sequence[Family], now_ns: int) -> int:
        """Send the metrics of one page, of time `now_ns` since 1970. Return their number. Raises
        ExportFailed."""
        metrics = [self._metric(family, now_ns) for family in families]
        scope = ScopeMetrics(self._scope, metrics, "")
        page = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        if self._metrics.export(page) is not MetricExportResult.SUCCESS:
            raise ExportFailed(self._reason.text)
        return len(metrics)

    def _metric(self, family: Family, now_ns: int) -> Metric:
        is_counter = family.type == "counter"
        name, unit = otel_name(f"{family.name}_total" if is_counter else family.name)
        data: Any
        if family.type == "histogram":
            points = [*self._distributions(family.samples, now_ns)]
            data = Histogram(points, AggregationTemporality.CUMULATIVE)
        else:
            # Always as floats: some numbers are whole at one time only, and some are booleans.
            numbers = [
                NumberDataPoint(sample.labels, self._started_ns, now_ns, float(sample.value))
                for sample in family.samples
            ]
            data = (
                Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
                if is_counter
                else Gauge(numbers)
            )
        return Metric(name, family.documentation, unit, data)

    def _distributions(
        self, samples: Iterable[Sample], now_ns: int
    ) -> Iterable[HistogramDataPoint]:
        """Yield a point for each combination of labels: Prometheus has a sample for each bucket."""
        by_labels: dict[tuple[tuple[str, str], ...], tuple[list[tuple[float, float]], list[float]]]
        by_labels = {}
        for sample in samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            buckets, sums = by_labels.setdefault(tuple(labels.items()), ([], []))
            if sample.name.endswith("_bucket"):
                buckets.append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_sum"):
                sums.append(sample.value)
        for labels_of, (buckets, sums) in by_labels.items():
            counts = [int(count) for _, count in buckets]
            yield HistogramDataPoint(
                dict(labels_of),
                self._started_ns,
                now_ns,
                counts[-1],
                sums[0],
                [counts[0], *(after - before for before, after in pairwise(counts))],
                [bound for bound, _ in buckets[:-1]],
                None,
                None,
            )

    # --- spans ---------------------------------------------------------------------------------
    def send_spans(self, requests: Sequence[TracedRequest]) -> int:
        """Send traced requests as spans. Return the number of requests. Raises ExportFailed."""
        spans = [span for request in requests for span in self._spans_of(request)]
        if self._spans.export(spans) is not SpanExportResult.SUCCESS:
            raise ExportFailed(self._reason.text)
        return len(requests)

    def _spans_of(self, request: TracedRequest) -> Iterable[ReadableSpan]:
        trace_id = self._ids.generate_trace_id()
        root = self._context(trace_id)
        began_ns = request.began_ms * MS
        yield self._span(
            f"{request.api} {request.slowest or next(iter(request.partitions), '')}".rstrip(),
            root,
            None,
            attributes_of(request),
            SpanKind.SERVER,
            (began_ns, began_ns + request.total_ns),
        )
        for stage in request.stages:
            start_ns = began_ns + stage.start_ns
            acked_by = (
                {"vdl.acked_by": request.acked_by}
                if stage.name == "replication" and request.acked_by
                else {}
            )
            yield self._span(
                stage.name,
                self._context(trace_id),
                root,
                acked_by,
                SpanKind.INTERNAL,
                (start_ns, start_ns + stage.duration_ns),
            )

    def _context(self, trace_id: int) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(trace_id, self._ids.generate_span_id(), False, flags)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Mapping[str, str | int | list[str]],
        kind: SpanKind,
        times_ns: tuple[int, int],
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=kind,
            instrumentation_scope=self._scope,
            start_time=times_ns[0],
            end_time=times_ns[1],
        )


def attributes_of(request: TracedRequest) -> dict[str, str | int | list[str]]:
    """Return the attributes of a request's span, by the conventions for messaging and clients."""
    host, _, port = request.peer.rpartition(":")
    found: dict[str, str | int | list[str]] = {
        "messaging.system": "kafka",
        "messaging.operation.name": request.api,
        "messaging.client.id": request.client_id,
        "client.address": host,
        "client.port": int(port) if port.isdigit() else 0,
        "user.name": request.principal,
        "messaging.message.envelope.size": request.request_bytes,
        "vdl.api.version": request.version,
        "vdl.correlation_id": request.correlation_id,
        "vdl.connection_id": request.connection_id,
        "vdl.listener": request.listener,
        "vdl.response.size": request.response_bytes,
        "vdl.partitions": list(request.partitions),
        "vdl.partition_count": request.partition_count,
    }
    if request.group:
        found["messaging.consumer.group.name"] = request.group
    if request.slowest:
        topic, _, partition = request.slowest.rpartition("-")
        found["messaging.destination.name"] = topic
        found["messaging.destination.partition.id"] = partition
        found["vdl.term"] = request.term
        found["vdl.acked_by"] = request.acked_by
    return found
