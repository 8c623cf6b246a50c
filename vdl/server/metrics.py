"""Routes `/metrics`, `/health` and `/ready`: counters kept elsewhere, read at each request.

Hot paths only increment plain integers; nothing here runs between two scrapes. A `Source` is a
function that returns the present numbers of one layer; at a scrape its numbers become Prometheus
samples named `vdl_<source>_<key>`. A key that ends in `_total` is a counter, any other a gauge.
The Prometheus library is loaded at the first scrape, so a server without scrapes does not load it.

The meaning of the numbers is in `HELP`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rpc.streams import LinkStatus
from vdl.server.http import Response, Route
from vdl.server.problem import CLUSTER_KINDS, SERVER_KINDS, Problem

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


Number = int | float


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with labels, for items of which there are many: an API, a peer, a partition."""

    key: str
    labels: tuple[tuple[str, str], ...]
    value: Number


Numbers = Mapping[str, Number] | Iterable[Sample]


@dataclass(frozen=True, slots=True)
class Source:
    """One layer's numbers: `read` is called on the loop, at a scrape, and returns at once."""

    name: str
    read: Callable[[], Numbers]


@dataclass(frozen=True, slots=True)
class Health:
    """Readiness of this server for traffic, and the facts behind it (shown as JSON)."""

    is_ready: bool
    facts: Mapping[str, object]


