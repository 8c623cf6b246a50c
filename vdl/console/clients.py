"""Connections of the console to servers: VDL's own client, with a deadline, and an end by others.

Does not depend on who asks.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from vdl.errors import ErrorCode
from vdl.kafka.client import SASL_AUTHENTICATE, KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings
from vdl.kafka.wire.sasl_authenticate import SaslAuthenticateRequest

CONNECT_SECONDS: Final = 3.0
CLIENT_ID: Final = "vdl-console"


class LoginRefused(Exception):
    """A server refuses user or password."""


@dataclass(frozen=True, slots=True)
class ListenerSettings(ClientSettings):
    """Settings of a connection to a listener of the set. `repr` shows no password.

    No certificate is shown: the server's own would lend users of the console its permissions."""

    trusted: str = ""
    """PEM file of the only certificate that is accepted; empty: those that `ca` has signed."""

    __repr__ = ClientSettings.__repr__

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context of a connection; None if not encrypted. Raises OSError."""
        if not self.protocol.is_encrypted:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.checks_host
        if self.trusted:
            context.load_verify_locations(self.trusted)
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        elif self.ca is not None:
            context.load_verify_locations(self.ca)
        else:
            context.load_default_certs()
        return context


class ConsoleClient(KafkaClient):
    """A client that another thread may interrupt. Every call may raise Unreachable."""

    def __init__(
        self,
        host: str,
        port: int,
        settings: ListenerSettings,
        seconds: float,
        on_login: Callable[[], None],
    ) -> None:
        """Connect when entered. `seconds`: longest time without progress. `on_login`: called before
        a message of a login is sent."""
        self._on_login = on_login
        super().__init__(
            host, port, timeout_seconds=seconds, client_id=CLIENT_ID, settings=settings
        )

    def _prove(self, token: bytes) -> bytes:
        """Send one message of a login and return the server's. Raises LoginRefused."""
        self._on_login()
        answer = self.request(SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
        if answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise LoginRefused
        if answer.error_code:
            raise Unreachable(self._address, answer.error_message or "rejected the login")
        found: bytes = answer.auth_bytes
        return found

    def interrupt(self) -> None:
        """End the connection, from any thread: a call that waits raises Unreachable."""
        found: Any = getattr(self, "_socket", None)
        if found is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(found, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
