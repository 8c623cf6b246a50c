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
class TransferResult:
    """Result of a transfer. `leader`, with NOT_LEADER: the leading replica, 0 if unknown."""

    outcome: TransferOutcome
    leader: int = 0


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

    def hint_stop(self, *, whole_cluster: bool) -> None:
        """Announce an imminent stop. `whole_cluster`: leadership need not be transferred."""

    def slowest_requests(self) -> TracedRequests:
        """Return the slowest requests of the last minutes."""

    def start_trace(self, wanted: TraceFilter) -> int:
        """Begin to trace requests. Return the number of the trace; 0 if there are too many."""

    def read_trace(self, trace: int, *, ends: bool) -> TracedRequests:
        """Return what a trace has found since it was last read. `ends`: end it."""
