"""Routes `/metrics`, `/health` and `/ready`: counters kept elsewhere, read at each request.

Hot paths only increment plain integers; nothing here runs between two scrapes. `exposition.py`
makes a page of them. The meaning of the numbers is in `HELP`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from rpc.streams import LinkStatus
from segments.histogram import Histogram
from vdl.server.exposition import Distribution, Exposition, Number, Sample, Source
from vdl.server.http import Response, Route
from vdl.server.problem import CLUSTER_KINDS, SERVER_KINDS, Problem


@dataclass(frozen=True, slots=True)
class Health:
    """Readiness of this server for traffic, and the facts behind it (shown as JSON)."""

    is_ready: bool
    facts: Mapping[str, object]


HELP: dict[str, str] = {
    "process_cpu_seconds_total": "CPU time used by this process, user and system.",
    "process_resident_memory_bytes": "Resident memory of this process.",
    "process_open_fds": "File descriptors open in this process.",
    "process_start_time_seconds": "Start time of this process in seconds since 1970.",
    "vdl_process_gc_collections_total": "Garbage collections of all generations.",
    "vdl_server_problem": (
        "1 while a problem of this kind exists. The kinds are those of /health and `vdl status`."
    ),
    "vdl_server_groups": "Raft groups with a replica on this server.",
    "vdl_server_leading": "Raft groups led by this server.",
    "vdl_server_clock_ahead_seconds": (
        "Time by which the wall clock is ahead of the time agreed by a majority of the servers."
    ),
    "vdl_server_leaderless": (
        "Raft groups with a replica here of which no leader is known: partitions, coordinators, the"
        " catalog."
    ),
    "vdl_server_isr_shrinks_total": (
        "Replicas that left the in-sync replicas of a partition led here."
    ),
    "vdl_server_isr_expands_total": "Replicas that joined them.",
    "vdl_server_under_replicated_partitions": (
        "Partitions led by this server with fewer replicas in sync than assigned."
    ),
    "vdl_server_under_min_isr_partitions": (
        "Partitions led by this server with fewer replicas in sync than min.insync.replicas."
    ),
    "vdl_server_at_min_isr_partitions": (
        "Partitions led by this server with exactly min.insync.replicas replicas in sync."
    ),
    "vdl_server_turns_total": "Turns of the event loop in which at least one group had work.",
    "vdl_server_leaderships_won_total": "Elections won by replicas of this server.",
    "vdl_server_elections_waiting": (
        "Partitions of this server that wait for their turn to campaign."
    ),
    "vdl_server_elections_under_way": "Partitions of this server that campaign now.",
    "vdl_server_elections_dropped_total": (
        "Campaigns cancelled in the queue because they were no longer needed."
    ),
    "vdl_server_overloaded": (
        "1 while the server is overloaded: its event loop or its requests are late."
    ),
    "vdl_server_overloaded_total": "Periods of overload since the start.",
    "vdl_server_client_connections_waiting": (
        "Client connections whose next request waits to start."
    ),
    "vdl_server_loop_late_seconds_total": "Total time by which the event loop was late.",
    "vdl_server_raft_messages_dropped_total": (
        "Raft messages dropped: the group or replica is unknown, or no server sends this kind."
    ),
    "vdl_server_raft_contradictions_total": (
        "Raft messages that contradict themselves or the local log: one of the two replicas is "
        "faulty."
    ),
    "vdl_server_raft_appends_refused_total": (
        "Append messages whose entries a follower refused because the store has no room for them."
    ),
    "vdl_server_links_refused_total": (
        "Connections between servers refused or closed by this server: a certificate of another "
        "server, another cluster or another protocol version."
    ),
    "vdl_server_client_connections": "Open client connections.",
    "vdl_server_login_failures_total": "Failed SASL logins.",
    "vdl_tls_handshakes_total": "Completed TLS handshakes with clients.",
    "vdl_tls_handshakes_failed_total": (
        "Failed TLS handshakes: no TLS, a server certificate that the client does not trust, or "
        "no valid client certificate."
    ),
    "vdl_tls_handshakes_timed_out_total": "TLS handshakes that exceeded their time limit.",
    "vdl_tls_handshakes_displaced_total": (
        "TLS handshakes closed to make room for others, taken from the address with most of them."
    ),
    "vdl_tls_handshakes_under_way": "TLS handshakes in progress.",
    "vdl_server_client_connections_refused_total": (
        "Client connections refused because of a connection limit."
    ),
    "vdl_otlp_pages_sent_total": "Pages of metrics sent to the receiver of OpenTelemetry.",
    "vdl_otlp_pages_skipped_total": "Pages not made, because the one before was still being sent.",
    "vdl_otlp_requests_sent_total": "Slow requests sent as spans.",
    "vdl_otlp_requests_dropped_total": "Slow requests that could not be sent as spans.",
    "vdl_otlp_failures_total": "Pages, and lists of slow requests, that the receiver did not take.",
    "vdl_server_slow_requests_kept_total": (
        "Requests kept because they were among the slowest of their minute, or selected by a trace."
    ),
    "vdl_server_slow_requests_bytes": "Bound of the memory of these requests.",
    "vdl_server_traces_running": "Traces of requests that run now (`vdl trace`).",
    "vdl_server_record_walk_native": "1 if batches are checked in C, 0 if in Python.",
    "vdl_server_record_checks_off_loop_total": (
        "Batches checked in a thread instead of the event loop."
    ),
    "vdl_server_record_checks_recompressed_total": (
        "Batches recompressed with the codec of their topic (compression.type)."
    ),
    "vdl_server_record_checks_refused_total": "Batches refused because of their records.",
    "vdl_server_pattern_slices_total": (
        "Slices of work on regular expressions of clients, in their thread."
    ),
    "vdl_server_patterns_compiled_total": "Regular expressions of clients compiled.",
    "vdl_server_coordinator_offsets": "Committed offsets in the coordinators led by this server.",
    "vdl_server_coordinator_bytes": (
        "Bytes of offsets, groups and transactions in the coordinators led by this server."
    ),
    "vdl_server_coordinator_room_used_ratio": (
        "Used share of the room of the fullest coordinator led by this server. At 1 it refuses "
        "commits."
    ),
    "vdl_server_down_conversions_total": (
        "Fetch responses converted to the message format of consumers before Kafka 0.11."
    ),
    "vdl_server_request_memory_bytes": (
        "Bytes of requests that are being received or are unanswered."
    ),
    "vdl_server_request_memory_max_bytes": "Limit of vdl_server_request_memory_bytes.",
    "vdl_server_request_memory_waits_total": (
        "Times that reading from a connection paused because request memory was full."
    ),
    "vdl_server_answer_memory_bytes": "Bytes of responses that are being built or are unsent.",
    "vdl_server_answer_memory_max_bytes": "Limit of vdl_server_answer_memory_bytes.",
    "vdl_server_answer_memory_waits_total": (
        "Times that a response was delayed because response memory was full."
    ),
    "vdl_server_cold_read_bytes_per_second": (
        "Rate allowed to all consumers that read far behind the end of their partitions."
    ),
    "vdl_server_acknowledgement_usual_seconds": (
        "Mean time of an acknowledgement while no consumer reads far behind."
    ),
    "vdl_server_replicas": "Partition replicas on this server.",
    "vdl_server_replicas_max": "Limit of partition replicas on this server.",
    "vdl_server_topics_refused_total": (
        "Creations and enlargements of topics refused because of the limit of replicas."
    ),
    "vdl_server_acls": "ACL bindings in the catalog.",
    "vdl_server_acl_bytes": "Bytes of ACL bindings in the catalog.",
    "vdl_server_authorizer_decisions_total": (
        "Authorization decisions, without those cached by a connection."
    ),
    "vdl_server_authorizer_denials_total": "Authorization decisions that denied access.",
    "vdl_server_audit_lines_total": "Lines written to the audit log.",
    "vdl_server_audit_lines_left_out_total": (
        "Audit lines counted but not written because of the rate limit."
    ),
    "vdl_server_quota_entities": "Users, client ids and addresses with quotas in the catalog.",
    "vdl_server_quota_buckets": "Clients whose usage is measured on this server.",
    "vdl_server_quota_buckets_evicted_total": (
        "Measurements of clients evicted because there were too many."
    ),
    "vdl_server_requests_throttled_total": "Requests after which a quota throttled the connection.",
    "vdl_server_throttle_seconds_total": "Total time of throttling by quotas.",
    "vdl_server_client_connections_over_quota_total": (
        "Client connections refused because their address exceeded its connection rate."
    ),
    "vdl_server_transactional_ids": "Transactional ids in the coordinators led by this server.",
    "vdl_server_transactions_open": "Ongoing transactions in the coordinators led by this server.",
    "vdl_server_transactions_ending": (
        "Decided transactions whose markers are not written to all partitions yet."
    ),
    "vdl_server_transactions_timed_out_total": "Transactions aborted because of their timeout.",
    "vdl_server_aborted_transactions_listed": (
        "Largest number of aborted transactions kept by a partition on this server."
    ),
    "vdl_server_fetch_sessions": "Fetch sessions in the cache.",
    "vdl_server_fetch_session_partitions": "Partitions of the fetch sessions in the cache.",
    "vdl_server_fetch_sessions_evicted_total": "Fetch sessions evicted for new ones.",
    "vdl_server_fetch_sessions_refused_total": "Fetch sessions refused because the cache was full.",
    "vdl_server_share_sessions": "Sessions of members of share groups.",
    "vdl_server_share_sessions_refused_total": (
        "Sessions of members of share groups refused because there was no room."
    ),
    "vdl_server_share_partitions": "Share-partitions in use on this server.",
    "vdl_server_share_writes_total": "Commands that stored the state of share-partitions.",
    "vdl_server_share_locks_expired_total": (
        "Records of share groups whose acquisition lock expired before an acknowledgement."
    ),
    "vdl_server_client_connections_stalled_total": (
        "Connections closed because they made no progress while others waited for their memory."
    ),
    "vdl_server_handler_errors_total": "Requests that failed because of a bug in the server.",
    "vdl_store_logs_lost": (
        "Replicas that lost data they may have acknowledged. They do not vote until replaced."
    ),
    "vdl_store_damaged_ranges": "Damaged ranges of entries that are not repaired yet.",
    "vdl_store_meta_salvaged_total": (
        "Times that the applied state was copied out of a damaged file."
    ),
    "vdl_store_meta_used_bytes": "Bytes of applied state, in used pages.",
    "vdl_store_meta_file_bytes": "Size of the file of applied state, free pages included.",
    "vdl_store_meta_map_bytes": (
        "Size of the memory map of applied state. It grows before the file does."
    ),
    "vdl_store_scrubbed_bytes_total": "Bytes of segments read by the scrubber.",
    "vdl_store_scrub_errors_total": "Damaged entries found by the scrubber.",
    "vdl_store_scrub_parts_damaged_total": (
        "Damaged files beside segments found by the scrubber: journal, identity, format, meta."
    ),
    "vdl_store_scrub_passes_total": "Complete passes of the scrubber over all segments.",
    "vdl_store_scrub_last_pass_bytes": "Bytes read by the last complete pass of the scrubber.",
    "vdl_store_scrub_last_pass_seconds_ago": (
        "Seconds since the end of the last complete pass, -1 before the first."
    ),
    "vdl_store_failpoints": "Active failpoints: more than 0 only in tests.",
    "vdl_store_unflushed_bytes": (
        "Bytes in the journal and the cache that are not in a segment yet."
    ),
    "vdl_store_cache_bytes": "Bytes in the tail cache.",
    "vdl_store_cache_misses_total": "Reads served from disk instead of the tail cache.",
    "vdl_store_journal_blocks_total": "Durable writes to the journal.",
    "vdl_store_journal_bytes_total": "Bytes written to the journal.",
    "vdl_store_journal_write_seconds": "Durable journal writes (fsync), until they are handled.",
    "vdl_store_journal_write_max_seconds": "The slowest durable journal write.",
    "vdl_store_disk_free_bytes": (
        "Bytes that this server may still use of the file system of its data directory, as "
        "measured at the last scrape."
    ),
    "vdl_store_disk_size_bytes": "Size of that file system.",
    "vdl_store_disk_full": "1 while the disk is full and appends are refused.",
    "vdl_store_recovered_torn_bytes": "Bytes of a torn journal tail removed by the last start.",
    "vdl_store_recovered_damaged_blocks": "Damaged journal blocks found by the last start.",
    "vdl_store_recovered_damaged_headers": (
        "Damaged headers of journal files repaired by the last start."
    ),
    "vdl_store_stray_names": "Files in the data directory that do not belong to the server.",
    "vdl_store_reads_refused_total": "Reads refused because file descriptors or memory were short.",
    "vdl_kafka_requests_total": "Requests answered, by API.",
    "vdl_kafka_request_errors_total": (
        "Requests that failed because of a bug in the server, by API."
    ),
    "vdl_kafka_request_bytes_total": "Bytes of requests, by API.",
    "vdl_kafka_response_bytes_total": "Bytes of responses, by API.",
    "vdl_kafka_request_seconds_total": (
        "Total time from request to response, waits included, by API."
    ),
    "vdl_request_seconds": (
        "Latency of requests by API and phase: queue (arrived until started), work (until the "
        "handler returns), replication or wait (until the answer is known; wait for Fetch and "
        "others that wait for records or members), send (until it is given to the socket), "
        "total."
    ),
    "vdl_replication_seconds": (
        "Time from the append of a batch by its leader here until it is committed. Sampled: "
        "one batch at a time for each partition."
    ),
    "vdl_end_to_end_lag_seconds": (
        "Age of records by their timestamps when a consumer is given them. Sampled: at most "
        "50 answers per second."
    ),
    "vdl_topic_bytes_in_total": (
        "Bytes of batches appended by leaders here, by topic: the busiest ones by name, the "
        "rest as other."
    ),
    "vdl_topic_records_in_total": "Records in these batches.",
    "vdl_topic_bytes_out_total": "Bytes of batches given to consumers here, by topic.",
    "vdl_topic_records_out_total": "Offsets that these batches cover.",
    "vdl_group_lag_records": (
        "Records that a consumer group has not committed, by topic. Only from the leader of "
        "the group's coordinator; the rows with most records behind."
    ),
    "vdl_group_lag_seconds": (
        "Age of the first record that the group has not committed, of the partitions with "
        "most records behind. Missing if it is not known from memory: nothing is read from disk. "
        "Markers and records of aborted transactions do not count."
    ),
    "vdl_group_lag_rows_left_out": "Rows that are not shown, because they are many.",
    "vdl_group_lag_partitions_elsewhere": (
        "Partitions whose lag is not known, because this server has no replica of them; "
        "groups count apart."
    ),
    "vdl_build_info": "1, labelled with the version of VDL, of Python, and of what checks records.",
    "vdl_client_telemetry_clients": "Clients with a telemetry subscription.",
    "vdl_client_telemetry_pushes_total": "Accepted pushes of client metrics.",
    "vdl_client_telemetry_pushes_refused_total": (
        "Pushes of client metrics that were refused or invalid."
    ),
    "vdl_client_telemetry_points_total": "Accepted data points of client metrics.",
    "vdl_client_telemetry_points_dropped_total": (
        "Data points of client metrics dropped because of the limit of series."
    ),
    "vdl_client_counter_total": "Counters pushed by clients (KIP-714).",
    "vdl_client_gauge": "Last gauges pushed by clients (KIP-714).",
    "vdl_peer_up": "1 while the link to that server is up.",
    "vdl_peer_unsent_bytes": "Bytes queued for the link to that server.",
    "vdl_peer_round_trip_seconds": "Last round trip to that server, -1 before the first.",
    "vdl_peer_silent_seconds": (
        "Seconds since the last message from that server. Since the start of this server if "
        "there was none."
    ),
    "vdl_peer_dial_failures": "Failed connection attempts to that server.",
}
"""Metric → one sentence. A metric without one is described by its own name."""

STORE_COUNTERS = frozenset(
    {
        "cache_chunks_evicted", "cache_hits", "cache_misses", "checkpoints",
        "compaction_freed_bytes", "compaction_read_bytes", "compaction_segments_joined",
        "compaction_segments_rewritten", "flushed_bytes",
        "journal_blocks", "journal_bytes", "meta_salvaged", "payload_bytes", "read_ahead_hits",
        "reads_refused", "scrub_errors", "scrub_parts_damaged", "scrub_passes", "scrubbed_bytes",
    }
)  # fmt: skip
"""Keys of a store's statistics that are counters."""


