"""The placement of a live cluster: its servers, partitions, sizes and disks, as they are now.

Each server is asked for the state of its groups and for its disk, one of them for the members and
for the reassignments in progress.

Does not depend on what is planned with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ids import GroupId, ServerId
from rpc.admin import Member
from rpc.errors import AdminError
from vdl.commands.checks.admin_calls import TOO_OLD
from vdl.commands.checks.cluster_status import (
    BROKER_RESOURCE,
    DESCRIBE_CONFIGS_KEY,
    Server,
    collect_answers,
)
from vdl.commands.cluster.admin_requests import admin_settings, check, with_client
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import fail
from vdl.config.values import FILE_SYSTEM_SETTING, parse_address
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.configs.options import REPLICAS_SETTING
from vdl.kafka.security.client_settings import ClientSettings, ClientSettingsError
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.describe_log_dirs import DescribeLogDirsRequest
from vdl.kafka.wire.list_partition_reassignments import ListPartitionReassignmentsRequest
from vdl.server.problem import Problem
from vdl.state.balance import ServerRoom, Where
from vdl.state.reassignment import Reassignment

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

DESCRIBE_LOG_DIRS, LIST_PARTITION_REASSIGNMENTS = 35, 46
REQUEST_MS = 10_000
_UNKNOWN_GROUP = GroupId(1 << 62)
"""Group id of a partition of which no replica answers: behind all others."""
DISK_FULL = "disk_full"


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server of the cluster, or one that waits to be added."""

    member: Member
    is_up: bool
    """True if it answers."""
    is_full: bool = False
    """True if its disk takes no records."""
    free_bytes: int = 0
    total_bytes: int = 0
    """0: its disk is not known."""
    disk: str = ""
    """Identity of the file system of its data; empty: not known."""

    @property
    def id(self) -> ServerId:
        return self.member.server_id

    @property
    def room(self) -> ServerRoom:
        """Return what a plan knows of it."""
        return ServerRoom(self.id, self.member.rack, self.free_bytes, self.total_bytes, self.disk)


@dataclass(frozen=True, slots=True)
class LivePartition:
    """A partition. `replicas`: those that it should have, preferred leader first."""

    where: Where
    group_id: GroupId
    replicas: tuple[ServerId, ...]
    leader: int
    """-1: none."""
    in_sync: frozenset[ServerId]
    size: int = 0
    moving: Reassignment | None = None


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """Everything that a plan depends on."""

    cluster_id: str
    servers: dict[ServerId, LiveServer] = field(default_factory=dict)
    partitions: dict[Where, LivePartition] = field(default_factory=dict)
    replicas_max: int = 0
    """`cluster.replicas_per_server`, the least of all servers; 0: not known."""

    @property
    def up(self) -> frozenset[ServerId]:
        """Servers that answer."""
        return frozenset(server for server, one in self.servers.items() if one.is_up)

    @property
    def racks(self) -> dict[ServerId, str]:
        """Rack of each server."""
        return {server: one.member.rack for server, one in self.servers.items()}


