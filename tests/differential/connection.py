"""One connection to one server: sends requests in a given version, and decodes the answers."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from struct import Struct
from typing import Any

from tests.wire import codec
from vdl.kafka.wire import header, registry
from vdl.kafka.wire.sasl_authenticate import SaslAuthenticateRequest
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest

CLIENT_ID = "differential"
TIMEOUT_SECONDS = 10.0
_LENGTH = Struct(">i")


def key_of(message: Any) -> int:
    """Return the API key of a request."""
    return registry.KEYS[type(message).__name__.removesuffix("Request")]


class Closed(Exception):
    """Raised when the server closed the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials of a user for SASL PLAIN; `tls`: over an encrypted connection."""

    user: str
    password: str
    tls: ssl.SSLContext | None = None


class Connection:
    """A connection for sequential requests; unusable after `Closed`."""

    def __init__(self, address: tuple[str, int], login: Login | None = None) -> None:
        self._socket = socket.create_connection(address, timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        if login is not None:
            if login.tls is not None:
                self._socket = login.tls.wrap_socket(self._socket, server_hostname=address[0])
            self.ask(SaslHandshakeRequest("PLAIN"), 1)
            token = f"\0{login.user}\0{login.password}".encode()
            answer = self.ask(SaslAuthenticateRequest(token), 2)
            assert answer.error_code == 0, answer

    def close(self) -> None:
        self._socket.close()

    def ask(self, message: Any, version: int) -> Any:
        """Send a request; return the decoded response.

        Raises Closed, TimeoutError, and EncodeError when the version lacks a field of the message.
        """
        module = codec(key_of(message))
        body = b"".join(module.encode_request(message, version))
        answer = self.ask_raw(module.API_KEY, version, body)
        return module.decode_response(answer, version)

    def answer(self, message: Any, version: int) -> Any:
        """Return the decoded response to an earlier request. Raises Closed, TimeoutError."""
        module = codec(key_of(message))
        return module.decode_response(self._answer(module.API_KEY, version), version)

    def send(self, message: Any, version: int) -> None:
        """Send a request that gets no response, or whose response is read later."""
        module = codec(key_of(message))
        body = b"".join(module.encode_request(message, version))
        self._send(module.API_KEY, version, body)

    def ask_raw(self, key: int, version: int, body: bytes) -> memoryview:
        """Send a body of bytes; return the body of the response."""
        self._send(key, version, body)
        return self._answer(key, version)

    def ask_frame(self, frame: bytes) -> bytes:
        """Send a complete frame; return the complete response with its header.

        Raises Closed, TimeoutError.
        """
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise Closed from error
        return bytes(self._receive())

    def _answer(self, key: int, version: int) -> memoryview:
        answer = self._receive()
        is_flexible = header.response_header_is_flexible(key, version, registry.FLEXIBLE_FROM)
        answered, start = header.decode_response_header(answer, is_flexible=is_flexible)
        assert answered == self._correlation_id, (answered, self._correlation_id)
        return answer[start:]

    def _send(self, key: int, version: int, body: bytes) -> None:
        self._correlation_id += 1
        fields = header.RequestHeader(key, version, self._correlation_id, CLIENT_ID)
        is_flexible = version >= registry.FLEXIBLE_FROM.get(key, 32767)
        frame = header.encode_request_header(fields, is_flexible=is_flexible) + body
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise Closed from error

    def _receive(self) -> memoryview:
        return memoryview(self._exactly(_LENGTH.unpack(self._exactly(_LENGTH.size))[0]))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not piece:
                raise Closed
            data += piece
        return bytes(data)