WAITING_APIS: Final = frozenset({"Fetch", "JoinGroup", "ShareFetch", "SyncGroup"})
"""APIs that wait for records or for other members; others wait for replicas, if at all."""


class PushedNumbers(Protocol):
    """Metrics pushed by clients, as the front end keeps them."""

    @property
    def pushes(self) -> int: ...
    @property
    def pushes_refused(self) -> int: ...
    @property
    def points(self) -> int: ...
    @property
    def points_dropped(self) -> int: ...
    def __len__(self) -> int: ...
    def series(self, now_ns: int) -> Iterator[tuple[str, str, str, float, bool]]:
        """Yield (metric, client id, attributes, number, True for a counter)."""


class ApiCounters(Protocol):
    """The front end's counters of one API."""

    requests: int
    errors: int
    bytes_in: int
    bytes_out: int
    total_ns: int
    queue: Histogram
    work: Histogram
    wait: Histogram
    send: Histogram
    total: Histogram


def store_numbers(stats: Mapping[str, Number]) -> dict[str, Number]:
    """Return a store's numbers, with counters and units named as Prometheus has them."""
    numbers = {f"{key}_total" if key in STORE_COUNTERS else key: stats[key] for key in stats}
    if "journal_write_ns_max" in numbers:
        numbers["journal_write_max_seconds"] = numbers.pop("journal_write_ns_max") / 1e9
    return numbers


