"""State of a whole cluster, collected from each of its servers.

Kafka's Metadata lists the servers and the placement of partitions; each server's admin service
reports the state of its replicas. The admin address is in a server's `vdl.admin.listener`, which
any Kafka client can read (DescribeConfigs): the listener named ADMIN. A server that is down causes
no failure here; it is shown as a problem.

Does not depend on how the state is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ids import NodeId, ServerId, Term
from rpc.admin import GroupStatus, Role, ServerStatus
from rpc.errors import AdminError, TlsFailed
from vdl.commands.cluster.connection import TIMEOUT_SECONDS
from vdl.commands.workers import Workers
from vdl.config.values import ADMIN_LISTENER, ADMIN_SETTING, Address, parse_address
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings
from vdl.kafka.wire.describe_cluster import DescribeClusterBroker, DescribeClusterRequest
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.server.problem import NO_LEADER, NOT_WRONG, SERVER_KINDS, Problem

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

METADATA_KEY, DESCRIBE_CONFIGS_KEY, DESCRIBE_CLUSTER_KEY = 3, 32, 60
BROKER_RESOURCE = 4
NOT_SECURED = ClientSettings()
SERVERS_AT_ONCE = 64
"""Servers queried at a time."""
REPLICA_NUMBER_BITS = 16
"""A replica id is the server id above this many bits of replica number."""
_NO_ADMIN = "has no admin service"
_NOT_OF_VDL = "the cluster is not of VDL, or its files have no [admin] table"


@dataclass(slots=True)
class Server:
    """One server. `problem`: reason why its state is unknown, empty if it answered."""

    id: ServerId
    address: str
    admin: str = ""
    rack: str = ""
    problem: str = ""
    version: str = ""
    uptime_ms: int = 0
    replicas: int = 0
    leading: int = 0
    notes: list[str] = field(default_factory=list)
    """Problems that it knows of: texts of `vdl.server.problem.Problem`."""

    @property
    def own_problems(self) -> list[Problem]:
        """Problems of this server itself, not of partitions or other servers."""
        found = map(Problem.parse, self.notes)
        return [problem for problem in found if problem.kind in SERVER_KINDS]


@dataclass(slots=True)
class Replica:
    """One copy of a group. -1: unknown, because its server did not answer."""

    server: ServerId
    role: str = "unknown"
    """"learner": not all replicas know yet that it is a voter, so it cannot replace one."""
    term: Term = Term(-1)
    end_offset: int = -1
    high_watermark: int = -1
    durable_index: int = -1
    """Last index that the leader knows to be on this replica's disk."""
    lag: int = -1
    """Records that the leader has and this replica does not have."""
    lag_entries: int = -1
    """Raft entries that the leader has and does not know to be durable here."""
    is_in_sync: bool | None = None
    """True if the partition's leader reports it to clients as an in-sync replica; None: unknown."""


@dataclass(slots=True)
class Group:
    """A partition, the catalog or a coordinator. `leader` -1: no server claims to lead it."""

    name: str
    leader: int = -1
    term: Term = Term(-1)
    log_start_offset: int = -1
    high_watermark: int = -1
    end_offset: int = -1
    replicas: list[Replica] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """True if it has a leader, and all its replicas take part and are in sync."""
        return self.leader >= 0 and not any(
            replica.role in ("unknown", "learner") or replica.is_in_sync is False
            for replica in self.replicas
        )


@dataclass(slots=True)
class Partition(Group):
    """A partition of a topic; its term is Kafka's leader epoch."""

    partition: int = 0


@dataclass(slots=True)
class Topic:
    """A topic and its partitions, by number."""

    name: str
    partitions: list[Partition] = field(default_factory=list)


