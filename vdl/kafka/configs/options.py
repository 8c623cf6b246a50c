"""The front end's settings: its listeners, and all of its limits.

Does not depend on the configuration file, nor on which settings can be changed at run time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from rpc.tls_context import TlsOptions
from vdl.kafka.security.principal import Principal
from vdl.kafka.security.protocol import SecurityProtocol

REPLICAS_SETTING = "vdl.replicas.per.server"
"""Name under which clients see `cluster.replicas_per_server`. Kafka has no such setting."""


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """One address that is listened on, and the address that is advertised to clients for it."""

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = ""
    """Empty: `host`."""
    advertised_port: int = 0
    """0: `port`, which is then not 0 itself: a configuration has no advertised port that the system
    chooses."""
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsOptions = field(default_factory=TlsOptions)
    """Used if the protocol is encrypted."""
    principal_rules: str = "DEFAULT"
    """`ssl.principal.mapping.rules`."""
    mechanisms: tuple[str, ...] = ()
    """SASL mechanisms offered to clients, if the protocol has a login."""
    connections_max: int = 0
    """`listener.name.NAME.max.connections`; 0: as many as the server has."""


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Every limit of the front end, under Kafka's setting name if there is one."""

    # --- topics ----------------------------------------------------------------------------
    auto_create_topics: bool = True
    """`auto.create.topics.enable`."""
    num_partitions: int = 1
    """`num.partitions`."""
    default_replication_factor: int = 3
    """`default.replication.factor`; at most the number of servers there will be."""
    message_max_bytes: int = 1_048_588
    """`message.max.bytes`: largest batch, unless the topic says `max.message.bytes`."""
    segment_bytes: int = 64 << 20
    """`log.segment.bytes`: as the storage layer is configured, shown to clients."""
    min_insync_replicas: int = 1
    """`min.insync.replicas`: replicas that must have a batch on disk before acks=all is answered,
    all of them if there are fewer; a majority always must."""
    retention_ms: int = -1
    """`log.retention.ms`: retention of topics without a setting of their own. Files of new clusters
    set Kafka's 168 hours; a file without it is from an older version, and its records must stay."""
    retention_bytes: int = -1
    """`log.retention.bytes`: the same by size."""
    roll_ms: int = 604_800_000
    """`log.roll.ms`: largest distance between timestamps in one segment, if records are deleted by
    age or this is set."""
    roll_jitter_ms: int = 0
    """`log.roll.jitter.ms`: largest time by which segments end earlier than that."""
    cleanup_policy: str = "delete"
    """`log.cleanup.policy`: delete or compact old segments."""
    delete_retention_ms: int = 86_400_000
    """`log.cleaner.delete.retention.ms`: time for which a compacted topic keeps tombstones."""
    min_compaction_lag_ms: int = 0
    """`log.cleaner.min.compaction.lag.ms`: least time that a batch stays uncompacted."""
    max_compaction_lag_ms: int = (1 << 63) - 1
    """`log.cleaner.max.compaction.lag.ms`: longest time that a batch stays uncompacted."""
    min_dirty_ratio: float = 0.5
    """`log.cleaner.min.cleanable.ratio`: part of a compacted topic that may be uncompacted."""
    cleaner_bytes_per_second: float = sys.float_info.max
    """`log.cleaner.io.max.bytes.per.second`: upper limit of compaction. Producers slow it down
    further."""
    compression_type: str = "producer"
    """`compression.type`: codec in which topics keep their batches."""
    gzip_level: int = -1
    """`compression.gzip.level`."""
    lz4_level: int = 9
    """`compression.lz4.level`."""
    zstd_level: int = 3
    """`compression.zstd.level`."""
    timestamp_type: str = "CreateTime"
    """`log.message.timestamp.type`: or LogAppendTime."""
    timestamp_before_max_ms: int = (1 << 63) - 1
    """`log.message.timestamp.before.max.ms`."""
    timestamp_after_max_ms: int = 3_600_000
    """`log.message.timestamp.after.max.ms`."""
    record_check_loop_bytes: int = 2 << 20
    """Larger batches are checked off the loop, as are compressed ones of more than 32 KiB."""
    partitions_per_request_max: int = 10_000
    """Most partitions that one CreateTopics may create (`max.request.partition.size.limit`
    is a response limit in Kafka; this bounds the work of one command)."""

    replicas_per_server_max: int = 4_000
    """Most replicas of partitions on one server. Each has a log, which costs memory, files and
    start-up time even if it is idle; and when a server fails, all its partitions elect a leader.
    Three servers on two cores recover from that within seconds at this number."""

    # --- connections -------------------------------------------------------------------------
    request_bytes_max: int = 100 << 20
    """`socket.request.max.bytes`."""
    login_bytes_max: int = 64 << 10
    """`sasl.server.max.receive.size`: largest request of a client that has not logged in."""
    session_ms_max: int = 0
    """`connections.max.reauth.ms`: lifetime of a login (KIP-368); 0: as long as its connection."""
    connections_max: int = 10_000
    """`max.connections`."""
    connections_per_ip_max: int = 5_000
    """`max.connections.per.ip`."""
    connections_of_ips_max: str = ""
    """`max.connections.per.ip.overrides`: see `ip_limits.py`."""
    connection_idle_ms: int = 600_000
    """`connections.max.idle.ms`: a connection that sent nothing for this long is closed."""
    frame_deadline_ms: int = 30_000
    """An arriving request must make progress in each such period: `FRAME_RATE_MIN` of
    `connection.py`."""
    requests_in_flight_max: int = 64
    """Requests of one connection that are read and not answered yet; beyond it, reading stops."""
    request_bytes_in_flight_max: int = 16 << 20
    """The same in bytes; at least one request is always read."""
    write_buffer_bytes_max: int = 4 << 20
    """Bytes of responses of one connection that are sent together. Beyond it, and while the socket
    does not accept them, no further request of the connection is processed."""
    request_memory_max: int = 256 << 20
    """`queued.max.request.bytes`: bytes of requests of all connections that are arriving or not
    answered. Room for one largest request is reserved in it, so it is at least twice as much."""
    answer_memory_max: int = 256 << 20
    """Bytes of responses to all connections that are being built or not sent."""
    overload_retry_ms: int = 5
    """Interval at which an overloaded host is checked on behalf of waiting producers."""

    # --- requests ----------------------------------------------------------------------------
    fetch_max_bytes: int = 55 << 20
    """`fetch.max.bytes`: most bytes in one Fetch response, even if the client requests more."""
    telemetry_max_bytes: int = 1 << 20
    """`telemetry.max.bytes`: most bytes of metrics that a client may push, compressed."""
    fetch_sessions_max: int = 1_000
    """`max.incremental.fetch.session.cache.slots`."""
    fetch_session_partitions_max: int = 100_000
    """Partitions in all fetch sessions; some 700 bytes each."""
    request_timeout_ms_max: int = 300_000
    """No client's timeout holds a request longer than this."""
    cold_read_bytes_per_second: int = 8 << 20
    """Least rate at which all consumers far behind together are sent data from disk while producers
    are active, even if it slows these down."""
    slow_request_ms: int = 1_000
    """A request that takes longer is kept as an event, with its phases. The time for which a long
    poll waits by itself does not count."""
    read_timeout_ms: int = 10_000
    """Time that a request without a timeout of its own waits for a quorum round."""
    topic_create_wait_ms: int = 1_000
    """Time for which Metadata waits for the first leaders of partitions new to this server."""

    # --- permission --------------------------------------------------------------------------
    authorizer: bool = False
    """True if clients may do only what the ACLs in the catalog allow."""
    super_users: tuple[Principal, ...] = ()
    """`super.users`: principals that may do everything, regardless of ACLs."""
    allow_if_no_acl: bool = False
    """`allow.everyone.if.no.acl.found`: for resources that have no ACL."""
    token_lifetime_ms: int = 604_800_000
    """`delegation.token.max.lifetime.ms`: largest age of a delegation token."""
    token_period_ms: int = 86_400_000
    """`delegation.token.expiry.time.ms`: time by which a token is renewed."""

    # --- consumer groups -----------------------------------------------------------------------
    group_min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`."""
    group_max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`."""
    group_initial_rebalance_delay_ms: int = 100
    """`group.initial.rebalance.delay.ms`. Kafka's 3 s make every first start slow; members that
    are joining hold a rebalance open anyway."""
    group_max_size: int = 10_000
    """`group.max.size`."""
    group_consumer_session_timeout_ms: int = 45_000
    """`group.consumer.session.timeout.ms`: of consumer protocol groups that do not set it."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """`group.consumer.heartbeat.interval.ms`, likewise."""
    group_consumer_assignment_interval_ms: int = 1_000
    """`group.consumer.assignment.interval.ms`, likewise."""
    group_consumer_max_size: int = 10_000
    """`group.consumer.max.size`. Kafka has no bound by default."""
    group_consumer_migration_policy: str = "bidirectional"
    """`group.consumer.migration.policy`: a classic group with members may switch to the consumer
    protocol (upgrade), the other way (downgrade), both (bidirectional) or neither (disabled)."""
    offset_metadata_max_bytes: int = 4_096
    """`offset.metadata.max.bytes`."""
    offsets_retention_minutes: int = 10_080
    """`offsets.retention.minutes`."""
    offsets_retention_check_ms: int = 600_000
    """`offsets.retention.check.interval.ms`: interval of checks for expired offsets."""

    # --- transactions --------------------------------------------------------------------------
    transaction_max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`: longest timeout that a producer may request."""
    transactional_id_expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`: time for which an unused transactional id is kept."""
    transactional_id_check_ms: int = 3_600_000
    """`transaction.remove.expired.transaction.cleanup.interval.ms`: interval of checks for expired
    ones."""