def api_samples(apis: Mapping[str, ApiCounters]) -> Iterator[Sample]:
    """Yield the front end's counters of every API that was used."""
    for name, counters in apis.items():
        if not counters.requests and not counters.errors:
            continue
        labels = (("api", name),)
        yield Sample("requests_total", labels, counters.requests)
        yield Sample("request_errors_total", labels, counters.errors)
        yield Sample("request_bytes_total", labels, counters.bytes_in)
        yield Sample("response_bytes_total", labels, counters.bytes_out)
        yield Sample("request_seconds_total", labels, counters.total_ns / 1e9)


def latency_distributions(apis: Mapping[str, ApiCounters]) -> Iterator[Distribution]:
    """Yield the latencies of every API that was used, by phase."""
    for name, counters in apis.items():
        if counters.requests:
            between = "wait" if name in WAITING_APIS else "replication"
            for phase, of in (
                ("queue", counters.queue),
                ("work", counters.work),
                (between, counters.wait),
                ("send", counters.send),
                ("total", counters.total),
            ):
                yield Distribution("seconds", (("api", name), ("phase", phase)), of)


def build_samples(version: str, python: str, *, is_native: bool) -> Iterator[Sample]:
    """Yield the version of this build as labels."""
    checks = "c" if is_native else "python"
    labels = (("version", version), ("python", python), ("record_checks", checks))
    yield Sample("info", labels, 1)


