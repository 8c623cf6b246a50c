"""SCRAM credentials of users: of each password only what checks a proof (`Verifier` in RFC 5802's
words: salt, iterations, StoredKey, ServerKey).

All of it is in every snapshot of the catalog, so it is bounded as a whole.

Must not know: SCRAM, passwords.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from vdl.errors import ErrorCode
from vdl.state.commands import AlterScramCredentials, ScramUpsert
from vdl.state.table import decode_value, digest_key, encode_value, text_bytes

ALL_BYTES_MAX = 1 << 20
"""Of all credentials, with their names."""
CREDENTIAL_BYTES = 64
"""What one takes besides its texts."""
KEY_PREFIX = b"u"
KINDS_MAX = 16
_KAFKA_SALT = re.compile(rb"[0-9a-z]{20,26}")
_KEY_DECOY = KEY_PREFIX
"""No credential's key, which is longer."""

Kind = tuple[int, int]
"""What a client sees of a credential before it has shown that it knows the password: iterations,
and the length of the salt in bytes; 0: a salt as Kafka's own tools make it, a number in base 36."""

Problem = tuple[ErrorCode, str]
"""An error, and its text for the client."""


class ScramCredentials:
    """See the module."""

    def __init__(self) -> None:
        self.revision = 0
        """How often something changed in this object's life: not part of the state."""
        self.decoy_key = b""
        """A secret by which users that do not exist are answered; empty: nobody ever had a
        credential."""
        self._credentials: dict[tuple[str, str], ScramUpsert] = {}
        self._by_key: dict[bytes, tuple[str, str]] = {}
        """Stored key → (user, mechanism). Derived."""
        self._users: dict[str, dict[str, ScramUpsert]] = {}
        """User → mechanism → credential. Derived."""
        self._kinds: dict[str, Counter[Kind]] = {}
        """Mechanism → how many credentials there are of each kind. Derived."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._credentials) + bool(self.decoy_key)

    def of(self, user: str) -> Mapping[str, ScramUpsert]:
        """A user's credentials, by mechanism."""
        return self._users.get(user, {})

    def users(self) -> list[str]:
        """Everybody who has one, by name."""
        return sorted(self._users)

    def kinds(self, mechanism: str) -> list[Kind]:
        """What a client may be asked for that names a user: the kinds of credentials there are, at
        most `KINDS_MAX`, in an order that does not depend on how they came."""
        return sorted(self._kinds.get(mechanism, ()))[:KINDS_MAX]

    def alter(self, command: AlterScramCredentials) -> tuple[list[Problem], set[bytes]]:
        """Apply it: an error and its text for each deletion and then each upsert, and the keys of
        what changed."""
        if command.only_first and self.decoy_key:
            return [(ErrorCode.NONE, "")] * (len(command.deletions) + len(command.upserts)), set()
        changed: set[bytes] = set()
        answers: list[Problem] = []
        if not self.decoy_key and command.upserts:
            self.decoy_key = command.decoy_key
            changed.add(_KEY_DECOY)
        for user, mechanism in command.deletions:
            if (user, mechanism) not in self._credentials:
                answers.append(
                    (
                        ErrorCode.RESOURCE_NOT_FOUND,
                        "Attempt to delete a user credential that does not exist",
                    )
                )
                continue
            changed.add(self._put((user, mechanism), None))
            answers.append((ErrorCode.NONE, ""))
        for upsert in command.upserts:
            place = (upsert.user, upsert.mechanism)
            more = _bytes_of(upsert) - _bytes_of(self._credentials.get(place))
            if more > 0 and self._bytes + more > ALL_BYTES_MAX:
                answers.append((ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many credentials"))
                continue
            changed.add(self._put(place, upsert))
            answers.append((ErrorCode.NONE, ""))
        return answers, changed

    def _put(self, place: tuple[str, str], credential: ScramUpsert | None) -> bytes:
        self.revision += 1
        user, mechanism = place
        key = digest_key(KEY_PREFIX, user, mechanism)
        old = self._credentials.pop(place, None)
        self._bytes += _bytes_of(credential) - _bytes_of(old)
        kinds = self._kinds.setdefault(mechanism, Counter())
        if old is not None:
            kinds[kind_of(old)] -= 1
            kinds += Counter()  # without those of which there is none
        if credential is not None:
            kinds[kind_of(credential)] += 1
        if credential is not None:
            self._credentials[place] = credential
            self._by_key[key] = place
            self._users.setdefault(user, {})[mechanism] = credential
        else:
            self._by_key.pop(key, None)
            left = self._users.get(user, {})
            left.pop(mechanism, None)
            if not left:
                self._users.pop(user, None)
        return key

    # --- storing ---------------------------------------------------------------------------
    def keys(self) -> Iterator[bytes]:
        """The keys of all that is stored."""
        if self.decoy_key:
            yield _KEY_DECOY
        yield from self._by_key

    def stored(self, key: bytes) -> bytes | None:
        """The value under a key; None when there is none."""
        if key == _KEY_DECOY:
            return encode_value(self.decoy_key) if self.decoy_key else None
        place = self._by_key.get(key)
        return None if place is None else encode_value(self._credentials[place])

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace everything. Raises msgspec.DecodeError for what was never stored."""
        self.decoy_key = b""
        self._credentials = {}
        self._by_key = {}
        self._users = {}
        self._kinds = {}
        self._bytes = 0
        self.revision += 1
        for key, value in items:
            if key == _KEY_DECOY:
                self.decoy_key = decode_value(value, bytes)
            else:
                credential = decode_value(value, ScramUpsert)
                self._put((credential.user, credential.mechanism), credential)


def kind_of(credential: ScramUpsert) -> Kind:
    """See `Kind`."""
    salt = credential.salt
    return credential.iterations, 0 if _KAFKA_SALT.fullmatch(salt) else len(salt)


def _bytes_of(credential: ScramUpsert | None) -> int:
    if credential is None:
        return 0
    keys = len(credential.salt) + len(credential.stored_key) + len(credential.server_key)
    return CREDENTIAL_BYTES + text_bytes(credential.user) + keys


class UsersAltered(msgspec.Struct):
    """Answer to AlterScramCredentials: an error and its text for each deletion, then for each
    upsert."""

    errors: list[Problem]
    events: list[object] = []
