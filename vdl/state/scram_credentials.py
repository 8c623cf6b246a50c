"""SCRAM credentials of users.

For each password only its verifier is stored: salt, iterations, StoredKey, ServerKey (RFC 5802).
All credentials are in every snapshot of the catalog, so their total size is bounded.

Does not depend on SCRAM exchanges or passwords.
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
"""Bound on the size of all credentials, with their names."""
CREDENTIAL_BYTES = 64
"""Estimated size of a credential without its texts."""
KEY_PREFIX = b"u"
KINDS_MAX = 16
_KAFKA_SALT = re.compile(rb"[0-9a-z]{20,26}")
_KEY_DECOY = KEY_PREFIX
"""Differs from the keys of credentials, which are longer."""

Kind = tuple[int, int]
"""Properties of a credential that a client sees before it has proved knowledge of the password.

These are the iterations and the length of the salt in bytes; 0 for a salt as made by Kafka's own
tools, a number in base 36.
"""

Problem = tuple[ErrorCode, str]
"""An error, and its text for the client."""


class ScramCredentials:
    """All SCRAM credentials of the cluster; see the module."""

    def __init__(self) -> None:
        self.revision = 0
        """Number of changes seen by this object. Not part of the state."""
        self.decoy_key = b""
        """Secret for answers to unknown users; empty if there never was a credential."""
        self._credentials: dict[tuple[str, str], ScramUpsert] = {}
        self._by_key: dict[bytes, tuple[str, str]] = {}
        """Stored key → (user, mechanism). Derived."""
        self._users: dict[str, dict[str, ScramUpsert]] = {}
        """User → mechanism → credential. Derived."""
        self._kinds: dict[str, Counter[Kind]] = {}
        """Mechanism → number of credentials of each kind. Derived."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._credentials) + bool(self.decoy_key)

    def of(self, user: str) -> Mapping[str, ScramUpsert]:
        """Return a user's credentials, by mechanism."""
        return self._users.get(user, {})

    def users(self) -> list[str]:
        """Return the users that have credentials, sorted."""
        return sorted(self._users)

    def kinds(self, mechanism: str) -> list[Kind]:
        """Return up to `KINDS_MAX` kinds of existing credentials, for answers to unknown users.

        The order does not depend on the order in which they were added.
        """
        return sorted(self._kinds.get(mechanism, ()))[:KINDS_MAX]

    def alter(self, command: AlterScramCredentials) -> tuple[list[Problem], set[bytes]]:
        """Apply the command.

        Return an error and its text for each deletion and then each upsert, and the keys of what
        changed.
        """
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
            kinds += Counter()  # drop counts of 0
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
        """Yield the keys of all stored items."""
        if self.decoy_key:
            yield _KEY_DECOY
        yield from self._by_key

    def stored(self, key: bytes) -> bytes | None:
        """Return the value under a key; None if there is none."""
        if key == _KEY_DECOY:
            return encode_value(self.decoy_key) if self.decoy_key else None
        place = self._by_key.get(key)
        return None if place is None else encode_value(self._credentials[place])

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
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
    """Return the kind of a credential. See `Kind`."""
    salt = credential.salt
    return credential.iterations, 0 if _KAFKA_SALT.fullmatch(salt) else len(salt)


def _bytes_of(credential: ScramUpsert | None) -> int:
    if credential is None:
        return 0
    keys = len(credential.salt) + len(credential.stored_key) + len(credential.server_key)
    return CREDENTIAL_BYTES + text_bytes(credential.user) + keys


class UsersAltered(msgspec.Struct):
    """Answer to AlterScramCredentials.

    It carries an error and its text for each deletion, then for each upsert.
    """

    errors: list[Problem]
    events: list[object] = []
