"""`vdl trace`: slow requests, and where their time went."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from typing import Any

import click

from rpc.traces import TRACE_NAME_CHARS_MAX, TracedRequest, TraceFilter
from vdl.commands.checks.request_traces import TracedServer, TracingCluster, servers_of
from vdl.commands.cluster.admin_requests import admin_settings
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.commands.cluster.cluster_options import Cluster, cluster_options, kafka_exception
from vdl.commands.interrupts import Interrupts
from vdl.commands.output import DONE, FAILED, emit, fail, json_option, progress, say, table
from vdl.commands.records.record_json import NewRecord
from vdl.commands.records.record_sender import RecordSender
from vdl.commands.terminal_text import visible_text
from vdl.commands.times import period_option, show_time
from vdl.kafka.api import API
from vdl.kafka.client import Unreachable
from vdl.kafka.security.client_settings import (
    ClientSettings,
    ClientSettingsError,
)

FOR_MS_MAX = 600_000
REQUESTS_MAX = 1_000
SHOWN_DEFAULT = 20
SEND_SECONDS = 30.0
_BAR = 40
"""Width of the bars."""
_MS = 1_000_000


@click.command()
@cluster_options
@click.option("--slowest", is_flag=True, help="The slowest requests of the last ten minutes.")
@click.option("--topic", "topics", multiple=True, metavar="NAME",
              help="Only requests that name this topic. May be repeated.")  # fmt: skip
@click.option("--api", "apis", multiple=True, metavar="NAME",
              help="Only this API, such as Produce or Fetch. May be repeated.")  # fmt: skip
@click.option("--client-id", "client_ids", multiple=True, metavar="ID",
              help="Only of this client id. May be repeated.")  # fmt: skip
@click.option("--slower-than", "slower_than_ms", callback=period_option, default="0ms",
              show_default=True, metavar="PERIOD",
              help="Only requests that took as long, without the wait of a long poll.",
              )  # fmt: skip
@click.option("--for", "for_ms", callback=period_option, default="10s", show_default=True,
              metavar="PERIOD", help="Trace for this time.")  # fmt: skip
@click.option("--requests", "requests_max", type=click.IntRange(1, REQUESTS_MAX), default=200,
              show_default=True, help="End after this number of requests.")  # fmt: skip
@click.option("--show", type=click.IntRange(1, 100_000), default=SHOWN_DEFAULT, show_default=True,
              help="Show this number of requests, the slowest first.")  # fmt: skip
@click.option("--waterfall", is_flag=True, help="Show each request as bars, not as a row.")
@click.option("--send", "send_to", metavar="TOPIC",
              help="Send two records to TOPIC, and trace them.")  # fmt: skip
@json_option
def trace(
    *,
    cluster: Cluster,
    slowest: bool,
    topics: tuple[str, ...],
    apis: tuple[str, ...],
    client_ids: tuple[str, ...],
    slower_than_ms: int,
    for_ms: int,
    requests_max: int,
    show: int,
    waterfall: bool,
    send_to: str | None,
    as_json: bool,
) -> int:
    """Show slow requests, and where their time went: queue, work, disk, replication, send.

    Traces requests on all servers for --for, or until there are enough. With --slowest nothing is
    traced: each server remembers the slowest requests of each API and minute.

    Exit code 1 if a server does not answer.
    """
    if slowest and send_to is not None:
        raise click.UsageError("--slowest shows what has been; --send traces what it sends")
    if not 0 < for_ms <= FOR_MS_MAX:
        raise click.BadParameter("expected at most 10m", param_hint="--for")
    wanted = TraceFilter(
        [_api(name) for name in apis],
        _names("--topic", topics),
        _names("--client-id", client_ids),
        slower_than_ms * _MS,
        for_ms * _MS,
        requests_max,
    )
    settings, wait = _settings(cluster), cluster.timeout_seconds
    try:
        servers = servers_of(
            addresses(cluster.connection.bootstrap), settings, timeout_seconds=wait
        )
    except (Unreachable, ClientSettingsError) as error:
        raise click.ClickException(str(error)) from error
    client_ms: float | None = None
    with (
        Interrupts() as interrupts,
        TracingCluster(servers, settings, timeout_seconds=wait) as tracing,
    ):
        if slowest:
            tracing.slowest()
        elif send_to is not None:
            client_ms = _send(cluster, tracing, send_to, wanted)
        else:
            try:
                _trace(tracing, wanted)
            except KeyboardInterrupt:
                tracing.end()
                if not any(server.requests for server in servers):
                    return interrupts.code
    found = [one for server in servers for one in server.requests]
    if slowest:
        found = _selected(found, wanted)
    found.sort(key=lambda request: -request.busy_ns)
    emit(
        as_json,
        _document(servers, found, client_ms),
        lambda: _print(servers, found[:show], len(found), client_ms, waterfall=waterfall),
    )
    return FAILED if any(server.problem for server in servers) else DONE


def _settings(cluster: Cluster) -> ClientSettings:
    where = cluster.connection
    try:
        return admin_settings(
            dataclasses.replace(where, properties={**where.properties, **cluster.extra})
        )
    except ClientSettingsError as error:
        raise click.ClickException(str(error)) from error


def _api(name: str) -> str:
    """Return the name of an API as servers have it. Raises click.BadParameter."""
    known = {api.name.lower(): api.name for api in API.values()}
    found = known.get(name.replace("-", "").replace("_", "").lower())
    if found is None:
        raise click.BadParameter(f"no API is named {name}", param_hint="--api")
    return found


def _names(option: str, names: Sequence[str]) -> list[str]:
    if any(not 0 < len(name) <= TRACE_NAME_CHARS_MAX for name in names):
        raise click.BadParameter(
            f"expected 1 to {TRACE_NAME_CHARS_MAX} characters", param_hint=option
        )
    return list(names)


def _selected(requests: Sequence[TracedRequest], wanted: TraceFilter) -> list[TracedRequest]:
    """Return the requests of the ring that the options select: their topics are those shown."""
    for request in requests:
        request.topics = frozenset(
            name for one in request.partitions for name in (one, one.rpartition("-")[0])
        )
    return [request for request in requests if wanted.takes(request)]


def _trace(tracing: TracingCluster, wanted: TraceFilter) -> None:
    tracing.start(wanted)
    seconds = wanted.duration_ns / (1_000 * _MS)
    with progress("tracing", None) as bar:
        for count in tracing.until_ended(wanted.requests_max, seconds):
            bar.label(f"{count} requests")


def _send(cluster: Cluster, tracing: TracingCluster, topic: str, wanted: TraceFilter) -> float:
    """Send two records and trace them. Return the milliseconds that the client saw for the second;
    the first waits for metadata and a connection."""
    client_id = f"vdl-trace-{secrets.token_hex(6)}"
    tracing.start(
        dataclasses.replace(
            wanted, apis=["Produce"], topics=(), client_ids=[client_id], slower_than_ns=0
        )
    )
    producer = cluster.producer(
        **{"client.id": client_id, "linger.ms": 0, "message.timeout.ms": int(SEND_SECONDS * 1_000)}
    )
    sender = RecordSender(producer, topic)
    try:
        sender.send(NewRecord(b"vdl trace: first"))
        sender.flush()
        began = time.monotonic()
        sender.send(NewRecord(b"vdl trace: second"))
        sender.flush()
        took_ms = (time.monotonic() - began) * 1_000
    except kafka_exception() as error:
        raise click.ClickException(cluster.words(error)) from error
    finally:
        producer.close()
    if sender.outcome.failed:
        fail(next(iter(sender.outcome.reasons)))
    tracing.end()
    return took_ms


# --- what is shown ------------------------------------------------------------------------------


def _document(
    servers: Sequence[TracedServer], requests: Sequence[TracedRequest], client_ms: float | None
) -> dict[str, Any]:
    return {
        "servers": [
            {"id": server.id, "problem": server.problem, "ended": server.ended}
            for server in servers
        ],
        "client_ms": client_ms,
        "requests": [request_document(request) for request in requests],
    }


def request_document(request: TracedRequest) -> dict[str, Any]:
    """Return a request for `--json`."""
    found = dataclasses.asdict(request)
    del found["topics"]
    return found


def _print(
    servers: Sequence[TracedServer],
    requests: Sequence[TracedRequest],
    count: int,
    client_ms: float | None,
    *,
    waterfall: bool,
) -> None:
    for server in servers:
        if server.problem:
            say(f"server {server.id}: {server.problem}")
    if waterfall or client_ms is not None:
        for request in requests:
            say("\n".join(waterfall_lines(request)))
            say()
    elif requests:
        table(
            ("began", ">server", "api", "client", "named", ">ms", "where"),
            [_row(request) for request in requests],
        )
    if client_ms is not None:
        say(f"the client waited {client_ms:.1f} ms for its second record")
    left = count - len(requests)
    if left:
        say(f"{left} more; --show {count} shows all")
    if not count:
        say("no request")


def _row(request: TracedRequest) -> list[object]:
    return [
        show_time(request.began_ms),
        request.server_id,
        request.api,
        visible_text(request.client_id),
        visible_text(_named(request)),
        f"{request.total_ns / _MS:.1f}",
        _where(request),
    ]


def _named(request: TracedRequest) -> str:
    """Return what the request named, the partition first that it waited for."""
    if request.slowest:
        first, count = request.slowest, request.partition_count
    elif request.partitions:
        first, count = request.partitions[0], request.partition_count
    else:
        return request.group or "-"
    return f"{first} and {count - 1} more" if count > 1 else first


def _where(request: TracedRequest) -> str:
    """Return the stages that took most, the longest first."""
    stages = sorted(request.stages, key=lambda stage: -stage.duration_ns)
    parts = []
    for stage in stages:
        if stage.duration_ns * 20 >= request.total_ns:
            part = f"{stage.name} {stage.duration_ns / _MS:.1f}"
            if stage.name == "replication" and request.acked_by:
                part += f" (server {request.acked_by} last)"
            parts.append(part)
    return ", ".join(parts)


def waterfall_lines(request: TracedRequest) -> list[str]:
    """Return a request as lines: its facts, and a bar for each stage."""
    facts = [
        f"{show_time(request.began_ms)}  {request.api} v{request.version}  "
        f"{request.total_ns / _MS:.1f} ms  server {request.server_id}  {_named(request)}",
        f"  client {request.client_id or '-'}  {request.principal}  {request.peer}  "
        f"listener {request.listener}  connection {request.connection_id}  "
        f"correlation {request.correlation_id}",
    ]
    if request.term:
        last = f"  acknowledged last by server {request.acked_by}" if request.acked_by else ""
        facts.append(f"  term {request.term}{last}")
    total = max(request.total_ns, 1)
    lines = []
    for stage in request.stages:
        begin = min(stage.start_ns * _BAR // total, _BAR - 1)
        length = max(1, round(stage.duration_ns * _BAR / total))
        bar = " " * begin + "#" * min(length, _BAR - begin)
        lines.append(f"  {stage.name:<12}{stage.duration_ns / _MS:>10.2f} ms  |{bar:<{_BAR}}|")
    return [visible_text(line) for line in (*facts, *lines)]