def client_samples(metrics: PushedNumbers, now_ns: int) -> Iterator[Sample]:
    """Yield the metrics that clients pushed (KIP-714), and counters of the pushes."""
    yield Sample("telemetry_clients", (), len(metrics))
    yield Sample("telemetry_pushes_total", (), metrics.pushes)
    yield Sample("telemetry_pushes_refused_total", (), metrics.pushes_refused)
    yield Sample("telemetry_points_total", (), metrics.points)
    yield Sample("telemetry_points_dropped_total", (), metrics.points_dropped)
    for name, client_id, attributes, value, is_counter in metrics.series(now_ns):
        labels = (("metric", name), ("client_id", client_id), ("attributes", attributes))
        yield Sample("counter_total" if is_counter else "gauge", labels, value)


class Handshakes(Protocol):
    """A TLS port and its handshake counters; its length is the number of handshakes in progress."""

    name: str
    done: int
    failed: int
    timed_out: int

    @property
    def displaced(self) -> int: ...

    def __len__(self) -> int: ...


def tls_samples(ports: Iterable[Handshakes]) -> Iterator[Sample]:
    """Yield the handshake counters of the listeners with TLS."""
    for port in ports:
        labels = (("listener", port.name),)
        yield Sample("handshakes_total", labels, port.done)
        yield Sample("handshakes_failed_total", labels, port.failed)
        yield Sample("handshakes_timed_out_total", labels, port.timed_out)
        yield Sample("handshakes_displaced_total", labels, port.displaced)
        yield Sample("handshakes_under_way", labels, len(port))


