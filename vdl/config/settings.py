"""A server's configuration: one TOML file, checked completely before anything is opened.

Every layer declares its own limits as a frozen dataclass with defaults (`StoreOptions`,
`HostOptions`, `KafkaOptions`). This module defines the key, unit and range of each, and builds the
dataclasses. So a default is defined once, next to the code that uses it, and `KEYS` is the complete
list of keys in a file.

Rules:

* A key that is not in `KEYS` is refused, with the nearest known one as a suggestion: a typing error
  must not silently leave a default in force.
* An error names the file, the key and the expected value.
* Table `[kafka]` has Kafka's own setting names; all other keys are VDL's. Sizes are numbers of
  bytes or texts like "64MiB"; durations are texts like "600ms" or "2h", and plain milliseconds for
  keys that end in `.ms`.
* A relative `server.data_dir` is relative to the file's own folder, so that the folder can be
  moved.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ids import SERVER_ID_MAX, ServerId
from rpc.tls_context import VERSIONS, LinkEncryption, TlsFiles
from segments.api import StoreOptions
from segments.journal.files import piece_bytes_for
from vdl.config.console import (
    MODES,
    ConsoleOptions,
    console_origin,
    console_problem,
    console_registry,
)
from vdl.config.listeners import ListenerError, parse_listener
from vdl.config.values import (
    ADMIN_LISTENER,
    DAY_MS,
    GIB,
    KIB,
    MIB,
    TIB,
    Address,
    Parse,
    Scalar,
    address_or_off,
    boolean,
    choice,
    cluster_name,
    duration,
    integer,
    link_encryption,
    milliseconds,
    number_from,
    otlp_endpoint,
    parse_address,
    path,
    path_or_off,
    principals,
    ratio,
    size,
    text,
    ticks,
)
from vdl.errors import VdlError
from vdl.kafka.configs.ip_limits import ip_limits_text
from vdl.kafka.configs.options import KafkaOptions, ListenerOptions
from vdl.kafka.security.audit import AuditOptions
from vdl.kafka.security.oauth_options import OauthOptions
from vdl.kafka.security.protocol import OAUTHBEARER, SecurityProtocol
from vdl.log import LogOptions
from vdl.logstream.options import HostOptions

"""A replica id consists of the server id and a 16-bit replica number."""


ADMIN_LISTEN = Address("127.0.0.1", 9112)
HTTP_LISTEN = Address("127.0.0.1", 9122)


class ConfigError(VdlError):
    """Raised for an unusable configuration, with the file, the key and the problem."""

    def __init__(self, source: str, key: str, problem: str) -> None:
        super().__init__(source, key, problem)
        self.source = source
        self.key = key
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.key}: {self.problem}"
            if self.key
            else (f"{self.source}: {self.problem}")
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address that a port listens on, and the address advertised to clients and peers."""

    listen: Address
    advertise: Address


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Bounds on names of clients in the metrics."""

    topics_max: int = 50
    """Topics with a series of their own: the busiest. The others are one series together."""
    groups_max: int = 100
    """Rows of lag by consumer group and topic: those with most records behind."""


@dataclass(frozen=True, slots=True)
class OtlpOptions:
    """Export to OpenTelemetry."""

    endpoint: str = ""
    """Base URL of the receiver; "environment": that of OTEL_EXPORTER_OTLP_ENDPOINT; "": none."""
    metrics: bool = True
    interval_ms: int = 60_000
    """Interval of the metrics."""
    traces: bool = True
    """True if the slowest requests are sent as spans."""
    traces_slower_than_ms: int = 100
    """Least time of such a request, without the wait of a long poll."""


@dataclass(frozen=True, slots=True)
class Config:
    """Complete configuration of one server. `source` names the file in messages."""

    source: str = "built-in defaults"
    server_id: ServerId = ServerId(1)
    data_dir: Path = Path("data")
    rack: str = ""
    seeds: Mapping[ServerId, Address] = field(default_factory=dict)
    """Peer address of each server that forms the cluster; empty for a single server."""

    coordinators: int = 8
    """Number of coordinator groups; fixed when the cluster is formed."""

    listeners: tuple[ListenerOptions, ...] = (ListenerOptions(),)
    peer: Endpoint | None = None
    """None for a single server, which opens no peer port."""

    admin: Endpoint | None = Endpoint(ADMIN_LISTEN, ADMIN_LISTEN)
    """gRPC admin service; None if it is not opened."""

    http: Address | None = HTTP_LISTEN
    """Metrics and health; None if it is not opened."""

    kafka: KafkaOptions = field(default_factory=KafkaOptions)
    host: HostOptions = field(default_factory=HostOptions)
    store: StoreOptions = field(default_factory=StoreOptions)
    io_uring: bool = True
    """If True, the kernel writes the journal's blocks where it offers io_uring; otherwise a
    thread."""

    log: LogOptions = field(default_factory=LogOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    otlp: OtlpOptions = field(default_factory=OtlpOptions)
    console: ConsoleOptions = field(default_factory=ConsoleOptions)
    tls: TlsFiles = field(default_factory=TlsFiles)
    oauth: OauthOptions = field(default_factory=OauthOptions)
    first_users: Path | None = None
    """See `vdl/server/first_users.py`."""
    delegation_key: Path | None = None
    """See `vdl/server/delegation_key.py`. Without a key there are no delegation tokens."""
    other_delegation_key: Path | None = None
    audit: AuditOptions = field(default_factory=AuditOptions)


@dataclass(frozen=True, slots=True)
class Key:
    """Target of a key's value (`field`, or `options.field`) and its parser."""

    target: str
    parse: Parse


