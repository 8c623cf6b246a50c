"""GetTelemetrySubscriptions (key 71) v0, PushTelemetry (72) v0: metrics of clients (KIP-714).

A push is decompressed and read in a thread, within bounds. An unreadable one is INVALID_RECORD,
after which a client stops pushing.

Does not depend on the use of the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from vdl.clock import MS
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.telemetry.client_metrics import Asked
from vdl.kafka.telemetry.push_reader import Outcome
from vdl.kafka.wire.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from vdl.kafka.wire.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from vdl.records.compression import Compression

ACCEPTED = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
_NO_INSTANCE = bytes(16)


def _says(ctx: RequestContext, instance_id: bytes) -> dict[str, str]:
    """Return the attributes of a client by which subscriptions select it."""
    connection = ctx.connection
    return {
        "client_id": ctx.client_id,
        "client_instance_id": str(UUID(bytes=instance_id)),
        "client_software_name": connection.client_software_name,
        "client_software_version": connection.client_software_version,
        "client_source_address": connection.peer_host,
        "client_source_port": str(connection.peer_port),
    }


def _choose(
    ctx: RequestContext, instance_id: bytes, later: Later, go_on: Callable[[], None]
) -> bool:
    """Match the client's subscriptions, then call `go_on`. Return False if too much waits to
    match."""
    server = ctx.server
    return server.client_metrics.choose(
        instance_id,
        _says(ctx, instance_id),
        server.host.catalog.resources,
        server.pattern_work,
        ctx.asker,
        later.step(go_on),
    )


def handle_get_telemetry_subscriptions(
    ctx: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse | Later:
    """Return the metrics to push and the interval. A client without an instance id gets one."""
    server = ctx.server
    instance_id = bytes(request.client_instance_id)
    if instance_id == _NO_INSTANCE:
        instance_id = UUID(bytes=server.random_bytes(16), version=4).bytes
    later = Later()
    chosen = _choose(
        ctx, instance_id, later, lambda: later.complete(_subscriptions(ctx, instance_id))
    )
    if not chosen:
        return GetTelemetrySubscriptionsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    return later.response if later.done else later


def _subscriptions(ctx: RequestContext, instance_id: bytes) -> GetTelemetrySubscriptionsResponse:
    server = ctx.server
    try:
        asked = server.client_metrics.ask(instance_id, ctx.received_ns)
    except KafkaError as error:
        return GetTelemetrySubscriptionsResponse(error_code=error.code)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=asked.subscription_id,
        accepted_compression_types=list(ACCEPTED),
        push_interval_ms=asked.interval_ms,
        telemetry_max_bytes=server.config.telemetry_max_bytes,
        delta_temporality=True,
        requested_metrics=list(asked.metrics),
    )


def handle_push_telemetry(
    ctx: RequestContext, request: PushTelemetryRequest
) -> PushTelemetryResponse | Later:
    """Accept a client's metrics."""
    instance_id = bytes(request.client_instance_id)
    if instance_id == _NO_INSTANCE:
        return _refused(ctx, ErrorCode.INVALID_REQUEST)
    later = Later()
    if not _choose(ctx, instance_id, later, lambda: later.follow(_push(ctx, request))):
        return _refused(ctx, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    return later.response if later.done else later


def _refused(ctx: RequestContext, code: ErrorCode) -> PushTelemetryResponse:
    ctx.server.client_metrics.pushes_refused += 1
    return PushTelemetryResponse(error_code=code)


def _push(ctx: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse | Later:
    """Accept metrics of a client whose subscriptions are matched.

    If it has no subscription, the metrics are not read.
    """
    server, metrics = ctx.server, ctx.server.client_metrics
    try:
        asked = _check(ctx, request)
    except KafkaError as error:
        return _refused(ctx, error.code)
    metrics.pushes += 1
    if not request.metrics or not asked.metrics:
        return PushTelemetryResponse()
    later = Later()

    def done(points: Outcome) -> None:
        if isinstance(points, BaseException):
            later.complete(points)
        elif isinstance(points, ErrorCode):
            metrics.pushes_refused += 1
            later.complete(PushTelemetryResponse(error_code=points))
        else:
            now_ns = server.clock.now_ns()
            metrics.take(ctx.client_id, points, now_ns=now_ns, interval_ms=asked.interval_ms)
            later.complete(PushTelemetryResponse())

    codec = Compression(request.compression_type)
    if not server.push_reader.read(ctx.asker, codec, bytes(request.metrics), done):
        return _refused(ctx, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    return later


def _check(ctx: RequestContext, request: PushTelemetryRequest) -> Asked:
    """Return the client's subscription if it may push. Raises KafkaError, in Kafka's order."""
    server = ctx.server
    instance_id = bytes(request.client_instance_id)
    asked = server.client_metrics.check_push(
        instance_id,
        ctx.received_ns,
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
    )
    _check_connection(ctx, asked.interval_ms, is_terminating=request.terminating)
    if request.compression_type not in (Compression.NONE, *ACCEPTED):
        server.client_metrics.refused_compression(instance_id)
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "unknown compression type")
    if len(request.metrics) > server.config.telemetry_max_bytes:
        raise KafkaError(
            ErrorCode.TELEMETRY_TOO_LARGE, "the metrics are larger than telemetry.max.bytes"
        )
    return asked


def _check_connection(ctx: RequestContext, interval_ms: int, *, is_terminating: bool) -> None:
    """Raise KafkaError if a connection pushes more often than one client does.

    A client pushes once in an interval, and once more to terminate. Instance ids do not matter.
    """
    connection = ctx.connection
    too_soon = (
        connection.pushed_ns is not None
        and ctx.received_ns - connection.pushed_ns < interval_ms * MS
    )
    if too_soon and (connection.has_pushed_last or not is_terminating):
        raise KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            "the connection pushed before its push interval had passed",
        )
    connection.pushed_ns = ctx.received_ns
    connection.has_pushed_last |= is_terminating
