"""gRPC server of the admin plane, on the server's own loop.

Importing this costs 14 MB and 20 ms, so a server imports it only when its listeners are up. The
method table is written here instead of in generated service code, which has no types. The backend
consists of plain calls. Only gRPC itself needs coroutines, one for each call, which is acceptable
for the admin plane.

Does not depend on the meaning of answers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from ids import GroupId, ServerId
from rpc.admin import (
    AdminBackend,
    GroupStatus,
    MemberChange,
    MemberChanged,
    ServerEvents,
    ServerStatus,
    TransferResult,
)
from rpc.admin_gate import CONNECTIONS_MAX, AdminGate
from rpc.admin_security import AdminSecurity
from rpc.proto import admin_pb2
from rpc.streams import Address
from rpc.traces import (
    TRACE_NAME_CHARS_MAX,
    TRACE_NAMES_MAX,
    TracedRequest,
    TracedRequests,
    TraceFilter,
)

_INVALID_REQUEST = 42
"""Kafka's error code."""
SERVICE = "vdl.admin.v1.Admin"

_MESSAGE_BYTES_MAX = 64 << 20
_CALLS_MAX = 64
HANDSHAKE_SECONDS = 5.0
"""Time until a connection must send something, and again until its handshakes, of TLS and HTTP/2,
must be complete."""
_IDLE_SECONDS = 60
"""Time without a call."""
_AGE_SECONDS, _AGE_GRACE_SECONDS = 3_600, 60
_REQUESTS_PER_PART = 50
"""Traced requests that are encoded in one turn: about a millisecond."""
_TELL_SECONDS, _TELL_SHARE = 0.002, 0.1
"""Time that a status takes of a turn: this long, but at least that share of the turn before.
Otherwise an overloaded server with thousands of groups would answer after the caller has left."""


def _options(handshake_s: float) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
        ("grpc.server_handshake_timeout_ms", round(handshake_s * 1_000)),
        ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1_000),
        ("grpc.max_connection_age_ms", _AGE_SECONDS * 1_000),
        ("grpc.max_connection_age_grace_ms", _AGE_GRACE_SECONDS * 1_000),
        ("grpc.max_concurrent_streams", _CALLS_MAX),
    )


