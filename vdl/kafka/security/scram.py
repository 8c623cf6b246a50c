"""Server side of SCRAM (RFC 5802, RFC 7677): messages, keys, and one login.

The server stores no password, only two keys made of it, which are not sufficient for a login. An
unknown user is answered like a known one: with a salt that is always the same for that name, of a
kind that known users' have, and a refusal at the end. This needs no state: salts of unknown users
are computed from the name and a secret, the same on every server.

* The authorization name (`a=`) must be empty or the user's own. Channel binding is not offered.
* The whole nonce is compared, ours is new for each login, and keys are compared in constant time.

Does not depend on connections, or on where credentials are stored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vdl.kafka.security.mechanism import Accepted, Challenge, Refused, Step
from vdl.kafka.security.principal import Principal
from vdl.kafka.security.protocol import SCRAM_SHA_256, SCRAM_SHA_512

ITERATIONS_MIN = 4_096
ITERATIONS_MAX = 16_384
"""As in Kafka. More iterations would only cost clients time; fewer make guessing too easy."""
HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
_NONCE_BYTES = 24
_SALT_BYTES = 16
Kind = tuple[int, int]
"""See `vdl.state.scram_credentials.Kind`."""
KIND_DEFAULT: Kind = (ITERATIONS_MIN, _SALT_BYTES)
"""Kind of the credentials that VDL itself makes."""

_VALUE = r"[^\x00,]"
"""Compiled in a hundredth of the time of ranges up to U+10FFFF."""
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{_VALUE}+))?,)"
    rf"(?P<bare>n=(?P<name>{_VALUE}+),r=(?P<nonce>{_PRINTABLE}+)(?P<extensions>(?:,[a-z]+={_VALUE}+)*))",
    re.IGNORECASE,
)
_CLIENT_FINAL = re.compile(
    rf"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE}+)(?:,[a-z]+={_VALUE}+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.IGNORECASE,
)
_EXTENSION = re.compile(rf",([a-z]+)=({_VALUE}+)", re.IGNORECASE)


class Verifier(NamedTuple):
    """Stored form of a password: enough to check a proof, not to make one."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class ScramMalformed(ValueError):
    """A malformed message. The error contains nothing of the message."""


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The first message of a login."""

    gs2: str
    bare: str
    name: str
    authzid: str
    nonce: str
    extensions: dict[str, str]


def parse_client_first(token: bytes) -> ClientFirst:
    """Parse the client's first message. Raises ScramMalformed."""
    match = _CLIENT_FIRST.fullmatch(_text(token))
    if match is None:
        raise ScramMalformed("first message")
    return ClientFirst(
        match["gs2"],
        match["bare"],
        _unescaped(match["name"]),
        _unescaped(match["authzid"] or ""),
        match["nonce"],
        {name.lower(): value for name, value in _EXTENSION.findall(match["extensions"])},
    )


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. Takes milliseconds: do not call on the loop."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations)


def verifier_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Verifier:
    """Return the stored form of a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return Verifier(iterations, salt, stored_key, hmac.digest(salted, b"Server Key", name))


def password_matches(mechanism: str, password: bytes, verifier: Verifier) -> bool:
    """Return True if a verifier was made of this password.

    Takes milliseconds: do not call on the loop.
    """
    salted = salted_password(mechanism, password, verifier.salt, verifier.iterations)
    made = verifier_of(mechanism, salted, verifier.salt, verifier.iterations)
    return hmac.compare_digest(made.stored_key, verifier.stored_key)


def decoy(
    mechanism: str, name: str, key: bytes, kinds: Sequence[Kind] = (), *, is_token: bool = False
) -> Verifier:
    """Return a decoy verifier for a user or delegation token that does not exist.

    It is the same for the same name on every server, and no password matches it. `kinds` are those
    of existing users. The kind of a name changes only if that kind is gone, or for a new kind.
    """
    place = (b"token " if is_token else b"") + mechanism.encode() + b"\0" + name.encode()

    def made(what: bytes, size: int = 64) -> bytes:
        return hmac.digest(key, what + place, "sha512")[:size]

    size = hashlib.new(HASHES[mechanism]).digest_size
    iterations, salt_bytes = max(
        kinds or (KIND_DEFAULT,), key=lambda kind: made(b"kind %d %d" % kind)
    )
    salt = made(b"salt")
    while len(salt) < salt_bytes:
        salt += made(b"more %d" % len(salt))
    salt = salt[:salt_bytes] if salt_bytes else _kafka_salt(salt)
    return Verifier(iterations, salt, made(b"stored", size), made(b"s", size))


def _kafka_salt(drawn: bytes) -> bytes:
    """Return a salt like one of Kafka's ScramFormatter: 130 bits, in base 36."""
    number = int.from_bytes(drawn, "big") >> (8 * len(drawn) - 130)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