def load_config(path: Path) -> Config:
    """Read and check a file. Raise ConfigError if it is invalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "", "is not UTF-8 text") from error
    return parse_config(text, source=str(path), folder=path.resolve().parent)


def parse_config(text: str, *, source: str, folder: Path) -> Config:
    """Check a configuration given as text. Raise ConfigError if it is invalid.

    Relative paths are relative to `folder`.
    """
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # or a number with more digits than Python accepts
        raise ConfigError(source, "", f"is not valid TOML: {error}") from error
    listeners = document.pop("listeners", None)
    seeds = _take_seeds(document, source)
    values: dict[str, object] = {}
    for name, raw in _flatten(document):
        key = KEYS.get(name)
        if key is None:
            raise ConfigError(source, name, "unknown key" + _suggest(name))
        if not isinstance(raw, Scalar):
            raise ConfigError(source, name, f"expected one value, found {_describe(raw)}")
        try:
            values[name] = key.parse(raw)
        except ValueError as error:
            raise ConfigError(source, name, f"expected {error}, found {_show(raw)}") from None
    config = _build(values, seeds, source, folder)
    if listeners is not None:
        tables = _parse_listeners(listeners, config.tls, source, folder)
        config = replace(config, listeners=tables)
    _check_whole(config)
    _check_identities(config)
    _check_extra(config)
    if problem := console_problem(config.console, config.listeners, config.http):
        raise ConfigError(source, "http.console", problem)
    return config


# --- the keys -------------------------------------------------------------------------------------

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

KEYS: dict[str, Key] = {
    "server.id": Key("server_id", integer(1, SERVER_ID_MAX)),
    "server.data_dir": Key("data_dir", path),
    "server.rack": Key("rack", text),
    "cluster.coordinators": Key("coordinators", integer(1, 64)),
    "peer.listen": Key("peer.listen", parse_address),
    "peer.advertise": Key("peer.advertise", parse_address),
    "admin.listen": Key("admin.listen", address_or_off),
    "admin.advertise": Key("admin.advertise", parse_address),
    "http.listen": Key("http", address_or_off),
    "http.console": Key("console.mode", choice(*MODES)),
    "http.console_changes": Key("console.changes", boolean),
    "http.console_origin": Key("console.origin", console_origin),
    "http.console_ca": Key("console.ca", path),
    "http.console_registry": Key("console.registry", console_registry),
    "http.console_registry_login": Key("console.registry_login", path),
    "metrics.topics_max": Key("metrics.topics_max", integer(0, 1_000)),
    "metrics.groups_max": Key("metrics.groups_max", integer(0, 1_000)),
    "otlp.endpoint": Key("otlp.endpoint", otlp_endpoint),
    "otlp.metrics": Key("otlp.metrics", boolean),
    "otlp.interval": Key("otlp.interval_ms", duration(1_000, 3_600_000)),
    "otlp.traces": Key("otlp.traces", boolean),
    "otlp.traces_slower_than": Key("otlp.traces_slower_than_ms", duration(1, 3_600_000)),
    # --- Kafka's settings, by Kafka's names and in Kafka's units
    "kafka.auto.create.topics.enable": Key("kafka.auto_create_topics", boolean),
    "kafka.num.partitions": Key("kafka.num_partitions", integer(1, 10_000)),
    "kafka.default.replication.factor": Key("kafka.default_replication_factor", integer(1, 7)),
    "kafka.message.max.bytes": Key("kafka.message_max_bytes", size(KIB, 16 * MIB)),
    "kafka.log.segment.bytes": Key("kafka.segment_bytes", size(64 * KIB, 2 * GIB - 1)),
    "kafka.min.insync.replicas": Key("kafka.min_insync_replicas", integer(1, 7)),
    "kafka.replica.lag.time.max.ms": Key("host.replica_lag_max_ms", milliseconds(1_000, DAY_MS)),
    "kafka.producer.id.expiration.ms": Key(
        "host.producer_expiration_ms", milliseconds(1_000, INT32_MAX)
    ),
    "kafka.producer.id.expiration.check.interval.ms": Key(
        "host.producer_expiration_check_ms", milliseconds(1_000, DAY_MS)
    ),
    "kafka.log.retention.ms": Key("kafka.retention_ms", milliseconds(-1, INT64_MAX)),
    "kafka.log.retention.bytes": Key("kafka.retention_bytes", integer(-1, INT64_MAX)),
    "kafka.log.cleanup.policy": Key(
        "kafka.cleanup_policy", choice("delete", "compact", "compact,delete")
    ),
    "kafka.log.cleaner.delete.retention.ms": Key(
        "kafka.delete_retention_ms", milliseconds(0, INT64_MAX)
    ),
    "kafka.log.cleaner.min.compaction.lag.ms": Key(
        "kafka.min_compaction_lag_ms", milliseconds(0, INT64_MAX)
    ),
    "kafka.log.cleaner.max.compaction.lag.ms": Key(
        "kafka.max_compaction_lag_ms", milliseconds(1, INT64_MAX)
    ),
    "kafka.log.cleaner.io.max.bytes.per.second": Key(
        "kafka.cleaner_bytes_per_second", number_from(1)
    ),
    "kafka.log.cleaner.min.cleanable.ratio": Key("kafka.min_dirty_ratio", ratio),
    "kafka.log.roll.jitter.ms": Key("kafka.roll_jitter_ms", milliseconds(0, INT64_MAX)),
    "kafka.log.roll.ms": Key("kafka.roll_ms", milliseconds(1, INT64_MAX)),
    "kafka.compression.type": Key(
        "kafka.compression_type",
        choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    "kafka.compression.gzip.level": Key("kafka.gzip_level", integer(-1, 9)),
    "kafka.compression.lz4.level": Key("kafka.lz4_level", integer(1, 17)),
    "kafka.compression.zstd.level": Key("kafka.zstd_level", integer(-131_072, 22)),
    "kafka.log.message.timestamp.type": Key(
        "kafka.timestamp_type", choice("CreateTime", "LogAppendTime")
    ),
    "kafka.log.message.timestamp.before.max.ms": Key(
        "kafka.timestamp_before_max_ms", milliseconds(0, INT64_MAX)
    ),
    "kafka.log.message.timestamp.after.max.ms": Key(
        "kafka.timestamp_after_max_ms", milliseconds(0, INT64_MAX)
    ),
    "request.check_on_loop_bytes": Key("kafka.record_check_loop_bytes", size(0, 16 * MIB)),
    "kafka.max.partitions.per.request": Key(
        "kafka.partitions_per_request_max", integer(1, 1_000_000)
    ),
    "cluster.replicas_per_server": Key("kafka.replicas_per_server_max", integer(1, 1_000_000)),
    "kafka.socket.request.max.bytes": Key("kafka.request_bytes_max", size(64 * KIB, INT32_MAX)),
    "kafka.queued.max.request.bytes": Key("kafka.request_memory_max", size(256 * KIB, TIB)),
    "kafka.sasl.server.max.receive.size": Key("kafka.login_bytes_max", size(KIB, 16 * MIB)),
    "kafka.connections.max.reauth.ms": Key("kafka.session_ms_max", milliseconds(0, INT32_MAX)),
    "kafka.max.connections": Key("kafka.connections_max", integer(1, 1_000_000)),
    "kafka.max.connections.per.ip": Key("kafka.connections_per_ip_max", integer(1, 1_000_000)),
    "kafka.max.connections.per.ip.overrides": Key("kafka.connections_of_ips_max", ip_limits_text),
    "kafka.connections.max.idle.ms": Key(
        "kafka.connection_idle_ms", milliseconds(1_000, 30 * DAY_MS)
    ),
    "kafka.telemetry.max.bytes": Key("kafka.telemetry_max_bytes", size(KIB, 16 * MIB)),
    "kafka.fetch.max.bytes": Key("kafka.fetch_max_bytes", size(KIB, INT32_MAX)),
    "kafka.max.incremental.fetch.session.cache.slots": Key(
        "kafka.fetch_sessions_max", integer(0, 1_000_000)
    ),
    "kafka.group.min.session.timeout.ms": Key(
        "kafka.group_min_session_timeout_ms", milliseconds(1, DAY_MS)
    ),
    "kafka.group.max.session.timeout.ms": Key(
        "kafka.group_max_session_timeout_ms", milliseconds(1, DAY_MS)
    ),
    "kafka.group.initial.rebalance.delay.ms": Key(
        "kafka.group_initial_rebalance_delay_ms", milliseconds(0, 600_000)
    ),
    "kafka.group.max.size": Key("kafka.group_max_size", integer(1, 1_000_000)),
    "kafka.group.consumer.session.timeout.ms": Key(
        "kafka.group_consumer_session_timeout_ms", milliseconds(1_000, DAY_MS)
    ),
    "kafka.group.consumer.heartbeat.interval.ms": Key(
        "kafka.group_consumer_heartbeat_interval_ms", milliseconds(100, DAY_MS)
    ),
    "kafka.group.consumer.assignment.interval.ms": Key(
        "kafka.group_consumer_assignment_interval_ms", milliseconds(0, 15_000)
    ),
    "kafka.group.consumer.max.size": Key("kafka.group_consumer_max_size", integer(1, 1_000_000)),
    "kafka.group.consumer.migration.policy": Key(
        "kafka.group_consumer_migration_policy",
        choice("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    "kafka.offset.metadata.max.bytes": Key("kafka.offset_metadata_max_bytes", size(0, MIB)),
    "kafka.offsets.retention.minutes": Key(
        "kafka.offsets_retention_minutes", integer(1, INT32_MAX)
    ),
    "kafka.offsets.retention.check.interval.ms": Key(
        "kafka.offsets_retention_check_ms", milliseconds(100, DAY_MS)
    ),
    "kafka.transaction.max.timeout.ms": Key(
        "kafka.transaction_max_timeout_ms", milliseconds(1, INT32_MAX)
    ),
    "kafka.transactional.id.expiration.ms": Key(
        "kafka.transactional_id_expiration_ms", milliseconds(1, INT32_MAX)
    ),
    "kafka.transaction.remove.expired.transaction.cleanup.interval.ms": Key(
        "kafka.transactional_id_check_ms", milliseconds(100, DAY_MS)
    ),
    # --- permissions and tokens
    "security.authorizer": Key("kafka.authorizer", boolean),
    "kafka.super.users": Key("kafka.super_users", principals),
    "kafka.allow.everyone.if.no.acl.found": Key("kafka.allow_if_no_acl", boolean),
    "kafka.delegation.token.max.lifetime.ms": Key(
        "kafka.token_lifetime_ms", milliseconds(1_000, 36_500 * DAY_MS)
    ),
    "kafka.delegation.token.expiry.time.ms": Key(
        "kafka.token_period_ms", milliseconds(1_000, 36_500 * DAY_MS)
    ),
    "audit.file": Key("audit.file", path_or_off),
    "audit.file_bytes": Key("audit.bytes_max", size(64 * KIB, TIB)),
    "audit.files": Key("audit.files_max", integer(1, 1_000)),
    # --- limits of a client connection that Kafka has no name for
    "connection.frame_deadline": Key("kafka.frame_deadline_ms", duration(100, 600_000)),
    "connection.requests_in_flight": Key("kafka.requests_in_flight_max", integer(1, 10_000)),
    "connection.request_bytes_in_flight": Key(
        "kafka.request_bytes_in_flight_max", size(64 * KIB, GIB)
    ),
    "connection.write_buffer_bytes": Key("kafka.write_buffer_bytes_max", size(64 * KIB, GIB)),
    "response.fetch_session_partitions": Key(
        "kafka.fetch_session_partitions_max", integer(0, 100_000_000)
    ),
    "response.memory_max": Key("kafka.answer_memory_max", size(MIB, TIB)),
    "request.timeout_max": Key("kafka.request_timeout_ms_max", duration(1_000, DAY_MS)),
    "request.slow": Key("kafka.slow_request_ms", duration(1, 600_000)),
    "request.read_timeout": Key("kafka.read_timeout_ms", duration(100, 600_000)),
    "request.cold_read_rate": Key("kafka.cold_read_bytes_per_second", size(64 * KIB, 64 * GIB)),
    "request.overload_retry": Key("kafka.overload_retry_ms", duration(1, 60_000)),
    "request.topic_create_wait": Key("kafka.topic_create_wait_ms", duration(0, 60_000)),
    # --- consensus
    "raft.heartbeat_interval": Key("host.heartbeat_ticks", ticks(10, 10_000)),
    "raft.election_timeout": Key("host.election_ticks", ticks(20, 60_000)),
    "raft.failover_delay_min": Key("host.failover_ticks_min", ticks(10, 10_000)),
    "raft.failover_delay_max": Key("host.failover_ticks_max", ticks(10, 10_000)),
    "raft.elections": Key("host.elections_max", integer(1, 1_000_000)),
    "raft.openings_per_turn": Key("host.openings_per_turn", integer(1, 1_000_000)),
    "raft.message_bytes": Key("host.message_bytes_max", size(4 * KIB, 16 * MIB)),
    "raft.apply_bytes": Key("host.apply_bytes_max", size(64 * KIB, GIB)),
    "raft.uncommitted_bytes": Key("host.uncommitted_bytes_max", size(MIB, 4 * GIB)),
    "raft.inflight_messages": Key("host.inflight_messages_max", integer(1, 100_000)),
    "raft.inflight_bytes": Key("host.inflight_bytes_max", size(64 * KIB, GIB)),
    "raft.held_appends": Key("host.held_appends_max", integer(1, 1_000_000)),
    "raft.uncopied_appends": Key("host.uncopied_max", integer(1, 1_000_000)),
    "raft.early_messages": Key("host.early_messages_max", integer(0, 1_000_000)),
    "raft.early_snapshot_bytes": Key("host.early_snapshot_bytes_max", size(0, GIB)),
    "raft.command_entries_kept": Key("host.command_entries_kept", integer(1, 10_000_000)),
    "raft.encoded_items_per_turn": Key("host.encoded_items_per_turn", integer(1, 1_000_000)),
    "retention.check_interval": Key("host.retention_check_ms", duration(100, 86_400_000)),
    "compaction.check_interval": Key("host.compaction_check_ms", duration(100, 86_400_000)),
    # A tenth of it without a look at the clocks begins it anew (`GAP`), and a loop may be late: of
    # the looks, ten in a second, five may be missing.
    "clock.hold": Key("host.clock_hold_ms", duration(5_000, 7 * DAY_MS)),
    "raft.replace_after": Key("host.replace_after_ms", duration(0, 86_400_000)),
    "raft.catch_up_rate": Key("host.catch_up_bytes_per_second", size(64 * KIB, 64 * GIB)),
    "raft.cold_read_bytes": Key("host.cold_read_bytes", size(64 * KIB, 64 * MIB)),
    "raft.disk_patience": Key("host.disk_patience_ms", duration(100, 600_000)),
    "raft.transfer_stop": Key("host.transfer_stop_ms", duration(0, 60_000)),
    # --- storage
    "storage.journal_file_bytes": Key("store.journal_file_bytes", size(MIB, 4 * GIB)),
    "storage.journal_first_file_bytes": Key("store.journal_first_file_bytes", size(MIB, 4 * GIB)),
    "storage.index_segment_entries": Key("store.index_segment_entries", integer(1_024, 10**8)),
    "storage.scrub_rate": Key("store.scrub_bytes_per_second", size(0, TIB)),
    "storage.cache_bytes": Key("store.cache_bytes_max", size(8 * MIB, TIB)),
    "storage.checkpoint_bytes": Key("store.checkpoint_bytes", size(MIB, 16 * GIB)),
    "storage.checkpoint_entries": Key("store.checkpoint_entries", integer(100, 10**8)),
    "storage.checkpoint_interval": Key("store.checkpoint_interval_ms", duration(100, DAY_MS)),
    "storage.place_bytes": Key("store.place_bytes_min", size(0, TIB)),
    "storage.large_bytes": Key("store.large_bytes_min", size(16 * MIB, TIB)),
    "storage.idle_block": Key("store.idle_block_ms", duration(1, 60_000)),
    "storage.accept_empty": Key("store.accept_empty", boolean),
    "storage.io_uring": Key("io_uring", boolean),
    "storage.meta_map_bytes": Key("store.meta_map_bytes", size(16 * MIB, TIB)),
    # --- encryption and authentication
    "tls.certificate": Key("tls.certificate", path),
    "tls.key": Key("tls.key", path),
    "tls.ca": Key("tls.ca", path),
    "tls.crl": Key("tls.crl", path),
    "tls.cluster": Key("tls.cluster", cluster_name),
    "tls.version_min": Key("tls.version_min", choice(*VERSIONS)),
    "tls.ciphers": Key("tls.ciphers", text),
    "tls.links": Key("tls.links", link_encryption),
    "kafka.sasl.oauthbearer.jwks.endpoint.url": Key("oauth.jwks_url", text),
    "kafka.sasl.oauthbearer.jwks.endpoint.refresh.ms": Key(
        "oauth.jwks_refresh_ms", milliseconds(10_000, INT32_MAX)
    ),
    "kafka.sasl.oauthbearer.expected.audience": Key("oauth.audience", text),
    "kafka.sasl.oauthbearer.expected.issuer": Key("oauth.issuer", text),
    "kafka.sasl.oauthbearer.clock.skew.seconds": Key("oauth.clock_skew_s", integer(0, 3_600)),
    "kafka.sasl.oauthbearer.sub.claim.name": Key("oauth.subject_claim", text),
    "security.jwks_ca": Key("oauth.ca", text),
    "security.first_users": Key("first_users", path),
    "security.delegation_token_key": Key("delegation_key", path),
    "security.delegation_token_other_key": Key("other_delegation_key", path),
    # --- the server's own log
    "log.format": Key("log.format", choice("logfmt", "json")),
    "log.level": Key("log.level", choice("debug", "info", "warning", "error")),
    "log.lines_per_second": Key("log.lines_per_second_max", integer(1, 1_000_000)),
}
"""Every key a file may have besides `cluster.seeds` and `[[listeners]]`."""

_OPTIONS = (
    "kafka", "host", "store", "log", "tls", "oauth", "audit", "metrics", "otlp", "console",
)  # fmt: skip
_SHOWN_MAX = 100
"""Maximum number of characters of a wrong value that a message repeats."""


# --- from a document to a Config ------------------------------------------------------------------


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted name, value) of everything in a table: `num.partitions = 1` is a nested one."""
    for name, value in table.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{dotted}.")
        else:
            yield dotted, value


