"""Blocking client of one server's admin plane, for the command line and tests.

Every call has a deadline and raises AdminError, never a gRPC exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from ids import DirectoryId, GroupId, Index, NodeId, Offset, ServerId, Term
from rpc.admin import (
    CommittedOffset,
    ConsumerGroup,
    Dropped,
    Event,
    GroupMember,
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
from rpc.admin_security import read_files
from rpc.errors import AdminError
from rpc.proto import admin_pb2
from rpc.streams import Address, LinkStatus
from rpc.tls_context import TlsFiles
from rpc.traces import Stage, TracedRequest, TracedRequests, TraceFilter

_SERVICE = "vdl.admin.v1.Admin"
_MESSAGE_BYTES_MAX = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # A proxy set in the environment is for external addresses, not for other servers.
    ("grpc.enable_http_proxy", 0),
)


class AdminClient:
    """Client of the server at one address. Close it, or use it in a `with` statement."""

    def __init__(
        self, address: Address, *, files: TlsFiles | None = None, timeout_s: float = 5.0
    ) -> None:
        """`files`: own certificate, and the CA of the server's; None: unencrypted.

        Raises TlsFailed for files that cannot be read.
        """
        host, port = address
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._timeout_s = timeout_s
        if files is None:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        else:
            key, certificate, ca = read_files(files)
            credentials = grpc.ssl_channel_credentials(ca, key, certificate)
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()

    def status(self, groups: Sequence[GroupId] = ()) -> ServerStatus:
        """Return the server's state, with only these groups; all if empty. Raises AdminError."""
        reply: admin_pb2.ServerStatus = self._call(
            "Status",
            admin_pb2.StatusRequest(group_ids=groups),
            admin_pb2.ServerStatus.FromString,
        )
        return _server_status(reply)

    def transfer_leadership(self, group: GroupId, to_server: ServerId) -> TransferResult:
        """Transfer a group's leadership from the called server to another one.

        Raises AdminError. After DEADLINE_EXCEEDED the transfer may still happen.
        """
        reply: admin_pb2.TransferLeadershipReply = self._call(
            "TransferLeadership",
            admin_pb2.TransferLeadershipRequest(group_id=group, to_server=to_server),
            admin_pb2.TransferLeadershipReply.FromString,
        )
        return TransferResult(TransferOutcome(reply.outcome), reply.leader)

    def events(self, *, topic: str = "", group: str = "") -> ServerEvents:
        """Return the server's latest events, with those of one topic and one consumer group only;
        of all if empty. Raises AdminError."""
        reply: admin_pb2.EventsReply = self._call(
            "Events",
            admin_pb2.EventsRequest(topic=topic, group=group),
            admin_pb2.EventsReply.FromString,
        )
        return _server_events(reply)

    def hint_stop(self, *, whole_cluster: bool) -> None:
        """Announce an imminent stop of one server or the whole cluster. Raises AdminError."""
        self._call(
            "HintStop",
            admin_pb2.HintStopRequest(whole_cluster=whole_cluster),
            admin_pb2.HintStopReply.FromString,
        )

    def slowest_requests(self) -> list[TracedRequest]:
        """Return the slowest requests of the server's last minutes. Raises AdminError."""
        reply: admin_pb2.TracedRequests = self._call(
            "SlowestRequests",
            admin_pb2.SlowestRequestsRequest(),
            admin_pb2.TracedRequests.FromString,
        )
        return _traced_requests(reply).requests

    def start_trace(self, wanted: TraceFilter) -> int:
        """Begin a trace. Return its number, 0 if the server refuses one more. Raises AdminError."""
        reply: admin_pb2.StartTraceReply = self._call(
            "StartTrace",
            admin_pb2.StartTraceRequest(
                apis=wanted.apis,
                topics=wanted.topics,
                client_ids=wanted.client_ids,
                slower_than_ns=wanted.slower_than_ns,
                duration_ns=wanted.duration_ns,
                requests_max=wanted.requests_max,
            ),
            admin_pb2.StartTraceReply.FromString,
        )
        return reply.trace

    def read_trace(self, trace: int, *, ends: bool = False) -> TracedRequests:
        """Return what a trace has found since it was last read. `ends`: end it. Raises
        AdminError."""
        reply: admin_pb2.TracedRequests = self._call(
            "ReadTrace",
            admin_pb2.ReadTraceRequest(trace=trace, ends=ends),
            admin_pb2.TracedRequests.FromString,
        )
        return _traced_requests(reply)

    def members(self) -> list[Member]:
        """Return the servers of the cluster, and those that wait to be added. Raises AdminError."""
        reply: admin_pb2.MembersReply = self._call(
            "Members", admin_pb2.MembersRequest(), admin_pb2.MembersReply.FromString
        )
        return [
            Member(
                server_id=ServerId(member.server_id),
                standing=member.standing,
                is_voter=member.is_voter,
                is_connected=member.is_connected,
                address=member.address,
                rack=member.rack,
                replicas=member.replicas,
                leading=member.leading,
                blocking=member.blocking,
                reason=member.reason,
                directory_id=member.directory_id,
            )
            for member in reply.members
        ]

    def change_member(
        self, change: MemberChange, server_id: ServerId, *, host: str = "", port: int = 0
    ) -> MemberChanged:
        """Add a server, begin to remove it, or take it back. Raises AdminError."""
        reply: admin_pb2.ChangeMemberReply = self._call(
            "ChangeMember",
            admin_pb2.ChangeMemberRequest(
                change=change.name, server_id=server_id, host=host, port=port
            ),
            admin_pb2.ChangeMemberReply.FromString,
        )
        return MemberChanged(reply.error, reply.message)

    def _call(self, method: str, request: Any, decode: Callable[[bytes], Any]) -> Any:
        call: grpc.UnaryUnaryMultiCallable[Any, Any] = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=decode,
        )
        try:
            return call(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise AdminError(error.code().name, error.details() or "") from error


def _server_status(message: admin_pb2.ServerStatus) -> ServerStatus:
    return ServerStatus(
        server_id=ServerId(message.server_id),
        cluster_id=message.cluster_id,
        directory_id=DirectoryId(message.directory_id),
        incarnation=message.incarnation,
        version=message.version,
        uptime_ms=message.uptime_ms,
        problems=list(message.problems),
        links=[_link_status(link) for link in message.links],
        groups=[_group_status(group) for group in message.groups],
    )


def _traced_requests(message: admin_pb2.TracedRequests) -> TracedRequests:
    return TracedRequests([_traced_request(one) for one in message.requests], message.ended)


def _traced_request(message: admin_pb2.TracedRequest) -> TracedRequest:
    return TracedRequest(
        number=message.number,
        server_id=ServerId(message.server_id),
        api=message.api,
        version=message.version,
        correlation_id=message.correlation_id,
        client_id=message.client_id,
        principal=message.principal,
        listener=message.listener,
        peer=message.peer,
        connection_id=message.connection_id,
        began_ms=message.began_ms,
        total_ns=message.total_ns,
        busy_ns=message.busy_ns,
        request_bytes=message.request_bytes,
        response_bytes=message.response_bytes,
        partitions=list(message.partitions),
        partition_count=message.partition_count,
        group=message.group,
        slowest=message.slowest,
        term=Term(message.term),
        acked_by=ServerId(message.acked_by),
        stages=[Stage(one.name, one.start_ns, one.duration_ns) for one in message.stages],
    )


def _link_status(message: admin_pb2.LinkStatus) -> LinkStatus:
    return LinkStatus(
        server_id=ServerId(message.server_id),
        is_up=message.is_up,
        dialed_by_us=message.dialed_by_us,
        unsent_bytes=message.unsent_bytes,
        round_trip_ns=message.round_trip_ns,
        silent_ns=message.silent_ns,
        dial_failures=message.dial_failures,
    )


def _group_status(message: admin_pb2.GroupStatus) -> GroupStatus:
    return GroupStatus(
        group_id=GroupId(message.group_id),
        name=message.name,
        replica_id=NodeId(message.replica_id),
        role=Role(message.role),
        term=Term(message.term),
        leader=message.leader,
        first_index=Index(message.first_index),
        last_index=Index(message.last_index),
        commit=Index(message.commit),
        applied=Index(message.applied),
        log_start_offset=Offset(message.log_start_offset),
        high_watermark=Offset(message.high_watermark),
        end_offset=Offset(message.end_offset),
        voters=list(message.voters),
        learners=list(message.learners),
        progress=[
            ReplicaProgress(
                replica_id=NodeId(replica.replica_id),
                state=ProgressState(replica.state),
                match=replica.match,
                next=replica.next,
                recent_active=replica.recent_active,
                is_paused=replica.is_paused,
            )
            for replica in message.progress
        ],
        in_sync=list(message.in_sync),
        in_sync_min=message.in_sync_min,
    )


def _server_events(message: admin_pb2.EventsReply) -> ServerEvents:
    return ServerEvents(
        server_id=ServerId(message.server_id),
        now_ms=message.now_ms,
        started_ms=message.started_ms,
        events=[
            Event(one.event, one.level, one.first_ms, one.last_ms, one.count, one.fields)
            for one in message.events
        ],
        dropped=[Dropped(one.kind, one.until_ms) for one in message.dropped],
        groups=[_consumer_group(one) for one in message.groups],
    )


def _consumer_group(message: admin_pb2.ConsumerGroup) -> ConsumerGroup:
    return ConsumerGroup(
        name=message.name,
        type=message.type,
        state=message.state,
        generation=message.generation,
        changed_ms=message.changed_ms,
        members_count=message.members_count,
        members=[
            GroupMember(
                id=one.id,
                client_id=one.client_id,
                host=one.host,
                instance=one.instance,
                silent_ms=one.silent_ms,
                session_timeout_ms=one.session_timeout_ms,
                is_awaited=one.is_awaited,
                partitions=list(one.partitions),
            )
            for one in message.members
        ],
        offsets_count=message.offsets_count,
        offsets=[
            CommittedOffset(one.topic, one.partition, one.offset, one.committed_ms)
            for one in message.offsets
        ],
    )
