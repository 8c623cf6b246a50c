"""A traced request, made of what its exchange knows when it is answered.

The stages are the phases of `request_stats.ApiStats`, with the time of reading the request before
them. The wait is split further by the handler, if it knows more (`vdl.kafka.answer.Traceable`).

Names come from clients. They are cut, and only the first few topics of a request are looked at, so
that a trace takes microseconds and little memory whatever the request.

Does not depend on the choice of the requests that are traced.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rpc.traces import PARTITIONS_NAMED, TOPICS_NAMED, Stage, TracedRequest
from vdl.clock import MS
from vdl.kafka.answer import Traceable
from vdl.kafka.connections.admission import Exchange
from vdl.kafka.connections.request_stats import LONG_POLLS
from vdl.kafka.context import ConnectionInfo, Context
from vdl.state.catalog import Catalog

NAME_CHARS_MAX: Final = 256
"""A topic has at most 249."""
_TOPIC_LISTS: Final = ("topics", "topic_data", "responses")
_PARTITION_LISTS: Final = (
    "partitions", "partition_data", "partition_responses", "partition_indexes",
)  # fmt: skip
_PARTITION_NUMBERS: Final = ("partition_index", "partition", "index")


class Times(NamedTuple):
    """Times and size that are known when a request is answered, beside its exchange."""

    known_ns: int
    busy_ns: int
    now_ns: int
    size: int
    """Bytes of the answer."""


def traced(
    exchange: Exchange,
    info: ConnectionInfo,
    context: Context,
    answer: Any,
    about: Traceable | None,
    times: Times,
) -> TracedRequest:
    """Return the trace of an answered request."""
    api, now_ns = exchange.api, times.now_ns
    began_ns = exchange.began_ns or exchange.arrived_ns
    worked_ns = exchange.worked_ns or now_ns
    known_ns = max(times.known_ns, worked_ns)
    request = TracedRequest(
        server_id=context.host.server_id,
        api=api.name,
        version=exchange.version,
        correlation_id=exchange.correlation_id,
        client_id=_cut(exchange.client_id or ""),
        principal=_cut(str(info.principal)),
        listener=info.listener,
        peer=f"{info.peer_host}:{info.peer_port}",
        connection_id=info.id,
        began_ms=context.clock.wall_ms() - (now_ns - began_ns) // MS,
        total_ns=now_ns - began_ns,
        busy_ns=now_ns - exchange.arrived_ns,
        request_bytes=exchange.bytes,
        response_bytes=times.size,
    )
    if api.name in LONG_POLLS:
        request.busy_ns -= known_ns - worked_ns - times.busy_ns
    message = answer if api.pipelined else exchange.request
    request.group = _cut(_group_of(message))
    _name_partitions(request, message, context.host.catalog)
    waits = [("wait", worked_ns, known_ns)]
    if about is not None:
        waits = about.trace(request, worked_ns, known_ns)
    request.stages = [
        Stage(name, start_ns - began_ns, end_ns - start_ns)
        for name, start_ns, end_ns in (
            ("receive", began_ns, exchange.arrived_ns),
            ("queue", exchange.arrived_ns, exchange.started_ns),
            ("work", exchange.started_ns, worked_ns),
            *waits,
            ("send", known_ns, now_ns),
        )
        if end_ns > start_ns
    ]
    return request


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: NAME_CHARS_MAX - 1]}…"


def _group_of(message: Any) -> str:
    for field in ("group_id", "transactional_id"):
        name = getattr(message, field, None)
        if isinstance(name, str) and name:
            return name
    return ""


def _name_partitions(request: TracedRequest, message: Any, catalog: Catalog) -> None:
    """Set the topics and partitions that a message names, as far as they are looked at."""
    asked = next((getattr(message, name) for name in _TOPIC_LISTS if hasattr(message, name)), None)
    if not isinstance(asked, list):
        return
    topics: set[str] = set()
    for topic in asked[:TOPICS_NAMED]:
        name = _cut(topic if isinstance(topic, str) else _name_of(topic, catalog))
        topics.add(name)
        partitions = next(
            (getattr(topic, field) for field in _PARTITION_LISTS if hasattr(topic, field)), None
        )
        room = PARTITIONS_NAMED - len(request.partitions)
        if not isinstance(partitions, list):
            request.partition_count += 1
            request.partitions += [name][:room]
        else:
            request.partition_count += len(partitions)
            request.partitions += [f"{name}-{_number_of(one)}" for one in partitions[:room]]
    request.topics = frozenset(topics)


def _name_of(topic: Any, catalog: Catalog) -> str:
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    if isinstance(name, str):
        return name
    topic_id = getattr(topic, "topic_id", None)
    known = catalog.topics_by_id.get(topic_id) if isinstance(topic_id, bytes) else None
    return "?" if known is None else known.name


def _number_of(partition: Any) -> int:
    if isinstance(partition, int):
        return partition
    return next(
        (getattr(partition, name) for name in _PARTITION_NUMBERS if hasattr(partition, name)), -1
    )