def _take_seeds(document: dict[str, object], source: str) -> dict[ServerId, Address]:
    """Remove `cluster.seeds` (server id → peer address) from the document and return it."""
    cluster = document.get("cluster")
    raw_seeds = cluster.pop("seeds", {}) if isinstance(cluster, dict) else {}
    if not isinstance(raw_seeds, dict):
        raise ConfigError(source, "cluster.seeds", 'expected a table such as { 1 = "host:port" }')
    seeds: dict[ServerId, Address] = {}
    for server_id, raw in raw_seeds.items():
        name = f"cluster.seeds.{server_id}"
        # Only the canonical form is accepted: 01 would be a second name of server 1.
        if not re.fullmatch(r"[1-9][0-9]{0,4}", server_id) or int(server_id) > SERVER_ID_MAX:
            raise ConfigError(source, name, f"expected a server id from 1 to {SERVER_ID_MAX}")
        try:
            seed = parse_address(raw)
        except ValueError as error:
            raise ConfigError(source, name, f"expected {error}, found {_show(raw)}") from None
        if not seed.is_reachable:
            raise ConfigError(
                source, name, f"expected an address that other servers can connect to, found {seed}"
            )
        seeds[ServerId(int(server_id))] = seed
    if len(set(seeds.values())) < len(seeds):
        raise ConfigError(
            source, "cluster.seeds", "two servers have the same address; each needs its own"
        )
    return dict(sorted(seeds.items()))