HELP: dict[str, str] = {
    "vdl_process_cpu_seconds_total": "CPU time of this process, user and system.",
    "vdl_process_resident_bytes": "Memory of this process that is resident now.",
    "vdl_process_open_descriptors": "File descriptors in use.",
    "vdl_process_start_time_seconds": "When this process started, seconds since 1970.",
    "vdl_process_gc_collections_total": "Garbage collections of all generations.",
    "vdl_server_problem": (
        "1 while there is a problem of this kind: the kinds of /health and `vdl status`."
    ),
    "vdl_server_groups": "Raft groups with a replica here.",
    "vdl_server_leading": "Raft groups led from here.",
    "vdl_server_clock_ahead_seconds": (
        "How far the wall clock is ahead of the time that a majority of the servers agree on."
    ),
    "vdl_server_under_replicated_partitions": (
        "Partitions led from here with fewer replicas in sync than they have."
    ),
    "vdl_server_under_min_isr_partitions": (
        "Partitions led from here with fewer replicas in sync than min.insync.replicas."
    ),
    "vdl_server_at_min_isr_partitions": (
        "Partitions led from here with just min.insync.replicas replicas in sync."
    ),
    "vdl_server_turns_total": "Turns of the loop in which some group had work.",
    "vdl_server_leaderships_won_total": "Elections won here.",
    "vdl_server_elections_waiting": "Partitions that wait for their turn to campaign.",
    "vdl_server_elections_under_way": "Partitions this server stands for now.",
    "vdl_server_elections_dropped_total": (
        "Turns to campaign that were not needed any more when they came."
    ),
    "vdl_server_overloaded": "1 while the server has more to do than it can.",
    "vdl_server_overloaded_total": "Times that began.",
    "vdl_server_client_connections_waiting": "Connections whose requests wait to be started.",
    "vdl_server_loop_late_seconds_total": "For how long the loop has been late in all.",
    "vdl_server_raft_messages_dropped_total": (
        "Messages for groups or replicas unknown here, or of kinds that no server sends."
    ),
    "vdl_server_raft_contradictions_total": (
        "Messages of peers that cannot be true, by themselves or beside the log here: one of the"
        " two replicas is faulty."
    ),
    "vdl_server_raft_appends_refused_total": (
        "Messages of which a follower took no records because its segments do not keep up."
    ),
    "vdl_server_links_refused_total": (
        "Connections to the peer port, or of this server to another, that it refused or ended: no"
        " certificate of the server that the other end says it is, another cluster, another"
        " protocol."
    ),
    "vdl_server_client_connections": "Client connections that are open.",
    "vdl_server_login_failures_total": "Clients whose login by SASL was refused.",
    "vdl_tls_handshakes_total": "TLS handshakes with clients that were done.",
    "vdl_tls_handshakes_failed_total": (
        "Those that failed: of clients that speak something else, trust somebody else or show no"
        " certificate that is good."
    ),
    "vdl_tls_handshakes_timed_out_total": "Those that took too long.",
    "vdl_tls_handshakes_displaced_total": (
        "Those that had to go because too many were under way: of the address with most."
    ),
    "vdl_tls_handshakes_under_way": "TLS handshakes with clients that have begun.",
    "vdl_server_client_connections_refused_total": "Client connections over a limit.",
    "vdl_server_record_walk_native": "1 where batches are checked in C, 0 where in Python.",
    "vdl_server_record_checks_off_loop_total": "Batches that were checked in a thread.",
    "vdl_server_record_checks_recompressed_total": (
        "Batches that were compressed anew, as their topic asks."
    ),
    "vdl_server_record_checks_refused_total": "Batches refused for what is inside them.",
    "vdl_server_pattern_slices_total": "Slices of work on clients' patterns, in their thread.",
    "vdl_server_patterns_compiled_total": "Patterns of clients that were compiled.",
    "vdl_server_coordinator_offsets": "Committed offsets of the coordinators that are led here.",
    "vdl_server_coordinator_bytes": "What these coordinators hold, with groups and transactions.",
    "vdl_server_coordinator_room_used_ratio": (
        "How much of its room the fullest of them uses: at 1 it refuses commits."
    ),
    "vdl_server_down_conversions_total": "Answers converted for consumers before Kafka 0.11.",
    "vdl_server_request_memory_bytes": "Requests that are arriving or not answered.",
    "vdl_server_request_memory_bytes_max": "The most they may come to.",
    "vdl_server_request_memory_waits_total": "Times a connection was not read for want of room.",
    "vdl_server_answer_memory_bytes": "Answers that are being built or not taken.",
    "vdl_server_answer_memory_bytes_max": "The most they may come to.",
    "vdl_server_answer_memory_waits_total": "Times an answer was put off for want of room.",
    "vdl_server_cold_read_bytes_per_second": "What readers far behind may take beside producers.",
    "vdl_server_acknowledgement_usual_seconds": "What one takes while nobody far behind reads.",
    "vdl_server_replicas": "Replicas of partitions that run here.",
    "vdl_server_replicas_max": "Replicas of partitions that a server may have.",
    "vdl_server_topics_refused_total": "Topics not created, or not enlarged, because of that.",
    "vdl_server_acls": "ACL bindings in the catalog.",
    "vdl_server_acl_bytes": "What they take of the room there is for them.",
    "vdl_server_authorizer_decisions_total": "Decisions on what clients may do, beside those that"
    " their connections remembered.",
    "vdl_server_authorizer_denials_total": "Those that denied.",
    "vdl_server_audit_lines_total": "Lines of the audit log.",
    "vdl_server_audit_lines_left_out_total": "Lines it counted instead, because they were many.",
    "vdl_server_quota_entities": "Users, client ids and addresses with quotas in the catalog.",
    "vdl_server_quota_buckets": "Clients of which it is known here what they have used.",
    "vdl_server_quota_buckets_evicted_total": "Those forgotten too soon, because they were many.",
    "vdl_server_requests_throttled_total": "Requests whose connection had to wait.",
    "vdl_server_throttle_seconds_total": "For how long, all together.",
    "vdl_server_client_connections_over_quota_total": "Connections refused because an address made"
    " more than it may in a time.",
    "vdl_server_transactional_ids": "Transactional ids of the coordinators led here.",
    "vdl_server_transactions_open": "Their transactions that are open.",
    "vdl_server_transactions_ending": "Those that are decided while participants are told.",
    "vdl_server_transactions_timed_out_total": "Those that were open for too long.",
    "vdl_server_aborted_transactions_listed": "Aborted transactions that the partition here lists"
    " that lists most.",
    "vdl_server_fetch_sessions": "Fetch sessions there are.",
    "vdl_server_fetch_session_partitions": "Partitions in them.",
    "vdl_server_fetch_sessions_evicted_total": "Fetch sessions that gave way to others.",
    "vdl_server_fetch_sessions_refused_total": "Fetch sessions there was no place for.",
    "vdl_server_share_sessions": "Sessions of members of share groups there are.",
    "vdl_server_share_sessions_refused_total": "Sessions of such members there was no place for.",
    "vdl_server_share_partitions": "Share-partitions that are given out here.",
    "vdl_server_share_writes_total": "Commands that made changes of share-partitions durable.",
    "vdl_server_share_locks_expired_total": (
        "Records whose member said nothing about them in time, and that were free again."
    ),
    "vdl_server_client_connections_stalled_total": (
        "Connections that held memory others waited for, did not get on, and were closed."
    ),
    "vdl_server_handler_errors_total": "Requests that failed by a fault of the server.",
    "vdl_store_logs_lost": "Replicas that lost what they may have acknowledged; they take no part.",
    "vdl_store_damaged_ranges": "Ranges of entries that are damaged here and not repaired yet.",
    "vdl_store_meta_salvaged_total": "Times applied state was copied out of a damaged file.",
    "vdl_store_meta_used_bytes": "Bytes of applied state, in pages that are in use.",
    "vdl_store_meta_file_bytes": "Bytes of its file: free pages too, for what comes next.",
    "vdl_store_meta_map_bytes": "Bytes that are mapped for it; grows before the file does.",
    "vdl_store_scrubbed_bytes_total": "Bytes of segments that the scrubber has read.",
    "vdl_store_scrub_errors_total": "Damaged entries that the scrubber has found.",
    "vdl_store_scrub_parts_damaged_total": (
        "Files beside segments in which it has found damage: journal, identity, format, meta."
    ),
    "vdl_store_scrub_passes_total": "Times the scrubber has read all segments.",
    "vdl_store_scrub_last_pass_bytes": "Bytes of the last whole pass of the scrubber.",
    "vdl_store_scrub_last_pass_seconds_ago": "Time since it ended, -1 before the first.",
    "vdl_store_failpoints": "Failpoints that are set: more than 0 only in tests.",
    "vdl_store_unflushed_bytes": "Bytes in the cache and not yet in a segment.",
    "vdl_store_cache_bytes": "Bytes of the tail cache in use.",
    "vdl_store_cache_misses_total": "Reads that had to go to disk.",
    "vdl_store_journal_blocks_total": "Journal writes, each made durable before it counts.",
    "vdl_store_journal_bytes_total": "Bytes written to the journal.",
    "vdl_store_journal_write_ns_total": "Time spent in durable journal writes, in nanoseconds.",
    "vdl_store_journal_write_ns_max": "The slowest durable journal write, in nanoseconds.",
    "vdl_store_disk_full": "1 while the disk is full and appends are refused.",
    "vdl_store_recovered_torn_bytes": "Journal bytes cut off at the last start: a torn tail.",
    "vdl_store_recovered_damaged_blocks": "Journal blocks the last start found damaged.",
    "vdl_store_recovered_damaged_headers": "Damaged headers of journal files it repaired.",
    "vdl_store_stray_names": "Names it found in the data directory that are not the server's.",
    "vdl_store_reads_refused_total": "Reads given up for want of descriptors or memory.",
    "vdl_kafka_requests_total": "Requests answered, by API.",
    "vdl_kafka_request_errors_total": "Requests that failed by a fault of the server, by API.",
    "vdl_kafka_request_bytes_total": "Bytes of requests, by API.",
    "vdl_kafka_response_bytes_total": "Bytes of responses, by API.",
    "vdl_kafka_request_seconds_total": "Time from request to response, waiting included, by API.",
    "vdl_client_telemetry_clients": "Clients that have asked which metrics to push.",
    "vdl_client_telemetry_pushes_total": "Pushes of clients' metrics that were taken.",
    "vdl_client_telemetry_pushes_refused_total": "Pushes that were refused, or could not be read.",
    "vdl_client_telemetry_points_total": "Numbers in them that were taken.",
    "vdl_client_telemetry_points_dropped_total": "Numbers beyond what is kept.",
    "vdl_client_counter_total": "What clients count themselves, as they pushed it (KIP-714).",
    "vdl_client_gauge": "What clients measure themselves, as they pushed it last (KIP-714).",
    "vdl_peer_up": "1 while the link to that server is up.",
    "vdl_peer_unsent_bytes": "Bytes that wait for the link to that server.",
    "vdl_peer_round_trip_seconds": "Last round trip to that server, -1 before the first.",
    "vdl_peer_silent_seconds": (
        "Time since something came from that server, link or no link; since this server started if "
        "nothing ever did."
    ),
    "vdl_peer_dial_failures": "Dials that did not reach that server.",
}
"""Metric → one sentence. A metric without one is described by its own name."""

