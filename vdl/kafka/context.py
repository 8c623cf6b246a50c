"""What a handler may know: the server around it, and the request in front of it.

`Context` is built once per server and passed down; nothing in `vdl.kafka` reaches for a global.
`RequestContext` is one request's: who asks, on which listener, in which version, until when.

`Host` and `LogStream` are the front end's view of the layer below, as protocols: tests replace that
layer by a fake in one thread. Every call returns at once; what takes time calls back, on the loop.
All deadlines are monotonic nanoseconds of the server's clock.

Must not know: sockets, the event loop, the wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ids import GroupId, Offset, ServerId, Term
from rpc.tls_context import TlsOptions
from segments.api import Slices, StorageError
from vdl.clock import MS, NEVER, Clock
from vdl.errors import ErrorCode
from vdl.kafka.limits.client_quotas import ClientQuotas
from vdl.kafka.limits.memory import AnswerAccount, AnswerMemory, RequestMemory
from vdl.kafka.partitions.down_conversion import DownConversion
from vdl.kafka.partitions.fetch_sessions import FetchSessions
from vdl.kafka.partitions.log_sizes import LogSizes
from vdl.kafka.partitions.read_throttle import ReadThrottle
from vdl.kafka.partitions.record_checks import Compute, RecordChecks, at_once
from vdl.kafka.security.audit import AuditLog
from vdl.kafka.security.authorizer import Authorizer, Grants
from vdl.kafka.security.principal import ANONYMOUS, Principal
from vdl.kafka.security.protocol import SecurityProtocol
from vdl.kafka.share.live_partitions import LivePartitions
from vdl.kafka.share.sessions import ShareSessions
from vdl.kafka.telemetry.client_metrics import ClientMetrics
from vdl.log import Log

if TYPE_CHECKING:
    from rpc.queries import Quorum
    from vdl.kafka.answer import Encoded
    from vdl.kafka.groups.group_coordinator import GroupCoordinator
    from vdl.kafka.security.login import Login
    from vdl.kafka.security.oauth import Validator
    from vdl.kafka.transactions.transaction_coordinator import TransactionCoordinator
    from vdl.logstream.group.state_group import Outcome, StateGroup
    from vdl.records.batch import BatchHeader
    from vdl.state.catalog import Catalog
    from vdl.state.commands import Command


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """One address clients connect to, and the one they are told to use for it."""

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = ""
    """Empty: `host`."""
    advertised_port: int = 0
    """0: `port`, which is then not 0 itself: a configuration has no address that the system
    chooses and clients are told."""
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsOptions = field(default_factory=TlsOptions)
    """Of a protocol that is encrypted."""
    principal_rules: str = "DEFAULT"
    """`ssl.principal.mapping.rules`."""
    mechanisms: tuple[str, ...] = ()
    """Of a protocol with a login: those that clients may choose from."""


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Every limit of the front end, under Kafka's setting name where there is one."""

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
    """`log.retention.ms`: retention of topics without a setting of their own. Kafka's default, 168
    hours, deletes old data of users who do not know of it: here the default is for ever."""
    retention_bytes: int = -1
    """`log.retention.bytes`: the same by size."""
    roll_ms: int = 604_800_000
    """`log.roll.ms`: how far apart the timestamps of one segment may be, where records are deleted
    by age or this is set."""
    compression_type: str = "producer"
    """`compression.type`: the codec that topics keep their batches in."""
    gzip_level: int = -1
    """`compression.gzip.level`."""
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
    """Partitions one CreateTopics may ask for in all (`max.request.partition.size.limit`
    is a response limit in Kafka; this bounds the work of one command)."""

    replicas_per_server_max: int = 4_000
    """Replicas of partitions that one server may have. Each has a log, and what it needs of memory,
    files and start is paid also when nothing is written to it; and when a server dies, all it led
    is elected anew. What three servers on two cores come back from within seconds."""

    # --- connections -------------------------------------------------------------------------
    request_bytes_max: int = 100 << 20
    """`socket.request.max.bytes`."""
    login_bytes_max: int = 64 << 10
    """`sasl.server.max.receive.size`: largest request of a client that has not logged in."""
    session_ms_max: int = 0
    """`connections.max.reauth.ms`: how long a login holds (KIP-368); 0: as long as its
    connection."""
    connections_max: int = 10_000
    """`max.connections`."""
    connections_per_ip_max: int = 5_000
    """`max.connections.per.ip`."""
    connection_idle_ms: int = 600_000
    """`connections.max.idle.ms`: a connection that sent nothing for this long is closed."""
    frame_deadline_ms: int = 30_000
    """An arriving request must make progress in each such period (`frontend.FRAME_RATE_MIN`)."""
    requests_in_flight_max: int = 64
    """Requests of one connection that are read and not answered yet; then reading stops."""
    request_bytes_in_flight_max: int = 16 << 20
    """The same in bytes; at least one request is always read."""
    write_buffer_bytes_max: int = 4 << 20
    """Answers of one connection that leave together; beyond it, and while a socket does not take
    them, no further request of it is processed."""
    request_memory_max: int = 256 << 20
    """`queued.max.request.bytes`: requests of all connections that are arriving or not answered.
    Room for one largest request is kept apart in it, so it is at least twice as much."""
    answer_memory_max: int = 256 << 20
    """Bytes of answers to all connections that are being built or not sent."""
    overload_retry_ms: int = 5
    """How often an overloaded host is asked again on behalf of waiting producers."""

    # --- requests ----------------------------------------------------------------------------
    fetch_max_bytes: int = 55 << 20
    """`fetch.max.bytes`: most that one Fetch answers, whatever the client asks."""
    telemetry_max_bytes: int = 1 << 20
    """`telemetry.max.bytes`: most that a client may push of its metrics, compressed."""
    fetch_sessions_max: int = 1_000
    """`max.incremental.fetch.session.cache.slots`."""
    fetch_session_partitions_max: int = 100_000
    """Partitions in all fetch sessions; some 700 bytes each."""
    request_timeout_ms_max: int = 300_000
    """No client's timeout holds a request longer than this."""
    cold_read_bytes_per_second: int = 8 << 20
    """What all consumers far behind are sent from disk at least while producers are at work,
    whatever these feel of it."""
    read_timeout_ms: int = 10_000
    """How long a request without a timeout of its own waits for a quorum round."""
    topic_create_wait_ms: int = 1_000
    """How long Metadata waits for the leaders of a topic it has just had created."""

    # --- permission --------------------------------------------------------------------------
    authorizer: bool = False
    """Whether clients may do only what the ACLs in the catalog allow."""
    super_users: tuple[Principal, ...] = ()
    """`super.users`: who may do everything, whatever the ACLs say."""
    allow_if_no_acl: bool = False
    """`allow.everyone.if.no.acl.found`: of a resource that has no ACL."""

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
    """`group.consumer.session.timeout.ms`: of groups of the newer protocol that do not set it."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """`group.consumer.heartbeat.interval.ms`, likewise."""
    group_consumer_assignment_interval_ms: int = 1_000
    """`group.consumer.assignment.interval.ms`, likewise."""
    group_consumer_max_size: int = 10_000
    """`group.consumer.max.size`. Kafka has no bound by default."""
    group_consumer_migration_policy: str = "bidirectional"
    """`group.consumer.migration.policy`: whether a classic group becomes one of the newer protocol
    while it has members (upgrade), the other way (downgrade), both or neither (disabled)."""
    offset_metadata_max_bytes: int = 4_096
    """`offset.metadata.max.bytes`."""
    offsets_retention_minutes: int = 10_080
    """`offsets.retention.minutes`."""
    offsets_retention_check_ms: int = 600_000
    """`offsets.retention.check.interval.ms`: how often expired offsets are looked for."""

    # --- transactions --------------------------------------------------------------------------
    transaction_max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`: the longest time for which a producer may ask."""
    transactional_id_expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`: how long a transactional id is kept that nobody uses."""
    transactional_id_check_ms: int = 3_600_000
    """`transaction.remove.expired.transaction.cleanup.interval.ms`: how often it is looked for
    such."""


class Appended(Protocol):
    """The fate of one append. `error` NOT_LEADER_OR_FOLLOWER: it was never appended."""

    @property
    def error(self) -> ErrorCode: ...
    @property
    def base_offset(self) -> Offset: ...
    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def duplicate_timestamp(self) -> int | None:
        """Largest timestamp of the batch as it was first appended; None: it is no duplicate."""


class ActiveProducer(Protocol):
    """An idempotent producer, as far as its batches are applied here."""

    @property
    def producer_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def last_timestamp(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int:
        """Of its last marker; -1: there was none."""

    @property
    def first_offset(self) -> Offset:
        """Of its open transaction; -1: none."""


class AbortedRange(Protocol):
    """A transaction whose records are not to be shown to who reads committed ones."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> Offset: ...
    @property
    def last_offset(self) -> Offset:
        """Of the marker that ended it."""


Verify = Callable[[Callable[[ErrorCode], None]], None]
"""See `vdl.logstream.group.log_stream.Verify`."""


class TimedOffset(Protocol):
    """A record's offset, its timestamp, and the epoch it was written in; offset -1 for none."""

    @property
    def offset(self) -> Offset: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class Wait(Protocol):
    """A subscription that can be taken back."""

    def cancel(self) -> None: ...


class LogStream(Protocol):
    """One partition's replica on this server."""

    @property
    def group_id(self) -> GroupId: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def serving(self) -> bool:
        """Leader, and the first entry of its own term is applied."""

    @property
    def is_proved(self) -> bool:
        """Whether a read needs no `prove` before it."""

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """True: a quorum says that this replica leads."""

    @property
    def term(self) -> Term:
        """Kafka's leader epoch of the partition."""

    @property
    def leader_server(self) -> ServerId: ...
    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def high_watermark(self) -> Offset: ...
    @property
    def last_stable_offset(self) -> Offset:
        """At most the high watermark; no record below it is of an open transaction."""

    def aborted(self, start: Offset, end: Offset) -> Sequence[AbortedRange]:
        """Those of the aborted transactions that may have records in [start, end)."""

    @property
    def aborted_age(self) -> int:
        """While it is the same, `aborted` is complete for whatever was read since it was looked at
        first."""

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None = None,
    ) -> None:
        """`verify` asks the coordinator of the batch's transaction, if it is of one."""

    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> Slices:
        """Committed batches only, or stable ones. Raises NotInMemory, OffsetOutOfRange."""

    def read_cold(
        self,
        offset: Offset,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
        *,
        stable: bool = False,
    ) -> None: ...

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> Wait:
        """`callback` once: the high watermark is above `offset`, or what is stable ends above
        `stable_offset`, or leadership changed. `NEVER`: this is not waited for."""

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None: ...

    def segment_starts(
        self, done: Callable[[list[tuple[Offset, int]] | StorageError], None]
    ) -> None:
        """Of each segment, oldest first: its first offset that is not deleted, and the largest
        timestamp up to its end (ms)."""

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        """`done` gets the epoch in which the log's start was written; -1: unknown."""

    def producers(self) -> Sequence[ActiveProducer]:
        """The idempotent producers that the partition remembers, by id."""

    def stored_bytes(self, done: Callable[[int | StorageError], None]) -> None:
        """How many bytes of the log's committed entries this replica keeps."""

    def offset_for_time(
        self, timestamp_ms: int, done: Callable[[TimedOffset | StorageError], None]
    ) -> None:
        """The first record at or after the time (ms since 1970)."""

    def offset_of_largest_time(self, done: Callable[[TimedOffset | StorageError], None]) -> None:
        """The first record with the largest timestamp of all (KIP-734)."""

    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Delete everything below `offset`, -1 for everything committed (KIP-107)."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, Offset]:
        """(largest epoch ≤ `epoch`, where it ends); (`epoch`, log start) when that is deleted;
        (-1, -1) when `epoch` is above all there are (KIP-101)."""


class Host(Protocol):
    """This server, seen from the front end."""

    @property
    def server_id(self) -> ServerId: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def catalog(self) -> Catalog:
        """The applied catalog of this server; read only."""

    @property
    def coordinator_count(self) -> int: ...
    @property
    def leader_lost_ns(self) -> int:
        """When any group last lost its leader because that server failed (monotonic ns); 0:
        never."""

    def leader_of(self, group_id: GroupId) -> tuple[ServerId, Term]:
        """(server id or -1, term or -1), the freshest this server knows."""

    def stream(self, group_id: GroupId) -> LogStream | None:
        """The partition replica here."""

    def state_group(self, group_id: GroupId) -> StateGroup | None:
        """The catalog or coordinator replica here."""

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        """(size, bytes that can still be written) of the disk; (-1, -1) where there is none."""

    def propose_catalog(
        self,
        command: Command,
        *,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """From any server; `done` once the command is applied here, or fails."""

    def elect_preferred(
        self,
        leader: ServerId,
        groups: Sequence[GroupId],
        *,
        deadline_ns: int,
        done: Callable[[frozenset[GroupId] | None], None],
    ) -> None:
        """Ask the server that leads these groups to hand them to the first replicas of their
        placements. `done` gets those that it does not hand over; None: it has not said of all, and
        may have handed over any."""

    def describe_quorum(self, *, deadline_ns: int, done: Callable[[Quorum | None], None]) -> None:
        """The catalog's members in its leader's eyes; None: nobody leads it, or has not said."""

    def alive_servers(self) -> list[ServerId]: ...

    def silent_servers(self) -> set[ServerId]:
        """Those whose link was lost and that may be alive: nobody refused to be dialled."""

    def agreed_ms(self) -> int:
        """What time it is (ms since 1970), as far as a majority of the servers' clocks agree."""

    def in_sync_of(self, group_id: GroupId) -> tuple[ServerId, ...]:
        """The servers whose replicas are in sync, as the group's leader last reported."""

    def may_serve_reads(self, group_id: GroupId) -> bool:
        """Whether consumers may read from the replica here though it does not lead (KIP-392)."""

    def read_replica(self, group_id: GroupId, rack: str, offset: Offset) -> ServerId:
        """The server that consumers in this rack are to read a partition from that is led here;
        -1: from here."""

    def lost_leader(self, group_id: GroupId) -> tuple[int, ServerId]:
        """When the group lost its leader because that server failed (monotonic ns), and the
        server; (0, 0): not recently."""

    def confirm_links(self, done: Callable[[bool], None]) -> None:
        """`done`, later, when `alive_servers` and `leader_of` are certain again; True: a majority
        of the servers answered."""

    @property
    def overloaded(self) -> bool:
        """Too many entries wait for their segments: no Produce is started now."""

    def coordinator_group(self, key: str) -> GroupId: ...

    def command_group(
        self,
        group_id: GroupId,
        data: bytes,
        *,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """Have a coordinator's or a partition's leader apply a command, wherever it is; `done` gets
        a `CommandAnswer` then."""


def _before_the_front_end(step: Callable[[], None]) -> None:
    raise AssertionError(f"{step} deferred before there is a front end")


@dataclass(slots=True)
class Context:
    """The server a handler runs in."""

    host: Host
    config: KafkaOptions
    clock: Clock
    log: Log
    random_bytes: Callable[[int], bytes]
    """Randomness, for ids that must not repeat: `os.urandom`, or a seeded source."""
    log_directory: str = ""
    """The absolute path of the data directory."""
    groups: GroupCoordinator | None = None
    """The leader's side of the consumer groups this server coordinates."""
    transactions: TransactionCoordinator | None = None
    """The same of transactions."""
    commit_logs: dict[GroupId, LogStream] = field(default_factory=dict)
    """The commits of each coordinator, by its group, as a partition of `__consumer_offsets`."""
    topics_refused: int = 0
    """Topics not created, or not enlarged, because servers have all the replicas they may have."""
    leader_waits: int = 0
    """Requests that wait for leaders now: see `vdl.kafka.handlers.leaders`."""
    defer: Callable[[Callable[[], None]], None] = _before_the_front_end
    """Run a step once at the end of this turn, before answers are sent. Set by the front end."""
    shared: dict[Hashable, tuple[int, Encoded]] = field(default_factory=dict)
    """Answers that several requests of this turn may share, and how many bytes of records are in
    each; emptied after each turn."""
    compute: Compute = at_once
    """Where what takes long is computed."""
    read_throttle: ReadThrottle = field(init=False)
    record_checks: RecordChecks = field(init=False)
    down_conversion: DownConversion = field(init=False)
    requests: RequestMemory = field(init=False)
    """Memory of requests that arrive or are not answered."""
    answers: AnswerMemory = field(init=False)
    """Memory of answers that are not sent."""
    fetch_sessions: FetchSessions = field(init=False)
    client_metrics: ClientMetrics = field(default_factory=ClientMetrics)
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    share_partitions: LivePartitions = field(init=False)
    file_config: KafkaOptions = field(init=False)
    """What the server's file says; `config` is with what was changed at run time."""
    resources_revision: int = -1
    """Of the settings in the catalog that `config` reflects."""
    log_sizes: LogSizes = field(init=False)
    login_compute: Compute = at_once
    """Where a password is checked."""
    authorizer: Authorizer | None = field(init=False)
    """Who decides what clients may do; None: everybody may do everything."""
    audit: AuditLog | None = None
    """Where that is noted."""
    quotas: ClientQuotas | None = None
    """What clients may use; None while the catalog has no quota. Set by `broker_configs.follow`."""
    tokens: Validator | None = None
    """Who judges tokens of OAUTHBEARER; None: nobody can log in by one."""

    def stream(self, group_id: GroupId) -> LogStream | None:
        """The partition replica here, or the view of a coordinator's commits."""
        return self.host.stream(group_id) or self.commit_logs.get(group_id)

    def __post_init__(self) -> None:
        config = self.file_config = self.config
        self.requests = RequestMemory(config.request_memory_max, config.request_bytes_max)
        self.answers = AnswerMemory(config.answer_memory_max)
        self.record_checks = RecordChecks(self.compute, config.record_check_loop_bytes)
        self.down_conversion = DownConversion(self.compute)
        self.fetch_sessions = FetchSessions(
            config.fetch_sessions_max, config.fetch_session_partitions_max, self.random_bytes
        )
        self.read_throttle = ReadThrottle(self.config.cold_read_bytes_per_second)
        self.log_sizes = LogSizes(self.host)
        self.share_partitions = LivePartitions(self)
        self.authorizer = None
        if config.authorizer:
            self.authorizer = Authorizer(
                lambda: self.host.catalog.acls,
                super_users=config.super_users,
                allow_if_no_acl=config.allow_if_no_acl,
            )


@dataclass(slots=True)
class ConnectionInfo:
    """One client connection, as handlers see it. Lives as long as the connection."""

    id: int
    listener: str
    peer_host: str
    peer_port: int
    answers: AnswerAccount = field(repr=False)
    """This connection's part of the memory for answers."""
    principal: Principal = ANONYMOUS
    """Who the client is, as far as it has shown. May change once a login ends."""
    login: Login | None = None
    """Where clients log in."""
    grants: Grants | None = field(default=None, repr=False)
    """What the authorizer answered this connection, where there is one."""
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    loss_reported_ns: int = 0
    """The latest loss of a leader that Metadata has reported to this client."""
    on_lost: Callable[[], None] | None = field(default=None, repr=False)
    """Runs once when the connection is gone: what it opened ends with it."""


@dataclass(slots=True)
class RequestContext:
    """One request: its server, its connection, its header."""

    server: Context
    connection: ConnectionInfo
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    received_ns: int
    """When it was started."""
    arrived_ns: int
    """When it had arrived: a busy server starts it later."""

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The address the client connects from, as ACLs name hosts."""
        return self.connection.peer_host

    def deadline_ns(self, timeout_ms: int) -> int:
        """When a client's timeout ends: not before now, not beyond the server's own limit."""
        limit_ms = self.server.config.request_timeout_ms_max
        return self.received_ns + max(0, min(timeout_ms, limit_ms)) * MS
