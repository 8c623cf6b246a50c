"""The admin plane without gRPC: its messages, and the interface a server must implement.

The messages are plain dataclasses whose fields have the names of `proto/admin.proto`, so that a
server fills them in without importing protobuf, and the command line prints them without gRPC.
`admin_service` and `admin_client` translate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from ids import NO_INDEX, DirectoryId, GroupId, Index, NodeId, Offset, ServerId, Term
from rpc.streams import LinkStatus
from rpc.traces import TracedRequests, TraceFilter


class Role(IntEnum):
    """Role of a replica in its group."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class ProgressState(IntEnum):
    """State of a leader's replication to one replica."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class TransferOutcome(IntEnum):
    """Outcome of a leadership transfer."""

    TRANSFERRED = 0
    NOT_LEADER = 1
    UNKNOWN_GROUP = 2
    NO_REPLICA = 3
    TIMED_OUT = 4


@dataclass(slots=True)
class ReplicaProgress:
    """Leader's view of one replica."""

    replica_id: NodeId
    state: ProgressState
    match: int
    """Highest index known to be durable on the replica."""
    next: int
    recent_active: bool = False
    is_paused: bool = False


@dataclass(slots=True)
class GroupStatus:
    """One replica of one group. Offsets are 0 for groups without records."""

    group_id: GroupId
    name: str
    replica_id: NodeId
    role: Role
    term: Term
    leader: int
    """Replica id of the leader, 0 if none is known."""
    first_index: Index = NO_INDEX
    last_index: Index = NO_INDEX
    commit: Index = NO_INDEX
    applied: Index = NO_INDEX
    log_start_offset: Offset = Offset(0)
    high_watermark: Offset = Offset(0)
    end_offset: Offset = Offset(0)
    voters: list[int] = field(default_factory=list)
    learners: list[int] = field(default_factory=list)
    progress: list[ReplicaProgress] = field(default_factory=list)
    """Progress of every replica, on the leader; empty elsewhere."""
    in_sync: list[int] = field(default_factory=list)
    """Servers whose replicas of a partition are in sync, on the leader; empty elsewhere."""
    in_sync_min: int = 0
    """`min.insync.replicas` of a partition, at most its replicas; 0 if not known here."""


@dataclass(slots=True)
class ServerStatus:
    """State of one server. `cluster_id` is "" before birth."""

    server_id: ServerId
    cluster_id: str = ""
    directory_id: DirectoryId = DirectoryId(b"")
    incarnation: int = 0
    version: str = ""
    uptime_ms: int = 0
    problems: list[str] = field(default_factory=list)
    links: list[LinkStatus] = field(default_factory=list)
    groups: list[GroupStatus] = field(default_factory=list)


@dataclass(slots=True)
class Event:
    """One event of a server, or repetitions of it. Times are ms since 1970 on its clock."""

    event: str
    level: str
    """Level of its line in the log; empty if it has none."""
    first_ms: int
    last_ms: int
    count: int
    fields: str
    """A JSON object, with texts that clients chose."""


@dataclass(slots=True)
class Dropped:
    """Events of one kind that are not kept any more: there may be more up to `until_ms`."""

    kind: str
    until_ms: int


@dataclass(slots=True)
class GroupMember:
    """A member of a consumer group, as its coordinator knows it."""

    id: str
    client_id: str
    host: str
    instance: str = ""
    silent_ms: int = -1
    """Time since its last request; -1: not known."""
    session_timeout_ms: int = 0
    is_awaited: bool = False
    """True if the group waits for it: it has not joined, synced or revoked."""
    partitions: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CommittedOffset:
    """The position of a consumer group in a partition."""

    topic: str
    partition: int
    offset: int
    committed_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group, as its coordinator knows it."""

    name: str
    type: str
    """"classic" or "consumer"."""
    state: str
    generation: int = 0
    changed_ms: int = 0
    """Time since which it has this state; 0: not known."""
    members_count: int = 0
    members: list[GroupMember] = field(default_factory=list)
    """The first `MEMBERS_MAX`."""
    offsets_count: int = 0
    offsets: list[CommittedOffset] = field(default_factory=list)
    """The first `OFFSETS_MAX`, or those of one topic."""


@dataclass(slots=True)
class ServerEvents:
    """The latest rare events of one server, and a consumer group that it coordinates."""

    server_id: ServerId
    now_ms: int = 0
    """The server's wall clock."""
    started_ms: int = 0
    """Time at which it began to keep events."""
    events: list[Event] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    groups: list[ConsumerGroup] = field(default_factory=list)
    """The group that was named, if it is coordinated here."""


MEMBERS_MAX = 200
OFFSETS_MAX = 1_000
"""Limits of a `ConsumerGroup`, which is described in one turn of the loop."""


@dataclass(slots=True)
class TransferResult:
    """Result of a transfer. `leader`, with NOT_LEADER: the leading replica, 0 if unknown."""

    outcome: TransferOutcome
    leader: int = 0


class MemberChange(IntEnum):
    """Change of the cluster's servers that an operator requests."""

    ADD = 0
    REMOVE = 1
    RESTORE = 2


@dataclass(slots=True)
class Member:
    """One server of the cluster, or one that waits to be added."""

    server_id: ServerId
    standing: str
    """"waiting", "joining", "member" or "leaving"."""
    is_voter: bool = False
    """True if it votes in the catalog and the coordinators."""
    is_connected: bool = False
    address: str = ""
    """Address for its peers, of a server that was added, or waits and says it."""
    rack: str = ""
    replicas: int = 0
    leading: int = 0
    blocking: str = ""
    """A partition that keeps a leaving server from being removed."""
    reason: str = ""
    """Why it does, or why a server that was added waits."""
    directory_id: str = ""
    """Data directory that it runs or waits in, hexadecimal."""


@dataclass(slots=True)
class MemberChanged:
    """Result of a change. `error`: Kafka's error code, 0 if it is done or has begun."""

    error: int
    message: str = ""


class AdminBackend(Protocol):
    """Server behind the admin plane. Plain functions, called on its loop."""

    def status(self, groups: Sequence[GroupId]) -> Iterator[ServerStatus]:
        """Return the server's state, with only these groups; all if empty.

        The iterator yields parts to be merged: the first has the scalar fields, each has a bounded
        number of groups. The loop may run between two parts; a group is reported as it is when its
        part is taken, or not at all.
        """

    def transfer_leadership(
        self, group: GroupId, to_server: ServerId, done: Callable[[TransferResult], None]
    ) -> None:
        """Begin a transfer; `done` is called once, possibly before this returns."""

    def events(self, topic: str, group: str) -> Iterator[ServerEvents]:
        """Return the events of the server, with those of one topic and one consumer group only;
        of all if empty. In parts as in `status`."""

    def hint_stop(self, *, whole_cluster: bool) -> None:
        """Announce an imminent stop. `whole_cluster`: leadership need not be transferred."""

    def slowest_requests(self) -> TracedRequests:
        """Return the slowest requests of the last minutes."""

    def start_trace(self, wanted: TraceFilter) -> int:
        """Begin to trace requests. Return the number of the trace; 0 if there are too many."""

    def read_trace(self, trace: int, *, ends: bool) -> TracedRequests:
        """Return what a trace has found since it was last read. `ends`: end it."""

    def members(self) -> list[Member]:
        """Return the servers of the cluster, and those that wait here to be added."""

    def change_member(
        self,
        change: MemberChange,
        server_id: ServerId,
        host: str,
        port: int,
        done: Callable[[MemberChanged], None],
    ) -> None:
        """Add a server, begin to remove it, or take it back; `done` is called once."""
