"""Delegation tokens: credentials with a limited lifetime that owners give to others (KIP-48).

A token can be renewed up to its maximum lifetime. Times are those of the commands, so all replicas
agree on when a token expires; an expired token is removed when the next command about tokens is
applied. No secret is stored: a token's password is derived from its id and a key that only servers
have. The state holds only the SCRAM verifiers of that password.

All tokens are in every snapshot of the catalog, so their total size is bounded.

Does not depend on SCRAM, on the servers' key, or on permissions beyond owners and renewers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from vdl.errors import ErrorCode
from vdl.state.commands import AlterDelegationToken, CreateDelegationToken, ScramUpsert
from vdl.state.table import decode_value, digest_key, encode_value, text_bytes

ALL_BYTES_MAX = 1 << 20
"""Bound on the size of all tokens: some 2,000."""
TOKEN_BYTES = 400
"""Estimated size of a token without its names."""
KEY_PREFIX = b"d"
TOKENS_ARE_FULL = ErrorCode.THROTTLING_QUOTA_EXCEEDED
"""Error for a token that there is no room for; clients retry later. Kafka has no such bound."""
TIME_MS_MAX = (1 << 62) - 1


class DelegationToken(msgspec.Struct, frozen=True, array_like=True):
    """One token. Principals are texts such as "User:alice"."""

    token_id: str
    owner: str
    """Principal that a login with the token gets."""
    requester: str
    """Principal that requested the token."""
    renewers: list[str]
    issued_ms: int
    expires_ms: int
    max_ms: int
    """Limit of all renewals."""
    verifiers: list[ScramUpsert]

    def belongs_to(self, principal: str) -> bool:
        """Return True for the owner, the requester and the renewers."""
        return principal in (self.owner, self.requester, *self.renewers)

    def lets_in(self, principals: Container[str]) -> bool:
        """Return True if one of the principals may log in with the token.

        These are its owner and its requester, who received the secret.
        """
        return self.owner in principals or self.requester in principals

    @property
    def bytes(self) -> int:
        """Size that counts towards `ALL_BYTES_MAX`."""
        return token_bytes(self.owner, self.requester, self.renewers)

    def verifier(self, mechanism: str) -> ScramUpsert | None:
        """Return the verifier of the token's password for a mechanism; None if there is none."""
        return next((one for one in self.verifiers if one.mechanism == mechanism), None)


@dataclass(slots=True)
class TokenAnswer:
    """Answer to CreateDelegationToken and AlterDelegationToken.

    The times are valid if `error` is NONE.
    """

    error: ErrorCode
    issued_ms: int = 0
    expires_ms: int = 0
    max_ms: int = 0
    events: list[object] = field(default_factory=list)


class DelegationTokens:
    """All delegation tokens of the cluster; see the module."""

    def __init__(self) -> None:
        self.revision = 0
        """Number of changes seen by this object. Not part of the state."""
        self._tokens: dict[str, DelegationToken] = {}
        self._by_key: dict[bytes, str] = {}
        """Stored key → token id. Derived."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Mapping[str, DelegationToken]:
        """Tokens by id; some may have expired."""
        return MappingProxyType(self._tokens)

    def valid(self, token_id: str, now_ms: int) -> DelegationToken | None:
        """Return the token if it exists and has not expired."""
        token = self._tokens.get(token_id)
        return token if token is not None and now_ms < token.expires_ms else None

    def create(self, command: CreateDelegationToken, now_ms: int) -> tuple[TokenAnswer, set[bytes]]:
        """Apply the command. Return the answer and the keys of what changed."""
        changed = self._remove_ended(now_ms)
        known = self._tokens.get(command.token_id)
        if known is None:
            max_ms = min(TIME_MS_MAX, now_ms + command.lifetime_ms)
            known = DelegationToken(
                command.token_id,
                command.owner,
                command.requester,
                command.renewers,
                now_ms,
                min(max_ms, now_ms + command.period_ms),
                max_ms,
                command.verifiers,
            )
            if self._bytes + known.bytes > ALL_BYTES_MAX:
                return TokenAnswer(TOKENS_ARE_FULL), changed
            changed.add(self._put(known))
        return _answer(known), changed

    def alter(self, command: AlterDelegationToken, now_ms: int) -> tuple[TokenAnswer, set[bytes]]:
        """Apply the command. Return the answer and the keys of what changed."""
        token = self._tokens.get(command.token_id)
        if token is None:
            return TokenAnswer(ErrorCode.DELEGATION_TOKEN_NOT_FOUND), set()
        if not token.belongs_to(command.who):
            return TokenAnswer(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH), set()
        if command.period_ms < 0:
            answer = _answer(token)
            answer.expires_ms = now_ms
            return answer, {self._take(token)}
        if now_ms >= token.expires_ms:
            return TokenAnswer(ErrorCode.DELEGATION_TOKEN_EXPIRED), set()
        expires_ms = min(token.max_ms, now_ms + command.period_ms)
        token = msgspec.structs.replace(token, expires_ms=expires_ms)
        changed = {self._put(token)}
        return _answer(token), changed | self._remove_ended(now_ms)

    def _remove_ended(self, now_ms: int) -> set[bytes]:
        ended = [one for one in self._tokens.values() if one.expires_ms <= now_ms]
        return {self._take(token) for token in ended}

    def _put(self, token: DelegationToken) -> bytes:
        self.revision += 1
        key = digest_key(KEY_PREFIX, token.token_id)
        before = self._tokens.get(token.token_id)
        self._bytes += token.bytes - (0 if before is None else before.bytes)
        self._tokens[token.token_id] = token
        self._by_key[key] = token.token_id
        return key

    def _take(self, token: DelegationToken) -> bytes:
        self.revision += 1
        key = digest_key(KEY_PREFIX, token.token_id)
        self._bytes -= self._tokens.pop(token.token_id).bytes
        del self._by_key[key]
        return key

    # --- storing ---------------------------------------------------------------------------
    def keys(self) -> Iterator[bytes]:
        """Return the keys of all stored items."""
        return iter(self._by_key)

    def stored(self, key: bytes) -> bytes | None:
        """Return the value under a key; None if there is none."""
        token_id = self._by_key.get(key)
        return None if token_id is None else encode_value(self._tokens[token_id])

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
        self._tokens = {}
        self._by_key = {}
        self._bytes = 0
        self.revision += 1
        for value in values:
            self._put(decode_value(value, DelegationToken))


def _answer(token: DelegationToken) -> TokenAnswer:
    return TokenAnswer(ErrorCode.NONE, token.issued_ms, token.expires_ms, token.max_ms)


def token_bytes(owner: str, requester: str, renewers: Iterable[str]) -> int:
    """Return the size of a token of these principals."""
    return TOKEN_BYTES + sum(map(text_bytes, (owner, requester, *renewers)))