STORE_COUNTERS = frozenset(
    {
        "cache_chunks_evicted", "cache_hits", "cache_misses", "checkpoints", "flushed_bytes",
        "journal_blocks", "journal_bytes", "meta_salvaged", "payload_bytes", "read_ahead_hits",
        "reads_refused", "scrub_errors", "scrub_parts_damaged", "scrub_passes", "scrubbed_bytes",
    }
)  # fmt: skip
"""Keys of a store's statistics that are counters."""


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


def store_numbers(stats: Mapping[str, Number]) -> dict[str, Number]:
    """Return a store's numbers, with counters named as Prometheus requires."""
    return {f"{key}_total" if key in STORE_COUNTERS else key: stats[key] for key in stats}


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


def operations_routes(sources: Iterable[Source], health: Callable[[], Health]) -> dict[str, Route]:
    """Return the routes of the operations port."""
    exposition = Exposition((Source("process", process_numbers), *sources))
    return {
        "/metrics": exposition.respond,
        # A server that answers is healthy even if it has problems: a restart would take longer.
        "/health": lambda: _respond_health(200, health()),
        "/ready": lambda: _respond_health(200 if (now := health()).is_ready else 503, now),
    }


class Exposition:
    """Converts the sources' numbers to Prometheus text."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._registry: CollectorRegistry | None = None

    def respond(self) -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(200, CONTENT_TYPE_LATEST, generate_latest(self._collectors()))

    def _collectors(self) -> CollectorRegistry:
        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return self._registry

    def collect(self) -> Iterable[Metric]:
        """Yield every source's present numbers. Called by the Prometheus library."""
        for source in self._sources:
            yield from _families(source.name, source.read())


def _families(source: str, numbers: Numbers) -> Iterable[Metric]:
    """Group the samples of one source by key, in the order of their first appearance."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    samples = (
        [Sample(key, (), value) for key, value in numbers.items()]
        if isinstance(numbers, Mapping)
        else numbers
    )
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for sample in samples:
        family = families.get(sample.key)
        if family is None:
            name = f"vdl_{source}_{sample.key}"
            make = CounterMetricFamily if sample.key.endswith("_total") else GaugeMetricFamily
            help_text = HELP.get(name, sample.key.replace("_", " "))
            family = make(name, help_text, labels=[label for label, _ in sample.labels])
            families[sample.key] = family
        family.add_metric([value for _, value in sample.labels], sample.value)
    return families.values()


def process_numbers() -> dict[str, Number]:
    """Return the resources that this process uses."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "resident_bytes": _resident_bytes(),
        "open_descriptors": _open_descriptors(),
        "start_time_seconds": _STARTED_SECONDS,
        "gc_collections_total": sum(generation["collections"] for generation in gc.get_stats()),
    }


_STARTED_SECONDS = round(time.time(), 3)


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