def _build(
    values: dict[str, object], seeds: dict[ServerId, Address], source: str, folder: Path
) -> Config:
    """Build a Config from checked values, by the targets in `KEYS`."""
    grouped: dict[str, dict[str, object]] = {"": {}}
    for name, value in values.items():
        options, _, attribute = KEYS[name].target.rpartition(".")
        grouped.setdefault(options, {})[attribute] = value
    base = Config()
    changes: dict[str, object] = {"source": source, "seeds": seeds, **grouped.pop("")}
    peer, admin = grouped.pop("peer", {}), grouped.pop("admin", {})
    for options, settings in grouped.items():
        assert options in _OPTIONS, options
        changes[options] = replace(getattr(base, options), **settings)
    changes["data_dir"] = folder / Path(str(changes.get("data_dir", base.data_dir)))
    for name in ("first_users", "delegation_key", "other_delegation_key"):
        if name in changes:
            changes[name] = folder / Path(str(changes[name]))
    files = changes.get("tls", base.tls)
    assert isinstance(files, TlsFiles), files
    changes["tls"] = replace(
        files,
        certificate=_beside(folder, files.certificate),
        key=_beside(folder, files.key),
        ca=_beside(folder, files.ca),
        crl=_beside(folder, files.crl),
    )
    console = changes.get("console", base.console)
    assert isinstance(console, ConsoleOptions), console
    changes["console"] = replace(
        console,
        ca=_beside(folder, console.ca),
        registry_login=_beside(folder, console.registry_login),
    )
    audit = changes.get("audit", base.audit)
    assert isinstance(audit, AuditOptions), audit
    if audit.file is not None:
        changes["audit"] = replace(audit, file=_beside(folder, audit.file))
    config = replace(base, **changes)  # type: ignore[arg-type]  # values follow KEYS' targets
    own_seed = seeds.get(config.server_id)
    if seeds and own_seed is None and "listen" not in peer:
        raise ConfigError(
            source,
            "peer.listen",
            f"required, because cluster.seeds has no server {config.server_id}",
        )
    # One setting determines both the size of segment files and the size reported to clients.
    store = replace(config.store, segment_bytes=config.kafka.segment_bytes)
    return replace(
        config,
        store=store,
        peer=_endpoint("peer", peer, own_seed, own_seed, source),
        admin=_endpoint("admin", admin, ADMIN_LISTEN, None, source),
    )