def read_cluster(connection: Connection) -> LiveCluster:
    """Return the placement of a cluster. Raises click.ClickException."""
    try:
        settings = admin_settings(connection)
        members: dict[ServerId, list[Member]] = {}
        disks: dict[ServerId, Any] = {}
        own: dict[ServerId, dict[str, str]] = {}
        problems: dict[ServerId, str] = {}

        def ask_more(server: Server, client: AdminClient) -> None:
            try:
                members[server.id] = client.members()
                disks[server.id], own[server.id] = _own_facts(server, settings)
            except (AdminError, Unreachable) as error:
                # Its state is known all the same.
                is_old = isinstance(error, AdminError) and error.code == "UNIMPLEMENTED"
                problems[server.id] = TOO_OLD if is_old else str(error)

        status, answers = collect_answers(
            addresses(connection.bootstrap),
            settings,
            ask_more,
            timeout_seconds=connection.timeout_seconds,
        )
    except (Unreachable, ClientSettingsError) as error:
        fail(str(error))
    if not members:
        told = [f"server {server}: {problem}" for server, problem in sorted(problems.items())]
        fail("; ".join(told) or "no server answers on its admin port")
    ids = {g.name: g.group_id for answer in answers.values() for g in answer.groups}
    sizes = _sizes(disks)
    moving = reassignments(connection)
    partitions = {}
    for topic in status.topics:
        for one in topic.partitions:
            where = (topic.name, one.partition)
            move = moving.get(where)
            listed = [replica.server for replica in one.replicas]
            removing = set() if move is None else set(move.removing)
            partitions[where] = LivePartition(
                where,
                ids.get(one.name, _UNKNOWN_GROUP),
                tuple(server for server in listed if server not in removing),
                one.leader,
                frozenset(r.server for r in one.replicas if r.is_in_sync),
                sizes.get(where, 0),
                move,
            )
    servers = {
        one.server_id: _live_server(
            one,
            answers.get(one.server_id),
            disks.get(one.server_id),
            own.get(one.server_id, {}).get(FILE_SYSTEM_SETTING, ""),
        )
        for one in _members(members)
    }
    limits = [int(found[REPLICAS_SETTING]) for found in own.values() if REPLICAS_SETTING in found]
    return LiveCluster(status.cluster_id, servers, partitions, min(limits, default=0))


def reassignments(connection: Connection) -> dict[Where, Reassignment]:
    """Return the reassignments in progress. Raises click.ClickException."""
    request = ListPartitionReassignmentsRequest(REQUEST_MS, None)
    answer = with_client(connection, lambda c: c.request(LIST_PARTITION_REASSIGNMENTS, request))
    check(answer.error_code, answer.error_message)
    return {
        (topic.name, one.partition_index): Reassignment(
            [*map(ServerId, one.replicas)],
            [*map(ServerId, one.adding_replicas)],
            [*map(ServerId, one.removing_replicas)],
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def _members(members: dict[ServerId, list[Member]]) -> list[Member]:
    """Return what the servers know of each other: each of itself, and all of those that wait."""
    found: dict[ServerId, Member] = {}
    for _, listed in sorted(members.items()):
        for one in listed:
            known = found.get(one.server_id)
            if known is None or (one.is_connected and not known.is_connected):
                found[one.server_id] = one
    return [found[server] for server in sorted(found)]


def _live_server(member: Member, answer: Any, log_dirs: Any, disk: str) -> LiveServer:
    problems = [] if answer is None else [Problem.parse(text).kind for text in answer.problems]
    directory = log_dirs.results[0] if log_dirs is not None and log_dirs.results else None
    return LiveServer(
        member,
        is_up=answer is not None,
        is_full=DISK_FULL in problems,
        free_bytes=0 if directory is None else max(0, directory.usable_bytes),
        total_bytes=0 if directory is None else max(0, directory.total_bytes),
        disk=disk,
    )


def _own_facts(server: Server, settings: ClientSettings) -> tuple[Any, dict[str, str]]:
    """Return a server's log directories, and its settings that a plan depends on. A server of an
    earlier build has none of these. Raises Unreachable."""
    address = parse_address(server.address)
    names = [REPLICAS_SETTING, FILE_SYSTEM_SETTING]
    asked = DescribeConfigsResource(BROKER_RESOURCE, str(server.id), names)
    with KafkaClient(address.host, address.port, settings=settings) as client:
        log_dirs, described = client.requests(
            [
                (DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None)),
                (DESCRIBE_CONFIGS_KEY, DescribeConfigsRequest(resources=[asked])),
            ]
        )
    found = {one.name: one.value or "" for result in described.results for one in result.configs}
    return log_dirs, found


def _sizes(disks: dict[ServerId, Any]) -> dict[Where, int]:
    """Return the size of a partition's largest replica."""
    found: dict[Where, int] = {}
    for _, answer in sorted(disks.items()):
        for directory in answer.results:
            for topic in directory.topics:
                for one in topic.partitions:
                    where = (topic.name, one.partition_index)
                    found[where] = max(found.get(where, 0), one.partition_size)
    return found