class AdminService:
    """The admin plane of one backend, from `start` to `stop`."""

    def __init__(
        self,
        backend: AdminBackend,
        *,
        security: AdminSecurity | None = None,
        now: Callable[[], float] = time.monotonic,
        handshake_s: float = HANDSHAKE_SECONDS,
    ) -> None:
        """`security`: without it, any process that reaches the port may call.

        `now`: a monotonic clock in seconds.
        """
        self._backend = backend
        self._security = security
        self._now = now
        self._telling = asyncio.Lock()
        # Abstract: it leaves no file behind. A process that guesses the name must still pass the
        # same checks as others: a certificate, if certificates are in use.
        self._inner = f"vdl-admin-{secrets.token_hex(16)}"
        self._gate = AdminGate("\0" + self._inner, handshake_s)
        self._server = aio.server(options=_options(handshake_s), maximum_concurrent_rpcs=_CALLS_MAX)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._methods()),)
        )

    async def start(self, address: Address) -> int:
        """Serve on `address` and return the bound port. Raises OSError if it cannot."""
        inner = f"unix-abstract:{self._inner}"
        try:
            if self._security is None:
                self._server.add_insecure_port(inner)
            else:
                self._server.add_secure_port(inner, self._security.server_credentials())
        except RuntimeError as error:
            raise OSError(f"admin plane cannot listen on {inner}: {error}") from error
        await self._server.start()
        return await self._gate.open(address)

    async def stop(self, grace_s: float = 0.1) -> None:
        """Let calls in progress finish for `grace_s`, then end."""
        await self._server.stop(grace_s)
        self._gate.close()

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        def method(
            answer: Callable[[Any], Awaitable[Any]], request_type: Any
        ) -> grpc.RpcMethodHandler[Any, Any]:
            async def handle(data: bytes, context: aio.ServicerContext[Any, Any]) -> Any:
                security = self._security
                if security is not None and not security.allows(context.auth_context()):
                    denied = (
                        "a valid certificate of a server or an administrator of this set is "
                        "required"
                    )
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, denied)
                # Decoded here, because gRPC itself would log a traceback for malformed input.
                try:
                    request = request_type.FromString(data)
                except DecodeError:
                    name = request_type.DESCRIPTOR.name
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a {name}")
                return await answer(request)

            return grpc.unary_unary_rpc_method_handler(
                handle, response_serializer=lambda reply: reply.SerializeToString()
            )

        return {
            "Status": method(self._status, admin_pb2.StatusRequest),
            "TransferLeadership": method(
                self._transfer_leadership, admin_pb2.TransferLeadershipRequest
            ),
            "Events": method(self._events, admin_pb2.EventsRequest),
            "HintStop": method(self._hint_stop, admin_pb2.HintStopRequest),
            "SlowestRequests": method(self._slowest_requests, admin_pb2.SlowestRequestsRequest),
            "StartTrace": method(self._start_trace, admin_pb2.StartTraceRequest),
            "ReadTrace": method(self._read_trace, admin_pb2.ReadTraceRequest),
            "Members": method(self._members, admin_pb2.MembersRequest),
            "ChangeMember": method(self._change_member, admin_pb2.ChangeMemberRequest),
        }

    async def _status(self, request: admin_pb2.StatusRequest) -> admin_pb2.ServerStatus:
        # All groups at once would block the loop for as long as an election takes. So would many
        # callers that each process a part in every turn, hence the lock.
        reply = admin_pb2.ServerStatus()
        groups = [GroupId(group) for group in request.group_ids]
        await self._merge(reply, map(_server_message, self._backend.status(groups)))
        return reply

    async def _events(self, request: admin_pb2.EventsRequest) -> admin_pb2.EventsReply:
        reply = admin_pb2.EventsReply()
        parts = self._backend.events(request.topic, request.group)
        await self._merge(reply, map(_events_message, parts))
        return reply

    async def _merge(self, reply: Message, parts: Iterator[Message]) -> None:
        """Add the parts to `reply`, in as many turns of the loop as that takes."""
        async with self._telling:
            began, share = self._now(), _TELL_SECONDS
            for part in parts:
                reply.MergeFrom(part)
                told = self._now()
                if told - began >= share:
                    await asyncio.sleep(0)
                    began = self._now()
                    share = max(_TELL_SECONDS, (began - told) * _TELL_SHARE)
            await asyncio.sleep(0)  # the next caller starts in a turn of its own

    async def _transfer_leadership(
        self, request: admin_pb2.TransferLeadershipRequest
    ) -> admin_pb2.TransferLeadershipReply:
        future: asyncio.Future[TransferResult] = asyncio.get_running_loop().create_future()

        def done(result: TransferResult) -> None:
            # The caller may have gone away, which cancels the future.
            if not future.done():
                future.set_result(result)

        self._backend.transfer_leadership(
            GroupId(request.group_id), ServerId(request.to_server), done
        )
        return admin_pb2.TransferLeadershipReply(**asdict(await future))

    async def _hint_stop(self, request: admin_pb2.HintStopRequest) -> admin_pb2.HintStopReply:
        self._backend.hint_stop(whole_cluster=request.whole_cluster)
        return admin_pb2.HintStopReply()

    async def _slowest_requests(
        self, request: admin_pb2.SlowestRequestsRequest
    ) -> admin_pb2.TracedRequests:
        del request
        return await self._traced_message(self._backend.slowest_requests())

    async def _start_trace(self, request: admin_pb2.StartTraceRequest) -> admin_pb2.StartTraceReply:
        wanted = TraceFilter(
            list(request.apis),
            list(request.topics),
            list(request.client_ids),
            request.slower_than_ns,
            request.duration_ns,
            request.requests_max,
        )
        names = (*wanted.apis, *wanted.topics, *wanted.client_ids)
        if len(names) > TRACE_NAMES_MAX or max(map(len, names), default=0) > TRACE_NAME_CHARS_MAX:
            return admin_pb2.StartTraceReply(trace=0)
        return admin_pb2.StartTraceReply(trace=self._backend.start_trace(wanted))

    async def _read_trace(self, request: admin_pb2.ReadTraceRequest) -> admin_pb2.TracedRequests:
        found = self._backend.read_trace(request.trace, ends=request.ends)
        return await self._traced_message(found)

    async def _traced_message(self, found: TracedRequests) -> admin_pb2.TracedRequests:
        """Return the message, made in parts: there may be thousands of requests."""
        reply = admin_pb2.TracedRequests(ended=found.ended)
        for position, request in enumerate(found.requests, start=1):
            reply.requests.append(_request_message(request))
            if position % _REQUESTS_PER_PART == 0:
                await asyncio.sleep(0)
        return reply

    async def _members(self, request: admin_pb2.MembersRequest) -> admin_pb2.MembersReply:
        del request
        members = self._backend.members()
        return admin_pb2.MembersReply(
            members=[admin_pb2.Member(**asdict(member)) for member in members]
        )

    async def _change_member(
        self, request: admin_pb2.ChangeMemberRequest
    ) -> admin_pb2.ChangeMemberReply:
        future: asyncio.Future[MemberChanged] = asyncio.get_running_loop().create_future()

        def done(result: MemberChanged) -> None:
            if not future.done():
                future.set_result(result)

        if int(request.change) not in set(map(int, MemberChange)):
            return admin_pb2.ChangeMemberReply(error=_INVALID_REQUEST, message="unknown change")
        self._backend.change_member(
            MemberChange(request.change),
            ServerId(request.server_id),
            request.host,
            request.port,
            done,
        )
        return admin_pb2.ChangeMemberReply(**asdict(await future))