def _beside(folder: Path, path: Path | None) -> Path | None:
    """Return a path from the file, relative to the file's folder unless it is absolute."""
    return None if path is None else folder / path


def _endpoint(
    name: str,
    settings: Mapping[str, object],
    listen: Address | None,
    advertise: Address | None,
    source: str,
) -> Endpoint | None:
    """Return an endpoint from its `listen` and `advertise` keys and defaults; None for none."""
    chosen = settings.get("listen", listen)
    if chosen is None:
        return None
    assert isinstance(chosen, Address), chosen
    told = settings.get("advertise", advertise) or chosen
    assert isinstance(told, Address), told
    if not told.is_reachable:
        raise ConfigError(source, f"{name}.advertise", _required_instead_of(told))
    return Endpoint(chosen, told)


def _parse_listeners(
    raw: object, files: TlsFiles, source: str, folder: Path
) -> tuple[ListenerOptions, ...]:
    """Parse the `[[listeners]]` tables."""
    if not isinstance(raw, list) or not raw or not all(isinstance(item, dict) for item in raw):
        raise ConfigError(source, "listeners", "expected one or more [[listeners]] tables")
    listeners: list[ListenerOptions] = []
    for position, table in enumerate(raw):
        prefix = f"listeners[{position}]"
        try:
            listeners.append(parse_listener(table, ADMIN_LISTENER, files, folder))
        except ListenerError as error:
            raise ConfigError(source, f"{prefix}.{error.key}", error.problem) from None
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise ConfigError(
            source, "listeners", "two listeners have the same name; each needs its own"
        )
    return tuple(listeners)