class Found(NamedTuple):
    """Principal and verifier of a credential."""

    principal: Principal
    verifier: Verifier
    expires_ms: int = -1
    by_token: bool = False
    """See `Accepted`."""


Lookup = Callable[[str, ClientFirst], Found | None]
"""Return the principal and verifier for a mechanism and a first message; None if there are none."""
Decoy = Callable[[str, ClientFirst], Verifier]
"""Return a decoy verifier for a mechanism and a first message."""


class ScramLogin:
    """One login."""

    def __init__(
        self,
        mechanism: str,
        lookup: Lookup,
        decoy: Decoy,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._mechanism = mechanism
        self._lookup = lookup
        self._decoy = decoy
        self._random_bytes = random_bytes
        self.user = ""
        self._first: ClientFirst | None = None
        self._found: Found | None = None
        self._verifier: Verifier | None = None
        self._nonce = ""
        self._server_first = ""

    def step(self, token: bytes, done: Callable[[Step], None]) -> None:
        """See `Mechanism.step`. No step takes long."""
        try:
            done(self._begin(token) if self._first is None else self._finish(self._first, token))
        except ScramMalformed as error:
            done(Refused(f"malformed {error}"))

    def _begin(self, token: bytes) -> Step:
        first = parse_client_first(token)
        self.user = first.name
        if first.authzid not in ("", first.name):
            return Refused("acting for another user is not supported")
        found = self._lookup(self._mechanism, first)
        self._found = found
        # Computed for known users, too, so that both cases take as long.
        stranger = self._decoy(self._mechanism, first)
        self._verifier = stranger if found is None else found.verifier
        self._first = first
        ours = base64.b64encode(self._random_bytes(_NONCE_BYTES)).decode()
        self._nonce = first.nonce + ours.rstrip("=")
        salt = base64.b64encode(self._verifier.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        return Challenge(self._server_first.encode())

    def _finish(self, first: ClientFirst, token: bytes) -> Step:
        match = _CLIENT_FINAL.fullmatch(_text(token))
        if match is None:
            raise ScramMalformed("final message")
        verifier = self._verifier
        assert verifier is not None
        name = HASHES[self._mechanism]
        exchanged = f"{first.bare},{self._server_first},{match['bare']}".encode()
        signature = hmac.digest(verifier.stored_key, exchanged, name)
        proof = _decoded(match["proof"])
        if len(proof) != len(signature):
            raise ScramMalformed("proof")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(name, client_key).digest()
        is_same = hmac.compare_digest(stored_key, verifier.stored_key)
        # Compared after the proof, so that all refusals take as long.
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            return Refused("wrong nonce")
        if _decoded(match["binding"]) != first.gs2.encode():
            return Refused("wrong channel binding")
        found = self._found
        if not is_same or found is None:
            return Refused("wrong user or password", is_credential=True)
        answer = base64.b64encode(hmac.digest(verifier.server_key, exchanged, name))
        return Accepted(
            found.principal,
            b"v=" + answer,
            found.expires_ms,
            by_token=found.by_token,
            holds=lambda: self._is_known(first),
        )

    def _is_known(self, first: ClientFirst) -> bool:
        return self._lookup(self._mechanism, first) is not None


def _text(token: bytes) -> str:
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        raise ScramMalformed("text") from None


def _unescaped(name: str) -> str:
    """Return a name with "=3D" and "=2C" decoded to "=" and "," (RFC 5802 §5.1)."""
    if "=" not in name:
        return name
    plain = name.replace("=2C", ",").replace("=3D", "=")
    if len(plain) != len(name) - 2 * (name.count("=2C") + name.count("=3D")) or name.count(
        "="
    ) != name.count("=2C") + name.count("=3D"):
        raise ScramMalformed("name")
    return plain


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramMalformed("base64") from None
