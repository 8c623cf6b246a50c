"""A blocking Kafka client: one connection, responses in the order of the requests.

It uses the newest version that both sides know. It has no batching and no retries: the command line
needs none, and callers that read data with it fall back to a client that has them.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable, Sequence
from struct import Struct
from types import ModuleType, TracebackType
from typing import Any, Self

from vdl.kafka.security.client_settings import ClientSettings
from vdl.kafka.security.protocol import PLAIN
from vdl.kafka.wire import header, registry
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.runtime import WireError
from vdl.kafka.wire.sasl_authenticate import SaslAuthenticateRequest
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest

API_VERSIONS_VERSION = 3
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
CLIENT_ID = "vdl-cli"
RESPONSE_BYTES_MAX = 100 << 20
CONTACT_SECONDS = 5.0
"""Longest wait for a server's first answers: a connection, the handshakes and the login."""

_LENGTH = Struct(">i")
_CLOSED = "closed the connection"
_OTHERS = {
    0x1503: "speaks TLS; set security.protocol to SSL or SASL_SSL",  # an alert
    0x4854: "speaks HTTP; use a port for Kafka clients",
}
"""First two bytes that other protocols send in place of a length."""


class Unreachable(Exception):
    """No response, or one that cannot be read: the address and the reason."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.reason = reason


class KafkaClient:
    """A connection to one server; use it in a `with`. Every call may raise Unreachable."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_seconds: float = 5.0,
        client_id: str = CLIENT_ID,
        settings: ClientSettings | None = None,
        module: Callable[[int], ModuleType] = registry.module,
    ) -> None:
        """Prepare a client; it connects when it is entered.

        `timeout_seconds`: longest wait for an answer; for the first ones at most CONTACT_SECONDS.
        `settings`: how the connection is secured; None: not at all. `module`: finds the codec of
        an API.
        """
        self._host, self._port = host, port
        self._settings = settings or ClientSettings()
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._client_id = client_id
        self._module = module
        self._timeout_seconds = timeout_seconds
        self._wait = min(timeout_seconds, CONTACT_SECONDS)
        """Longest wait for the next answer."""
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._problem = ""
        """Reason why responses can no longer be matched to requests; empty while they can."""

    def __enter__(self) -> Self:
        place = self._host, self._port
        try:
            self._socket = socket.create_connection(place, timeout=self._wait)
        except OSError as error:
            raise Unreachable(self._address, self._words(error)) from error
        except UnicodeError as error:  # Python cannot look up an invalid host name
            raise Unreachable(self._address, "is not a host name") from error
        try:
            self._secure()
            self._greet()
            if self._settings.protocol.has_login:
                self._log_in()
        except BaseException:
            self._socket.close()
            raise
        self.limit(self._timeout_seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def limit(self, seconds: float) -> None:
        """Set the longest time without progress."""
        self._wait = seconds
        self._socket.settimeout(seconds)

    def _secure(self) -> None:
        """Start TLS on the connection, if the settings require it."""
        context = self._settings.ssl_context()
        if context is None:
            return
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(self._address, f"TLS: {error.verify_message}") from None
        except (OSError, ValueError) as error:
            words = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
            raise self._misunderstood(f"TLS: {words}") from None

    def _log_in(self) -> None:
        """Log in: SaslHandshake, then the mechanism's messages."""
        # Imported here, because most commands do not log in and should start fast.
        from vdl.kafka.security.scram_client import ScramConversation, ScramRefused

        settings = self._settings
        answer = self.request(SASL_HANDSHAKE, SaslHandshakeRequest(settings.mechanism))
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise Unreachable(
                self._address, f"does not offer {settings.mechanism} (it offers {offered})"
            )
        if settings.mechanism == PLAIN:
            self._prove(f"\0{settings.user}\0{settings.password}".encode())
            return
        scram = ScramConversation(
            settings.mechanism, settings.user, settings.password, secrets.token_urlsafe(18)
        )
        try:
            scram.check(self._prove(scram.final(self._prove(scram.first()))))
        except ScramRefused as error:
            raise Unreachable(self._address, str(error)) from None

    def _prove(self, token: bytes) -> bytes:
        """Send one message of a login and return the server's."""
        answer = self.request(SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
        if answer.error_code:
            raise Unreachable(self._address, answer.error_message or "rejected the login")
        found: bytes = answer.auth_bytes
        return found

    def _greet(self) -> None:
        request = ApiVersionsRequest(client_software_name="vdl", client_software_version="0")
        self._versions = {header.API_VERSIONS_KEY: (0, API_VERSIONS_VERSION)}
        try:
            answer = self.request(header.API_VERSIONS_KEY, request)
        except Unreachable as error:
            if error.reason == _CLOSED:  # as a TLS listener does if it receives no handshake
                raise self._misunderstood(_CLOSED) from None
            raise
        self._versions = {
            row.api_key: (row.min_version, row.max_version) for row in answer.api_keys
        }

    def request(self, api_key: int, message: Any) -> Any:
        """Return the response to a request, in the newest version both sides know."""
        return self.requests([(api_key, message)])[0]

    def requests(self, asked: Sequence[tuple[int, Any]]) -> list[Any]:
        """Return the responses to requests that are all sent at once: (API key, message) each. A
        busy server may process them together; one after the other would wait for it each time."""
        if self._problem:
            raise Unreachable(self._address, self._problem)
        frames, sent = [], []
        for api_key, message in asked:
            module = self._module(api_key)
            low, high = self._versions.get(api_key, (0, -1))
            known = (v for v in module.CLIENT_VERSIONS if low <= v <= high)
            version = max(known, default=-1)
            if version < 0:
                raise Unreachable(self._address, f"does not offer {module.NAME}")
            self._correlation_id += 1
            head = header.encode_request_header(
                header.RequestHeader(api_key, version, self._correlation_id, self._client_id),
                is_flexible=version >= module.FLEXIBLE_FROM,
            )
            frame = b"".join([head, *module.encode_request(message, version)])
            frames += [_LENGTH.pack(len(frame)), frame]
            sent.append((api_key, module, version))
        responses = []
        try:
            self._socket.sendall(b"".join(frames))
            for api_key, module, version in sent:
                answer = self._receive()
                is_flexible = header.response_header_is_flexible(
                    api_key, version, registry.FLEXIBLE_FROM
                )
                # These requests cause no tagged fields in the response's header: at most one zero
                # byte.
                responses.append(module.decode_response(answer[4 + is_flexible :], version))
        except OSError as error:
            self._problem = self._words(error)
            raise Unreachable(self._address, self._problem) from error
        except WireError as error:
            self._problem = f"{module.NAME}: {error}"
            raise Unreachable(self._address, self._problem) from error
        except Unreachable as error:
            self._problem = error.reason
            raise
        return responses

    def _misunderstood(self, problem: str) -> Unreachable:
        """Return the error for a connection that failed at its first bytes, with a likely cause."""
        hint = (
            f"check that its listener speaks {self._settings.protocol.value}, and that the "
            "server has file descriptors left"
        )
        return Unreachable(self._address, f"{problem}; {hint}")

    def _words(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._wait:g} s"
        return error.strerror or str(error)

    def _receive(self) -> memoryview:
        length = _LENGTH.unpack(self._receive_exactly(_LENGTH.size))[0]
        if not 4 <= length <= RESPONSE_BYTES_MAX:
            other = _OTHERS.get(length >> 16, f"sent a response with the invalid length {length}")
            raise Unreachable(self._address, other)
        return memoryview(self._receive_exactly(length))

    def _receive_exactly(self, count: int) -> bytearray:
        received = bytearray(count)
        rest = memoryview(received)
        while rest:
            got = self._socket.recv_into(rest)
            if not got:
                raise Unreachable(self._address, _CLOSED)
            rest = rest[got:]
        return received