@dataclass(slots=True)
class ClusterStatus:
    """Everything `vdl status` shows."""

    cluster_id: str
    servers: list[Server] = field(default_factory=list)
    topics: list[Topic] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    """The catalog and the coordinators."""

    @property
    def partitions(self) -> list[Partition]:
        """Partitions of all topics."""
        return [partition for topic in self.topics for partition in topic.partitions]

    @property
    def problems(self) -> dict[str, list[str]]:
        """Kind → the servers' texts, without repetitions. An isolated server knows no leaders: it
        is ignored if another server knows one."""
        led = {
            group.name
            for group in (*self.groups, *self.partitions)
            if any(replica.role == "leader" for replica in group.replicas)
        }
        found: dict[str, dict[str, None]] = {}
        for server in self.servers:
            for problem in map(Problem.parse, server.notes):
                text = problem.text
                if problem.kind == "no_leader" and text.removesuffix(NO_LEADER) in led:
                    continue
                if problem.kind in SERVER_KINDS:
                    text = f"server {server.id}: {text}"
                found.setdefault(problem.kind, {})[text] = None
        return {kind: list(texts) for kind, texts in found.items()}

    @property
    def is_healthy(self) -> bool:
        """True if every server answers, every group has a leader, and no server knows of a
        problem."""
        return (
            not any(server.problem for server in self.servers)
            and all(group.leader >= 0 for group in (*self.groups, *self.partitions))
            and self.problems.keys() <= NOT_WRONG
        )


