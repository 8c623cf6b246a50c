"""A blocking Kafka client: one request, one answer, one connection.

It speaks whatever version both sides know. It has no batching and no retries: the command line
needs none, and whoever reads data with it falls back on something that has them.
"""

from __future__ import annotations

import socket
from struct import Struct
from types import TracebackType
from typing import Any, Self

from vdl.kafka.wire import header, registry
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.runtime import WireError

API_VERSIONS_VERSION = 3
CLIENT_ID = "vdl-cli"
RESPONSE_BYTES_MAX = 100 << 20

_LENGTH = Struct(">i")


class Unreachable(Exception):
    """No answer, or one that cannot be read: from whom, and why."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.reason = reason


class KafkaClient:
    """A connection to one server; use it in a `with`. Every call may raise Unreachable."""

    def __init__(
        self, host: str, port: int, *, timeout_seconds: float = 5.0, client_id: str = CLIENT_ID
    ) -> None:
        self._host, self._port = host, port
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._client_id = client_id
        self._timeout_seconds = timeout_seconds
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        place = self._host, self._port
        try:
            self._socket = socket.create_connection(place, timeout=self._timeout_seconds)
        except OSError as error:
            raise Unreachable(self._address, error.strerror or str(error)) from error
        except UnicodeError as error:  # what is no host name, Python cannot even ask for
            raise Unreachable(self._address, "is no host name") from error
        try:
            self._greet()
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def _greet(self) -> None:
        request = ApiVersionsRequest(client_software_name="vdl", client_software_version="0")
        self._versions = {header.API_VERSIONS_KEY: (0, API_VERSIONS_VERSION)}
        answer = self.request(header.API_VERSIONS_KEY, request)
        self._versions = {
            row.api_key: (row.min_version, row.max_version) for row in answer.api_keys
        }

    def request(self, api_key: int, message: Any) -> Any:
        """The response to a request, in the newest version both sides know."""
        module = registry.module(api_key)
        low, high = self._versions.get(api_key, (0, -1))
        version = min(high, module.MAX_VERSION)
        if version < max(low, module.MIN_VERSION):
            raise Unreachable(self._address, f"does not offer {module.NAME}")
        self._correlation_id += 1
        head = header.encode_request_header(
            header.RequestHeader(api_key, version, self._correlation_id, self._client_id, 0),
            is_flexible=version >= module.FLEXIBLE_FROM,
        )
        frame = b"".join([head, *module.encode_request(message, version)])
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            answer = self._receive()
        except OSError as error:
            raise Unreachable(self._address, error.strerror or str(error)) from error
        is_flexible = header.response_header_is_flexible(api_key, version, registry.FLEXIBLE_FROM)
        # Our own requests draw no tagged fields into the answer's header: one zero byte at most.
        body = answer[4 + is_flexible :]
        try:
            return module.decode_response(body, version)
        except WireError as error:
            raise Unreachable(self._address, f"{module.NAME}: {error}") from error

    def _receive(self) -> memoryview:
        length = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))[0]
        if not 4 <= length <= RESPONSE_BYTES_MAX:
            raise Unreachable(self._address, f"answered with a frame of {length} bytes")
        return memoryview(self._receive_exactly(length))

    def _receive_exactly(self, count: int) -> bytearray:
        received = bytearray(count)
        rest = memoryview(received)
        while rest:
            got = self._socket.recv_into(rest)
            if not got:
                raise Unreachable(self._address, "closed the connection")
            rest = rest[got:]
        return received
