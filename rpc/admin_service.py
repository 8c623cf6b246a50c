"""The gRPC edge of the admin plane, on the server's own loop.

Importing this costs 14 MB and 20 ms, so a server imports it only when its listeners are up. The
method table stands here instead of in generated service code, which has no types. What the backend
does is plain calls; only gRPC itself needs coroutines, one for each call, which the admin plane can
afford.

Must not know: what answers mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from rpc.admin import AdminBackend, TransferResult
from rpc.proto import admin_pb2
from rpc.streams import Address

SERVICE = "vdl.admin.v1.Admin"

_MESSAGE_BYTES_MAX = 64 << 20
_CALLS_MAX = 64

_OPTIONS = (
    # Without this a second server could take the same port, and calls would go to either.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
)


class AdminService:
    """The admin plane of one backend, from `start` to `stop`."""

    def __init__(self, backend: AdminBackend) -> None:
        self._backend = backend
        self._server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_CALLS_MAX)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._methods()),)
        )

    async def start(self, address: Address) -> int:
        """Serve on `address`, unencrypted; returns the port bound. Raises OSError if it cannot."""
        host, port = address
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = self._server.add_insecure_port(target)
        except RuntimeError as error:
            raise OSError(f"admin plane cannot listen on {target}: {error}") from error
        await self._server.start()
        return bound

    async def stop(self, grace_s: float = 0.1) -> None:
        """Answer what is under way for `grace_s`, then end."""
        await self._server.stop(grace_s)

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        def method(
            answer: Callable[[Any], Awaitable[Any]], request_type: Any
        ) -> grpc.RpcMethodHandler[Any, Any]:
            async def handle(data: bytes, context: aio.ServicerContext[Any, Any]) -> Any:
                # Decoded here, because gRPC itself would log a traceback for what a stranger sent.
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
        # Field names are the same on both sides; a test compares them.
        return admin_pb2.ServerStatus(**asdict(self._backend.status(list(request.group_ids))))

    async def _transfer_leadership(
        self, request: admin_pb2.TransferLeadershipRequest
    ) -> admin_pb2.TransferLeadershipReply:
        future: asyncio.Future[TransferResult] = asyncio.get_running_loop().create_future()

        def done(result: TransferResult) -> None:
            # The caller may have gone away, which cancels the future.
            if not future.done():
                future.set_result(result)

        self._backend.transfer_leadership(request.group_id, request.to_server, done)
        return admin_pb2.TransferLeadershipReply(**asdict(await future))

    async def _hint_stop(self, request: admin_pb2.HintStopRequest) -> admin_pb2.HintStopReply:
        self._backend.hint_stop(whole_cluster=request.whole_cluster)
        return admin_pb2.HintStopReply()
