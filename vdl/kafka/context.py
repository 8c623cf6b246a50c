"""Context of a handler: the server around it, and the present request.

`Context` is built once per server and passed down; nothing in `vdl.kafka` uses a global.
`RequestContext` belongs to one request: its client, listener, version and deadline.

The layer below is `vdl.kafka.host`. Does not depend on sockets, the event loop or the wire format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ids import GroupId
from rpc.newcomers import network_of
from vdl.clock import MS, Clock
from vdl.kafka.configs.batch_rules import RulesByTopic
from vdl.kafka.configs.broker_configs import Layer, effective
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.host import Compute, Host, LogStream, at_once
from vdl.kafka.limits.client_quotas import ClientQuotas
from vdl.kafka.limits.decoding import Decoding
from vdl.kafka.limits.memory import AnswerAccount, AnswerMemory, RequestMemory
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.kafka.limits.repeats import REPEATS_MAX, Repeats
from vdl.kafka.partitions.delivery_lag import DeliveryLag
from vdl.kafka.partitions.down_conversion import DownConversion
from vdl.kafka.partitions.fetch_sessions import FetchSessions
from vdl.kafka.partitions.log_sizes import LogSizes
from vdl.kafka.partitions.new_partitions import NewPartitions
from vdl.kafka.partitions.read_throttle import ReadThrottle
from vdl.kafka.partitions.record_checks import RecordChecks
from vdl.kafka.security.audit import AuditLog
from vdl.kafka.security.authorizer import Authorizer, Grants
from vdl.kafka.security.delegation_keys import DelegationKeys
from vdl.kafka.security.login_failures import LoginFailures
from vdl.kafka.security.principal import ANONYMOUS, Principal
from vdl.kafka.share.live_partitions import LivePartitions
from vdl.kafka.share.sessions import ShareSessions
from vdl.kafka.telemetry.client_metrics import ClientMetrics
from vdl.kafka.telemetry.push_reader import PushReader
from vdl.log import Log, Loggers

if TYPE_CHECKING:
    from vdl.kafka.answer import Encoded
    from vdl.kafka.groups.group_coordinator import GroupCoordinator
    from vdl.kafka.security.login import Login
    from vdl.kafka.security.oauth import Validator
    from vdl.kafka.transactions.transaction_coordinator import TransactionCoordinator


def _before_the_front_end(step: Callable[[], None]) -> None:
    raise AssertionError(f"{step} deferred before the front end exists")


@dataclass(slots=True)
class Context:
    """The server a handler runs in."""

    host: Host
    config: KafkaOptions
    clock: Clock
    log: Log
    random_bytes: Callable[[int], bytes]
    """Random source for ids that must not repeat: `os.urandom`, or a seeded source."""
    log_directory: str = ""
    """The absolute path of the data directory."""
    file_settings: Mapping[str, Layer] = field(default_factory=dict)
    """Kafka's settings that describe this server and that the front end does not use."""
    loggers: Loggers | None = None
    """Loggers of the process; None: there are none whose level can be changed."""
    groups: GroupCoordinator | None = None
    """The leader's side of the consumer groups this server coordinates."""
    transactions: TransactionCoordinator | None = None
    """The leader's side of the transactions this server coordinates."""
    views: dict[tuple[str, GroupId], LogStream] = field(default_factory=dict)
    """Contents of coordinators as partitions of Kafka's internal topics, by topic and
    coordinator."""
    topics_refused: int = 0
    """Topics not created, or not enlarged, because servers have reached their limit of replicas."""
    leader_waits: int = 0
    """Requests that wait for leaders now: see `vdl.kafka.handlers.leaders`."""
    new_partitions: NewPartitions = field(init=False)
    """Partitions whose first leader may not be known here yet."""
    defer: Callable[[Callable[[], None]], None] = _before_the_front_end
    """Run a step once at the end of this turn, before answers are sent. Set by the front end."""
    shared: dict[Hashable, tuple[int, int, Encoded]] = field(default_factory=dict)
    """Answers that several requests of this turn may share, with the bytes of records in each and
    the offsets that they cover; emptied after each turn."""
    compute: Compute = at_once
    """Runs long computations off the loop."""
    read_throttle: ReadThrottle = field(init=False)
    batch_rules: RulesByTopic = field(init=False)
    record_checks: RecordChecks = field(init=False)
    decoding: Decoding = field(init=False)
    down_conversion: DownConversion = field(init=False)
    requests: RequestMemory = field(init=False)
    """Memory of requests that are arriving or not answered."""
    answers: AnswerMemory = field(init=False)
    """Memory of answers that are not sent."""
    fetch_sessions: FetchSessions = field(init=False)
    client_metrics: ClientMetrics = field(default_factory=ClientMetrics)
    push_reader: PushReader = field(init=False)
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    share_partitions: LivePartitions = field(init=False)
    delivery_lag: DeliveryLag = field(default_factory=DeliveryLag)
    file_config: KafkaOptions = field(init=False)
    """Settings of the server's file; `config` includes changes at run time."""
    resources_revision: int = -1
    """Revision of the catalog's settings that `config` reflects."""
    log_sizes: LogSizes = field(init=False)
    pattern_work: PatternWork = None  # type: ignore[assignment]
    """Matches patterns that clients choose. None: matched in `compute`."""
    login_compute: Compute = at_once
    """Checks passwords off the loop."""
    login_failures: LoginFailures = field(init=False)
    authorizer: Authorizer | None = field(init=False)
    """Decides what clients may do; None: every client may do everything."""
    audit: AuditLog | None = None
    """Log of those decisions; None: there is none."""
    quotas: ClientQuotas | None = None
    """Quotas of clients; None while the catalog has no quota. Set by `follow_catalog`."""
    tokens: Validator | None = None
    """Validator of OAUTHBEARER tokens; None: no client can log in with one."""
    token_bytes_asked: Counter[str] = field(default_factory=Counter)
    """Bytes of delegation tokens that are being created, by requesting client."""
    delegation_keys: DelegationKeys = field(default_factory=DelegationKeys)
    """Keys for the secrets of delegation tokens."""

    def stream(self, group_id: GroupId, topic: str) -> LogStream | None:
        """Return the partition replica here, or the view of a coordinator that the topic has."""
        return self.host.stream(group_id) or self.views.get((topic, group_id))

    def follow_catalog(self) -> None:
        """Apply the settings and the quotas of the applied catalog, and note new partitions."""
        host = self.host
        self.new_partitions.note(
            host.catalog.next_group_id, self.clock.now_ns(), self.config.topic_create_wait_ms * MS
        )
        resources = host.catalog.resources
        if resources.revision != self.resources_revision:
            self.resources_revision = resources.revision
            self.config = effective(self.file_config, resources, host.server_id)
        quotas = host.catalog.quotas
        if not quotas:
            self.quotas = None
        elif self.quotas is None:
            self.quotas = ClientQuotas(quotas)

    def __post_init__(self) -> None:
        config = self.file_config = self.config
        self.new_partitions = NewPartitions(self.host.catalog.next_group_id)
        self.requests = RequestMemory(config.request_memory_max, config.request_bytes_max)
        self.answers = AnswerMemory(config.answer_memory_max)
        self.pattern_work = self.pattern_work or PatternWork(self.compute, self.clock)
        self.batch_rules = RulesByTopic()
        self.record_checks = RecordChecks(self.compute, config.record_check_loop_bytes)
        self.decoding = Decoding(self.compute)
        self.down_conversion = DownConversion(self.compute)
        self.push_reader = PushReader(self.compute)
        self.fetch_sessions = FetchSessions(
            config.fetch_sessions_max, config.fetch_session_partitions_max, self.random_bytes
        )
        self.read_throttle = ReadThrottle(
            self.config.cold_read_bytes_per_second, lambda _: self.host.agreed_ms() * MS
        )
        self.log_sizes = LogSizes(self.host)
        self.login_failures = LoginFailures(self.clock)
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
    """One client connection, as handlers see it. It exists as long as the connection."""

    id: int
    listener: str
    peer_host: str
    peer_port: int
    answers: AnswerAccount = field(repr=False)
    """This connection's part of the memory for answers."""
    principal: Principal = ANONYMOUS
    """The client's identity, as far as it is authenticated. May change when a login completes."""
    counts_as: str = ""
    """Address that it counts for in the limit of connections by address."""
    login: Login | None = None
    """State of the client's login."""
    grants: Grants | None = field(default=None, repr=False)
    """The authorizer's cached decisions for this connection, if there is an authorizer."""
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    pushed_ns: int | None = None
    """Time of its last push of metrics, of any instance; None: never."""
    has_pushed_last: bool = False
    """True if it pushed the final metrics of some instance."""
    loss_reported_ns: int = 0
    """The latest loss of a leader that Metadata has reported to this client."""
    on_lost: Callable[[], None] | None = field(default=None, repr=False)
    """Runs once when the connection is closed, to release the resources it opened."""

    @property
    def asker(self) -> str:
        """Key for fair turns and for shares of budgets: the principal, or the address (of IPv6 the
        network) of a client that is not authenticated."""
        principal = self.principal
        return network_of(self.peer_host) if principal == ANONYMOUS else str(principal)


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
    """Time at which it was started."""
    arrived_ns: int
    """Time at which it had arrived: a busy server starts it later."""
    _repeats: dict[str, Repeats] | None = field(default=None, repr=False)
    _loss_reported_ns: int | None = field(default=None, repr=False)
    unknown_ids: set[bytes] | None = field(default=None, repr=False)
    """Topic ids that the permission check did not know: none may become known for this request, as
    no permission was checked for it."""

    @property
    def principal(self) -> Principal:
        """Principal of the client."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The address the client connects from, as ACLs name hosts."""
        return self.connection.peer_host

    @property
    def client_text(self) -> str:
        """The client's name in events."""
        return f"{self.client_id} at {self.connection.peer_host}"

    @property
    def asker(self) -> str:
        """See `ConnectionInfo.asker`."""
        return self.connection.asker

    @property
    def sharer(self) -> str:
        """The client whose share of a room a command counts against; empty without access control,
        where there are no shares."""
        return self.asker if self.server.authorizer is not None else ""

    def repeats(self, of: str, repeats_max: int = REPEATS_MAX) -> Repeats:
        """Return what the request has named of a kind, in all its parts."""
        if self._repeats is None:
            self._repeats = {}
        return self._repeats.setdefault(of, Repeats(repeats_max))

    @property
    def loss_reported_ns(self) -> int:
        """The latest loss of a leader known to the client when this was first read for the request:
        a loss reported by one part of its answer is still new in the others."""
        if self._loss_reported_ns is None:
            self._loss_reported_ns = self.connection.loss_reported_ns
        return self._loss_reported_ns

    def deadline_ns(self, timeout_ms: int) -> int:
        """Return the end of a client's timeout: not before now, not beyond the server's own
        limit."""
        limit_ms = self.server.config.request_timeout_ms_max
        return self.received_ns + max(0, min(timeout_ms, limit_ms)) * MS