def _check_tokens(config: Config) -> None:
    """Check that OAUTHBEARER tokens can be verified if a listener accepts them."""
    url = config.oauth.jwks_url
    key = "kafka.sasl.oauthbearer.jwks.endpoint.url"
    if url and not url.startswith(("https://", "file:///")):
        raise ConfigError(config.source, key, "expected https://… or file:///…")
    if any(OAUTHBEARER in one.mechanisms for one in config.listeners) and (
        not config.oauth.is_complete
    ):
        raise ConfigError(
            config.source,
            key,
            "required for OAUTHBEARER, together with expected.audience and expected.issuer",
        )


def _check_identities(config: Config) -> None:
    """Check that all ports authenticate if any client port does."""
    _check_tokens(config)
    files = config.tls
    if (files.certificate is None) != (files.key is None):
        raise ConfigError(
            config.source, "tls.key", "tls.certificate and tls.key must be given together"
        )
    if files.crl is not None and files.ca is None:
        raise ConfigError(
            config.source, "tls.crl", "requires tls.ca: the list must be signed by that authority"
        )
    asking = [one for one in config.listeners if one.protocol is not SecurityProtocol.PLAINTEXT]
    if files.links is not LinkEncryption.REQUIRED:
        key, need = "tls.links", "tls.certificate, tls.key and tls.ca"
        if not files.secures_links:
            raise ConfigError(config.source, key, f'requires {need}, unless it is "required"')
        if asking:
            why = f"because the listener {asking[0].name} authenticates clients"
            raise ConfigError(config.source, key, f'expected "required", {why}')
    if files.secures_links or not asking:
        return
    why = f"because the listener {asking[0].name} authenticates clients"
    need = "tls.certificate, tls.key and tls.ca"
    if config.peer is not None:
        raise ConfigError(config.source, "tls.ca", f"{need} are required for the peer port, {why}")
    if config.admin is not None:
        raise ConfigError(config.source, "admin.listen", f'expected "off", or {need}, {why}')


