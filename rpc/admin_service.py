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
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from ids import GroupId, ServerId
from rpc.admin import AdminBackend, GroupStatus, ServerStatus, TransferResult
from rpc.admin_gate import CONNECTIONS_MAX, AdminGate
from rpc.admin_security import AdminSecurity
from rpc.proto import admin_pb2
from rpc.streams import Address

SERVICE = "vdl.admin.v1.Admin"

_MESSAGE_BYTES_MAX = 64 << 20
_CALLS_MAX = 64
HANDSHAKE_SECONDS = 5.0
"""Time until a connection must send something, and again until its handshakes, of TLS and HTTP/2,
must be complete."""
_IDLE_SECONDS = 60
"""Time without a call."""
_AGE_SECONDS, _AGE_GRACE_SECONDS = 3_600, 60
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
            "HintStop": method(self._hint_stop, admin_pb2.HintStopRequest),
        }

    async def _status(self, request: admin_pb2.StatusRequest) -> admin_pb2.ServerStatus:
        # All groups at once would block the loop for as long as an election takes. So would many
        # callers that each process a part in every turn, hence the lock.
        reply = admin_pb2.ServerStatus()
        async with self._telling:
            began, share = self._now(), _TELL_SECONDS
            for part in self._backend.status([GroupId(group) for group in request.group_ids]):
                reply.MergeFrom(_server_message(part))
                told = self._now()
                if told - began >= share:
                    await asyncio.sleep(0)
                    began = self._now()
                    share = max(_TELL_SECONDS, (began - told) * _TELL_SHARE)
            await asyncio.sleep(0)  # the next caller starts in a turn of its own
        return reply

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
    )