def problem_samples(problems: Iterable[Problem]) -> Iterator[Sample]:
    """Yield 1 for each kind of problem that is present, otherwise 0."""
    present = {problem.kind for problem in problems}
    for kind in (*SERVER_KINDS, *CLUSTER_KINDS):
        yield Sample("problem", (("kind", kind),), int(kind in present))


def peer_samples(links: Iterable[LinkStatus]) -> Iterator[Sample]:
    """Yield the numbers of the links to the other servers."""
    for link in links:
        labels = (("server", str(link.server_id)),)
        round_trip = link.round_trip_ns / 1e9 if link.round_trip_ns >= 0 else -1
        yield Sample("up", labels, int(link.is_up))
        yield Sample("unsent_bytes", labels, link.unsent_bytes)
        yield Sample("round_trip_seconds", labels, round_trip)
        yield Sample("silent_seconds", labels, link.silent_ns / 1e9)
        yield Sample("dial_failures", labels, link.dial_failures)


def exposition_of(sources: Iterable[Source]) -> Exposition:
    """Return what makes the pages of these sources and of the process."""
    process = (
        Source("process", process_numbers, prefix=""),
        Source("process", collector_numbers),
    )
    return Exposition((*process, *sources), HELP)


def operations_routes(sources: Iterable[Source], health: Callable[[], Health]) -> dict[str, Route]:
    """Return the routes of the operations port."""
    exposition = exposition_of(sources)
    return {
        "/metrics": exposition.page,
        # A server that answers is healthy even if it has problems: a restart would take longer.
        "/health": lambda: _respond_health(200, health()),
        "/ready": lambda: _respond_health(200 if (now := health()).is_ready else 503, now),
    }


def process_numbers() -> dict[str, Number]:
    """Return the resources that this process uses."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "resident_memory_bytes": _resident_bytes(),
        "open_fds": _open_descriptors(),
        "start_time_seconds": _STARTED_SECONDS,
    }


def collector_numbers() -> dict[str, Number]:
    """Return the work of Python's collector of cycles."""
    return {"gc_collections_total": sum(found["collections"] for found in gc.get_stats())}


_STARTED_SECONDS = round(time.time(), 3)


def started_seconds() -> float:
    """Return the time, in seconds since 1970, from which all counters count."""
    return _STARTED_SECONDS


def _resident_bytes() -> int:
    """Return resident memory, from /proc if it exists, else the peak."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a disk file
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, no paths are needed
    except OSError:
        return -1


def _respond_health(status: int, health: Health) -> Response:
    body = json.dumps(dict(health.facts), default=str).encode() + b"\n"
    return Response(status, "application/json", body)