def _check_extra(config: Config) -> None:
    """Check that what the export needs is installed. Nothing of it is loaded."""
    if config.otlp.endpoint and not is_installed(_OTLP_MODULE):
        raise ConfigError(
            config.source,
            "otlp.endpoint",
            "requires packages that are not installed: pip install 'vdl-log[otlp]'",
        )


_OTLP_MODULE = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


def is_installed(module: str) -> bool:
    """Return True if a module can be imported. Only the packages above it are."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


_OWN_LOGS = 256
"""Bound on the logs of a server besides those of partitions: the catalog's and coordinators'."""


def _check_whole(config: Config) -> None:
    """Check conditions on combinations of keys."""
    ports: dict[int, str] = {}
    for name, address in _listen_addresses(config):
        if address.port and address.port in ports:
            raise ConfigError(
                config.source, name, f"port {address.port} is already used by {ports[address.port]}"
            )
        ports[address.port] = name
    host, kafka, store = config.host, config.kafka, config.store
    logs_max = kafka.replicas_per_server_max + _OWN_LOGS
    rules = (
        (
            host.election_ticks >= 3 * host.heartbeat_ticks,
            "raft.election_timeout", "expected at least three times raft.heartbeat_interval",
        ),
        (
            host.failover_ticks_min <= host.failover_ticks_max,
            "raft.failover_delay_min", "expected at most raft.failover_delay_max",
        ),
        (
            host.message_bytes_max <= host.inflight_bytes_max,
            "raft.inflight_bytes", "expected at least raft.message_bytes",
        ),
        (
            kafka.group_consumer_heartbeat_interval_ms < kafka.group_consumer_session_timeout_ms,
            "kafka.group.consumer.heartbeat.interval.ms",
            "expected less than kafka.group.consumer.session.timeout.ms",
        ),
        (
            kafka.group_min_session_timeout_ms <= kafka.group_max_session_timeout_ms,
            "kafka.group.min.session.timeout.ms",
            "expected at most kafka.group.max.session.timeout.ms",
        ),
        (
            kafka.message_max_bytes + KIB <= kafka.segment_bytes,
            "kafka.message.max.bytes", "expected less than kafka.log.segment.bytes",
        ),
        (
            kafka.message_max_bytes + 64 * KIB <= store.journal_first_file_bytes,
            "storage.journal_first_file_bytes",
            "expected more than kafka.message.max.bytes: each batch must fit in one file",
        ),
        (
            store.journal_first_file_bytes <= store.journal_file_bytes,
            "storage.journal_first_file_bytes", "expected at most storage.journal_file_bytes",
        ),
        (
            piece_bytes_for(logs_max, store.journal_file_bytes) <= store.journal_file_bytes,
            "storage.journal_file_bytes",
            "expected more: a file must have room for the state of "
            "cluster.replicas_per_server logs",
        ),
        (
            kafka.message_max_bytes <= host.uncommitted_bytes_max,
            "raft.uncommitted_bytes", "expected at least kafka.message.max.bytes",
        ),
        (
            kafka.message_max_bytes < kafka.request_bytes_max,
            "kafka.socket.request.max.bytes", "expected more than kafka.message.max.bytes",
        ),
        (
            2 * kafka.request_bytes_max <= kafka.request_memory_max,
            "kafka.queued.max.request.bytes",
            "expected at least twice kafka.socket.request.max.bytes",
        ),
    )  # fmt: skip
    for holds, key, problem in rules:
        if not holds:
            raise ConfigError(config.source, key, problem)


def _listen_addresses(config: Config) -> Iterator[tuple[str, Address]]:
    for position, listener in enumerate(config.listeners):
        yield f"listeners[{position}].listen", Address(listener.host, listener.port)
    if config.peer is not None:
        yield "peer.listen", config.peer.listen
    if config.admin is not None:
        yield "admin.listen", config.admin.listen
    if config.http is not None:
        yield "http.listen", config.http


def _suggest(name: str, known: tuple[str, ...] = ()) -> str:
    close = difflib.get_close_matches(name, known or (*KEYS, "cluster.seeds", "listeners"), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _required_instead_of(address: Address) -> str:
    return f"required, because other hosts cannot connect to {address}"


def _show(raw: object) -> str:
    """Return a value as text for a message.

    Integers in TOML have 64 bits; Python parses much larger ones, but does not print them.
    """
    if isinstance(raw, int) and raw.bit_length() > INT64_MAX.bit_length():
        return "a number of more than 64 bits"
    if isinstance(raw, list | dict):
        return _describe(raw)
    shown = repr(raw)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."


def _describe(raw: object) -> str:
    return "a list" if isinstance(raw, list) else f"a {type(raw).__name__}"


def unreachable_options() -> list[str]:
    """Return fields of the option classes that have no key in `KEYS`. Use: a test for omissions."""
    base = Config()
    targets = {"store.segment_bytes", *(key.target for key in KEYS.values())}
    return [
        f"{options}.{item.name}"
        for options in _OPTIONS
        for item in fields(getattr(base, options))
        if f"{options}.{item.name}" not in targets
    ]
