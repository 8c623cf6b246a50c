"""Client side of SCRAM (RFC 5802), for the commands' own connections.

The server is not trusted, either: its nonce must begin with ours, its number of iterations is
bounded, and at the end it must prove that it knows the password's keys.

Does not depend on connections.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from vdl.kafka.security.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, salted_password

_SERVER_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})(?:,.*)?")
_GS2 = "n,,"


class ScramRefused(Exception):
    """The server does not know the password, or requests something that must be refused."""


class ScramConversation:
    """One login, message by message: `first`, `final`, then `check`."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._salted = b""
        self._exchanged = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return (_GS2 + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's second message. Takes milliseconds. Raises ScramRefused."""
        text = server_first.decode("utf-8", "replace")
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match[1].startswith(self._nonce) or match[1] == self._nonce:
            raise ScramRefused("the server sent an invalid SCRAM message")
        iterations = int(match[3])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ScramRefused(
                f"the server requires {iterations} iterations, which is out of range"
            )
        self._salted = salted_password(
            self._mechanism, self._password, _decoded(match[2]), iterations
        )
        binding = base64.b64encode(_GS2.encode()).decode()
        bare = f"c={binding},r={match[1]}"
        self._exchanged = f"{self._bare},{text},{bare}".encode()
        client_key = hmac.digest(self._salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored_key, self._exchanged, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Check that the server has proven its knowledge of the password. Raises ScramRefused."""
        server_key = hmac.digest(self._salted, b"Server Key", self._hash)
        expected = hmac.digest(server_key, self._exchanged, self._hash)
        text = server_final.decode("utf-8", "replace")
        proof = _decoded(text.removeprefix("v=").partition(",")[0])
        if not text.startswith("v=") or not hmac.compare_digest(proof, expected):
            raise ScramRefused("the server has not proved that it knows the password")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramRefused("the server sent invalid base64") from None