# Names are the same on both sides; tests compare them. Objects that may number thousands are filled
# field by field: `asdict` is a deep copy and costs five times as much.


def _server_message(status: ServerStatus) -> admin_pb2.ServerStatus:
    return admin_pb2.ServerStatus(
        server_id=status.server_id,
        cluster_id=status.cluster_id,
        directory_id=status.directory_id,
        incarnation=status.incarnation,
        version=status.version,
        uptime_ms=status.uptime_ms,
        problems=status.problems,
        links=[admin_pb2.LinkStatus(**asdict(link)) for link in status.links],
        groups=[_group_message(group) for group in status.groups],
    )


def _request_message(request: TracedRequest) -> admin_pb2.TracedRequest:
    return admin_pb2.TracedRequest(
        number=request.number,
        server_id=request.server_id,
        api=request.api,
        version=request.version,
        correlation_id=request.correlation_id,
        client_id=request.client_id,
        principal=request.principal,
        listener=request.listener,
        peer=request.peer,
        connection_id=request.connection_id,
        began_ms=request.began_ms,
        total_ns=request.total_ns,
        busy_ns=request.busy_ns,
        request_bytes=request.request_bytes,
        response_bytes=request.response_bytes,
        partitions=request.partitions,
        partition_count=request.partition_count,
        group=request.group,
        slowest=request.slowest,
        term=request.term,
        acked_by=request.acked_by,
        stages=[
            admin_pb2.Stage(name=stage.name, start_ns=stage.start_ns, duration_ns=stage.duration_ns)
            for stage in request.stages
        ],
    )


def _group_message(group: GroupStatus) -> admin_pb2.GroupStatus:
    return admin_pb2.GroupStatus(
        group_id=group.group_id,
        name=group.name,
        replica_id=group.replica_id,
        role=group.role.name,
        term=group.term,
        leader=group.leader,
        first_index=group.first_index,
        last_index=group.last_index,
        commit=group.commit,
        applied=group.applied,
        log_start_offset=group.log_start_offset,
        high_watermark=group.high_watermark,
        end_offset=group.end_offset,
        voters=group.voters,
        learners=group.learners,
        progress=[
            admin_pb2.ReplicaProgress(
                replica_id=replica.replica_id,
                state=replica.state.name,
                match=replica.match,
                next=replica.next,
                recent_active=replica.recent_active,
                is_paused=replica.is_paused,
            )
            for replica in group.progress
        ],
        in_sync=group.in_sync,
        in_sync_min=group.in_sync_min,
    )


def _events_message(part: ServerEvents) -> admin_pb2.EventsReply:
    return admin_pb2.EventsReply(
        server_id=part.server_id,
        now_ms=part.now_ms,
        started_ms=part.started_ms,
        events=[
            admin_pb2.Event(
                event=one.event,
                level=one.level,
                first_ms=one.first_ms,
                last_ms=one.last_ms,
                count=one.count,
                fields=one.fields,
            )
            for one in part.events
        ],
        dropped=[admin_pb2.Dropped(**asdict(one)) for one in part.dropped],
        groups=[admin_pb2.ConsumerGroup(**asdict(one)) for one in part.groups],
    )