def collect(
    bootstrap: Iterable[Address],
    settings: ClientSettings = NOT_SECURED,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> ClusterStatus:
    """Return the state of a cluster: see `collect_answers`."""
    return collect_answers(bootstrap, settings, timeout_seconds=timeout_seconds)[0]


def collect_answers(
    bootstrap: Iterable[Address],
    settings: ClientSettings = NOT_SECURED,
    ask_more: Callable[[Server, AdminClient], None] | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> tuple[ClusterStatus, dict[ServerId, ServerStatus]]:
    """Get the list of servers from the server of `bootstrap` that answers first, then query all of
    them at the same time, because an overloaded one takes a while for each request. Return the
    state of the cluster, and the answers of the servers.

    `ask_more`: called with each server that answers, in a thread of its own. `timeout_seconds`:
    longest wait for one answer. Raises Unreachable if
    none answers, ClientSettingsError for unusable files."""
    addresses = list(dict.fromkeys(bootstrap))
    with ExitStack() as open_clients, Workers(SERVERS_AT_ONCE) as pool:

        def connect(address: Address) -> KafkaClient:
            client = KafkaClient(
                address.host, address.port, settings=settings, timeout_seconds=timeout_seconds
            )
            return open_clients.enter_context(client)

        connecting = {address: pool.submit(connect, address) for address in addresses}
        admin_client = pool.submit(_load_admin_client)  # while waiting for servers
        metadata, brokers = discover(connecting)
        status = ClusterStatus(metadata.cluster_id or "")
        asked = []
        for broker in brokers:
            address = Address(broker.host, broker.port)
            server = Server(ServerId(broker.broker_id), str(address), rack=broker.rack or "")
            status.servers.append(server)
            # An open connection is reused: each new one costs round trips.
            client = connecting.get(address) or pool.submit(connect, address)
            ask = partial(
                _ask_server, settings, server, address, client, admin_client, ask_more,
                timeout_seconds,
            )  # fmt: skip
            asked.append(pool.submit(ask))
        answers = {
            server.id: answer
            for server, future in zip(status.servers, asked, strict=True)
            if (answer := future.result()) is not None
        }
    if status.servers and all(server.problem == _NO_ADMIN for server in status.servers):
        # Otherwise a sound cluster of Kafka would be shown as one whose servers are down.
        raise Unreachable("no server has an admin service", _NOT_OF_VDL)
    replicas = _replicas_by_group(answers)
    _add_topics(status, metadata, replicas)
    status.groups = [
        fill_group(Group(name), _servers_of(by_server), by_server)
        for name, by_server in sorted(replicas.items())
        if name == "catalog" or name.startswith("coordinator-")
    ]
    _add_missing_servers(status)
    return status, answers


def discover(
    connecting: Mapping[Address, Future[KafkaClient]],
) -> tuple[Any, list[DescribeClusterBroker]]:
    """Return the Metadata of all topics and the servers by id, from the first server that answers.
    An isolated server leaves itself out of its Metadata; DescribeCluster includes it."""
    problems: dict[str, list[str]] = {}
    addresses = {connected: str(address) for address, connected in connecting.items()}
    for connected in as_completed(addresses):
        try:
            everyone = DescribeClusterRequest(include_fenced_brokers=True)
            everything = MetadataRequest(topics=None, allow_auto_topic_creation=False)
            cluster, metadata = connected.result().requests(
                [(DESCRIBE_CLUSTER_KEY, everyone), (METADATA_KEY, everything)]
            )
        except Unreachable as error:
            problems.setdefault(error.reason, []).append(addresses[connected])
        else:
            return metadata, cluster.brokers
    lines = [f"{', '.join(sorted(those))}: {reason}" for reason, those in problems.items()]
    raise Unreachable("no server answers", "; ".join(sorted(lines)))


def find_admin(client: KafkaClient, server_id: ServerId, address: Address) -> Address:
    """Return the address of a server's admin service, as it reports it. Raises Unreachable."""
    # Servers of an earlier build have it among their listeners.
    names = [ADMIN_SETTING, "advertised.listeners"]
    own = DescribeConfigsResource(BROKER_RESOURCE, str(server_id), names)
    answer = client.request(DESCRIBE_CONFIGS_KEY, DescribeConfigsRequest(resources=[own]))
    for result in answer.results:
        for config in result.configs:
            admin = admin_address(config.value or "")
            if admin is not None:
                return admin
    raise Unreachable(address, _NO_ADMIN)


def admin_address(listeners: str) -> Address | None:
    """Return the ADMIN listener in a text such as "PLAINTEXT://a:9092,ADMIN://a:9112", or None."""
    for listener in listeners.split(","):
        name, _, address = listener.strip().partition("://")
        if name == ADMIN_LISTENER:
            try:
                return parse_address(address)
            except ValueError:
                return None
    return None


def _load_admin_client() -> type[AdminClient]:
    """Load the admin client: gRPC takes a while."""
    from rpc.admin_client import AdminClient

    return AdminClient


def _ask_server(
    settings: ClientSettings,
    server: Server,
    address: Address,
    connecting: Future[KafkaClient],
    admin_client: Future[type[AdminClient]],
    ask_more: Callable[[Server, AdminClient], None] | None,
    timeout_seconds: float,
) -> ServerStatus | None:
    """Return the server's status and put its summary into `server`; None if it does not answer."""
    try:
        admin = find_admin(connecting.result(), server.id, address)
        server.admin = str(admin)
        with admin_client.result()(
            (admin.host, admin.port),
            files=settings.admin_files(),
            timeout_s=timeout_seconds,
        ) as client:
            answer = client.status()
            if ask_more is not None:
                ask_more(server, client)
    except Unreachable as error:
        server.problem = error.reason
        return None
    except TlsFailed as error:
        server.problem = str(error)
        return None
    except AdminError as error:
        server.problem = f"admin service: {error.details or error.code}"
        if error.code == "DEADLINE_EXCEEDED":
            server.problem = f"admin service: no answer within {timeout_seconds:g} s"
        return None
    server.version = answer.version
    server.uptime_ms = answer.uptime_ms
    server.replicas = len(answer.groups)
    server.leading = sum(group.role is Role.LEADER for group in answer.groups)
    server.notes = answer.problems
    return answer


# --- groups ---------------------------------------------------------------------------------------

ByServer = Mapping[ServerId, GroupStatus]
GroupT = TypeVar("GroupT", bound=Group)


def _replicas_by_group(
    answers: Mapping[ServerId, ServerStatus],
) -> dict[str, dict[ServerId, GroupStatus]]:
    """Return group name → server id → that server's replica of it."""
    found: dict[str, dict[ServerId, GroupStatus]] = {}
    for server_id, answer in sorted(answers.items()):
        for group in answer.groups:
            found.setdefault(group.name, {})[server_id] = group
    return found


def _add_topics(status: ClusterStatus, metadata: Any, replicas: Mapping[str, ByServer]) -> None:
    for described in sorted(metadata.topics, key=lambda topic: str(topic.name)):
        if described.is_internal:
            continue  # a view of the coordinators, which are shown themselves
        topic = Topic(described.name)
        for row in sorted(described.partitions, key=lambda row: int(row.partition_index)):
            name = f"{described.name}-{row.partition_index}"
            partition = Partition(
                name, row.leader_id, row.leader_epoch, partition=row.partition_index
            )
            fill_group(partition, row.replica_nodes, replicas.get(name, {}))
            for replica in partition.replicas:
                replica.is_in_sync = replica.server in row.isr_nodes
            topic.partitions.append(partition)
        status.topics.append(topic)


def _add_missing_servers(status: ClusterStatus) -> None:
    """Add servers that have replicas and are not among the brokers: they are down, or wait because
    the cluster does not know their data directory."""
    known = {server.id for server in status.servers}
    partitions = [partition for topic in status.topics for partition in topic.partitions]
    placed = {
        replica.server for group in (*status.groups, *partitions) for replica in group.replicas
    }
    status.servers += [
        Server(number, "", problem="down, or not a member of the cluster")
        for number in sorted(placed - known)
    ]
    status.servers.sort(key=lambda server: server.id)


def _servers_of(by_server: ByServer) -> list[ServerId]:
    """Return every server with a replica of the group, including those that did not answer."""
    ids = {
        NodeId(replica) >> REPLICA_NUMBER_BITS
        for group in by_server.values()
        for replica in (*group.voters, *group.learners)
    }
    return sorted(ids | set(by_server))


def fill_group(group: GroupT, servers: Iterable[ServerId], by_server: ByServer) -> GroupT:
    """Fill `group` with the replicas' reports. The leader of the newest term counts."""
    leaders = {
        server_id: replica
        for server_id, replica in by_server.items()
        if replica.role is Role.LEADER
    }
    leader = None
    if leaders:
        group.leader, leader = max(leaders.items(), key=lambda item: item[1].term)
        group.term = leader.term
        group.log_start_offset = leader.log_start_offset
        group.high_watermark = leader.high_watermark
        group.end_offset = leader.end_offset
    group.replicas = [_replica(number, by_server.get(number), leader) for number in servers]
    members = {*leader.voters, *leader.learners} if leader is not None else None
    views = [view for view in by_server.values() if members is None or view.replica_id in members]
    for replica in group.replicas:
        own = by_server.get(replica.server)
        if own is not None and own is not leader and not _is_voter(own, views):
            replica.role = "learner"
    return group


def _is_voter(own: GroupStatus, views: Iterable[GroupStatus]) -> bool:
    """Return True if all members that answer, including the replica itself, count its vote. A
    member that does not know of a promotion would wait for the previous voters if the others were
    removed now."""
    return own.replica_id in own.voters and all(
        own.replica_id in view.voters for view in views if view.voters
    )


def _replica(server_id: ServerId, own: GroupStatus | None, leader: GroupStatus | None) -> Replica:
    """Return one replica, from its own report and from its leader's."""
    replica = Replica(server_id)
    if own is not None:
        replica.role = own.role.name.lower()
        replica.term = own.term
        replica.end_offset = own.end_offset
        replica.high_watermark = own.high_watermark
    if leader is not None:
        if own is not None:
            # Queried one after another: a follower may answer later than its leader did.
            replica.lag = max(0, leader.end_offset - own.end_offset)
        for progress in leader.progress:
            if progress.replica_id >> REPLICA_NUMBER_BITS == server_id:
                replica.durable_index = progress.match
                replica.lag_entries = max(0, leader.last_index - progress.match)
    return replica
