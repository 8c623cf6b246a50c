"""Admin service of a server: its status, leadership transfers, stop hints, traces, and changes
of the cluster's servers.

Answers come from memory, and are right about this server however many others are down. Does not
depend on gRPC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import rpc.admin as rpc_admin
from ids import GroupId, ServerId
from raft.progress import ProgressState as RaftProgressState
from raft.types import NONE
from rpc.admin import (
    Dropped,
    GroupStatus,
    Member,
    MemberChange,
    MemberChanged,
    ProgressState,
    ReplicaProgress,
    Role,
    ServerEvents,
    ServerStatus,
    TransferOutcome,
    TransferResult,
)
from rpc.traces import TracedRequests, TraceFilter
from vdl import __version__
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.events import Event, Events, Kind
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.host import Host
from vdl.logstream.membership.added_servers import removed_text
from vdl.server.diagnosis import (
    problems_of_copies,
    problems_of_links,
    problems_of_server,
)
from vdl.server.group_description import describe_group
from vdl.server.partition_counts import is_being_moved, is_being_replaced, min_in_sync
from vdl.server.problem import NO_LEADER
from vdl.server.server import Server, ServerState

CHANGE_PATIENCE_MS = 5_000
ADDRESS_CHARS_MAX = 253
PORT_MAX = 65_535
TRANSFER_PATIENCE_MS = 2_000
TRANSFER_POLL_MS = 5
GROUPS_PER_PART = 100
"""Groups in one part of a status, built in one turn of the loop: a few ms on any server."""

EVENTS_PER_PART = 100

_PROGRESS_STATES = {
    RaftProgressState.PROBE: ProgressState.PROBE,
    RaftProgressState.REPLICATE: ProgressState.REPLICATE,
    RaftProgressState.SNAPSHOT: ProgressState.SNAPSHOT,
}


class Administration:
    """`rpc.admin.AdminBackend` of one server."""

    def __init__(self, server: Server, events: Events) -> None:
        self._server = server
        self._events = events
        self._started_ns = server.clock.now_ns()

    def status(self, groups: Sequence[GroupId]) -> Iterator[ServerStatus]:
        """See `AdminBackend.status`."""
        server = self._server
        host = server.host
        problems = [*problems_of_server(server), *problems_of_links(server)]
        if host is not None:
            problems += problems_of_copies(server, server.partition_counts())
        yield ServerStatus(
            server_id=server.config.server_id,
            cluster_id=host.cluster_id if host is not None else "",
            directory_id=server.store.directory_id,
            incarnation=server.incarnation,
            version=__version__,
            uptime_ms=(server.clock.now_ns() - self._started_ns) // MS,
            problems=list(map(str, problems)),
            links=server.links.links(),
        )
        if host is not None:
            wanted = frozenset(groups)
            lost = frozenset(host.lost_groups)
            ids = sorted(lost.union(host.groups))
            for start in range(0, len(ids), GROUPS_PER_PART):
                yield self._part(host, ids[start : start + GROUPS_PER_PART], lost, wanted)

    def _part(
        self,
        host: Host,
        ids: Sequence[GroupId],
        lost: frozenset[GroupId],
        wanted: frozenset[GroupId],
    ) -> ServerStatus:
        """Return the problems of these groups, and the status of those in `wanted` that still
        exist."""
        part = ServerStatus(self._server.config.server_id)
        for group_id in ids:
            name = host.state.told_of(group_id)
            if group_id in lost:
                part.problems.append(
                    f"replica_lost: the replica of {name} on this server lost data and waits "
                    "to be replaced"
                )
            group = host.groups.get(group_id)
            if group is None:
                continue
            if is_being_moved(group):
                part.problems.append(f"replica_moved: replicas of {name} are being moved")
            elif is_being_replaced(group):
                part.problems.append(f"replica_replaced: a replica of {name} is being replaced")
            if host.leader_of(group_id)[0] < 0:
                part.problems.append(f"no_leader: {name}{NO_LEADER}")
            if not wanted or group_id in wanted:
                part.groups.append(self._group_status(group))
        return part

    def _group_status(self, group: Group) -> GroupStatus:
        node, log = group.node, group.log
        host = self._server.host
        assert host is not None
        status = GroupStatus(
            group_id=group.group_id,
            name=host.state.told_of(group.group_id),
            replica_id=group.replica_id,
            role=Role(int(node.state)),
            term=node.term,
            leader=node.lead,
            first_index=log.first_index,
            last_index=node.last_index,
            commit=node.commit,
            applied=group.applied,
            voters=sorted(node.membership.voters()),
            learners=sorted(node.membership.learners),
        )
        in_sync = host.in_sync.get(group.group_id)
        info = host.catalog.groups.get(group.group_id)
        frontend = self._server.frontend
        if in_sync is not None and info is not None and frontend is not None:
            default = frontend.context.config.min_insync_replicas
            status.in_sync = list(in_sync.servers)
            status.in_sync_min = min_in_sync(host, info, default)
        stream = host.stream(group.group_id)
        if stream is not None:
            status.log_start_offset = stream.log_start_offset
            status.high_watermark = stream.high_watermark
            status.end_offset = stream.end_offset
        if node.is_leader:
            for replica_id in group.members:
                progress = node.progress(replica_id)
                if progress is not None:
                    status.progress.append(
                        ReplicaProgress(
                            replica_id=replica_id,
                            state=_PROGRESS_STATES[progress.state],
                            match=progress.match,
                            next=progress.next,
                            recent_active=progress.recent_active,
                            is_paused=progress.is_paused,
                        )
                    )
        return status

    def events(self, topic: str, group: str) -> Iterator[ServerEvents]:
        """See `AdminBackend.events`."""
        server, events = self._server, self._events
        first = ServerEvents(server.config.server_id, events.now_ms, events.started_ms)
        owners = {Kind.PARTITION: topic, Kind.REFUSAL: topic, Kind.GROUP: group}
        chosen: list[Event] = []
        for kind, ring in events.rings.items():
            owner = owners.get(kind, "")
            until_ms = ring.dropped_until_ms(owner) if owner else ring.last_dropped_ms
            if until_ms:
                first.dropped.append(Dropped(kind.name.lower(), until_ms))
            chosen += ring.of(owner) if owner else ring
        groups = None if server.frontend is None else server.frontend.context.groups
        if group and groups is not None:
            led = groups.find(group)
            found = describe_group(led, group, topic) if isinstance(led, LedCoordinator) else None
            first.groups = [] if found is None else [found]
        yield first
        for start in range(0, len(chosen), EVENTS_PER_PART):
            part = ServerEvents(server.config.server_id)
            part.events = [
                rpc_admin.Event(
                    one.event, one.level, one.first_ms, one.last_ms, one.count,
                    json.dumps(one.fields, ensure_ascii=True),
                )
                for one in chosen[start : start + EVENTS_PER_PART]
            ]  # fmt: skip
            yield part

    def transfer_leadership(
        self, group: GroupId, to_server: ServerId, done: Callable[[TransferResult], None]
    ) -> None:
        """See `AdminBackend.transfer_leadership`."""
        host = self._server.host
        here = host.groups.get(group) if host is not None else None
        if host is None or here is None:
            done(TransferResult(TransferOutcome.UNKNOWN_GROUP))
            return
        if not here.node.is_leader:
            done(TransferResult(TransferOutcome.NOT_LEADER, here.node.lead))
            return
        voters = here.node.membership.incoming
        target = next((r for r in sorted(voters) if server_of(r) == to_server), NONE)
        if not target:
            done(TransferResult(TransferOutcome.NO_REPLICA))
            return
        if target != here.replica_id:
            host.state.log.note(
                "leadership_transferred",
                partition=host.state.told_of(group),
                to=to_server,
                reason="operator",
            )
            here.node.transfer_leader(target)
            host.mark_dirty(here)
        self._await_transfer(
            here, target, self._server.clock.now_ns() + TRANSFER_PATIENCE_MS * MS, done
        )

    def _await_transfer(
        self, group: Group, target: int, deadline_ns: int, done: Callable[[TransferResult], None]
    ) -> None:
        clock = self._server.clock
        if group.node.lead == target:
            done(TransferResult(TransferOutcome.TRANSFERRED, target))
        elif clock.now_ns() >= deadline_ns:
            done(TransferResult(TransferOutcome.TIMED_OUT, group.node.lead))
        else:
            clock.call_later(
                TRANSFER_POLL_MS * MS,
                lambda: self._await_transfer(group, target, deadline_ns, done),
            )

    def hint_stop(self, *, whole_cluster: bool) -> None:
        """See `AdminBackend.hint_stop`."""
        self._server.whole_set_stops = whole_cluster

    def slowest_requests(self) -> TracedRequests:
        """See `AdminBackend.slowest_requests`."""
        frontend = self._server.frontend
        return TracedRequests([] if frontend is None else list(frontend.stats.slow.slowest()))

    def start_trace(self, wanted: TraceFilter) -> int:
        """See `AdminBackend.start_trace`."""
        frontend = self._server.frontend
        return 0 if frontend is None else frontend.stats.slow.start(wanted)

    def read_trace(self, trace: int, *, ends: bool) -> TracedRequests:
        """See `AdminBackend.read_trace`."""
        frontend = self._server.frontend
        if frontend is None:
            return TracedRequests(ended="the server does not serve clients")
        return frontend.stats.slow.read(trace, ends=ends)

    def members(self) -> list[Member]:
        """See `AdminBackend.members`."""
        host = self._server.host
        return [
            Member(
                server_id=one.server_id,
                standing=one.standing.value,
                is_voter=one.is_voter,
                is_connected=one.is_connected,
                address=one.address,
                rack=one.rack,
                replicas=one.replicas,
                leading=one.leading,
                blocking=one.blocking,
                reason=one.reason,
                directory_id=one.directory_id.hex(),
            )
            for one in (host.added_servers.describe() if host is not None else ())
        ]

    def change_member(
        self,
        change: MemberChange,
        server_id: ServerId,
        host: str,
        port: int,
        done: Callable[[MemberChanged], None],
    ) -> None:
        """See `AdminBackend.change_member`."""
        here = self._server.host

        def ended(error: ErrorCode, message: str) -> None:
            done(MemberChanged(int(error), message))

        if here is None:
            ended(ErrorCode.BROKER_NOT_AVAILABLE, "this server belongs to no cluster yet")
            return
        if self._server.state is ServerState.REMOVED:
            # The catalog here is of before.
            ended(ErrorCode.BROKER_NOT_AVAILABLE, removed_text(self._server.config.server_id))
            return
        deadline_ns = self._server.clock.now_ns() + CHANGE_PATIENCE_MS * MS
        servers = here.added_servers
        if change is not MemberChange.ADD:
            is_leaving = change is MemberChange.REMOVE
            servers.decommission(
                server_id, is_leaving=is_leaving, deadline_ns=deadline_ns, done=ended
            )
        elif not (0 < len(host) <= ADDRESS_CHARS_MAX and 0 < port <= PORT_MAX):
            ended(ErrorCode.INVALID_REQUEST, "an address for peers is needed, HOST:PORT")
        else:
            servers.admit(server_id, host, port, deadline_ns=deadline_ns, done=ended)
