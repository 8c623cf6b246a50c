"""Delegation tokens (KIP-48).

CreateDelegationToken (key 38) v1–3, RenewDelegationToken (39) v1–2, ExpireDelegationToken (40)
v1–2, DescribeDelegationToken (41) v1–3. v2 flexible; 38 and 41 v3: made for another principal
(KIP-373).

A token's password is an HMAC of its id, by a key in the settings of all servers. The client that
creates the token receives it, and clients that may describe the token; the catalog has only
verifiers. As in Kafka, a client that logged in with a token, or that is anonymous, cannot use these
APIs.

Does not depend on how logins use tokens.
"""

from __future__ import annotations

import base64
import hmac
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.security.principal import ANONYMOUS, USER
from vdl.kafka.security.scram import HASHES, ITERATIONS_MIN, salted_password, verifier_of
from vdl.kafka.shares import Shares
from vdl.kafka.wire.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from vdl.kafka.wire.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from vdl.kafka.wire.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from vdl.kafka.wire.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import AlterDelegationToken, CreateDelegationToken, ScramUpsert
from vdl.state.delegation_tokens import ALL_BYTES_MAX, TOKENS_ARE_FULL, token_bytes

if TYPE_CHECKING:
    from vdl.state.delegation_tokens import DelegationToken

_Response = TypeVar("_Response", RenewDelegationTokenResponse, ExpireDelegationTokenResponse)

RENEWERS_MAX = 100
NAME_CHARS_MAX = 256
_REQUESTER_FROM = 3
_ID_BYTES = 16
_SALT_BYTES = 16
_TIMEOUT_MS = 30_000
_HMACS_KEPT = 4_096
"""More than the maximum number of tokens: finding a token by its secret compares all of them."""


@lru_cache(_HMACS_KEPT)
def token_hmac(key: bytes, token_id: str) -> bytes:
    """Return the secret of a token."""
    return hmac.digest(key, token_id.encode(), "sha512")


def token_verifiers(token_id: str, secret: bytes, salts: list[bytes]) -> list[ScramUpsert]:
    """Return the credentials by which SCRAM verifies proofs of a token.

    The password is the secret in base64. Takes milliseconds: do not call on the loop.
    """
    password = base64.b64encode(secret)
    found = []
    for mechanism, salt in zip(HASHES, salts, strict=True):
        salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
        verifier = verifier_of(mechanism, salted, salt, ITERATIONS_MIN)
        found.append(ScramUpsert(token_id, mechanism, *verifier))
    return found


def _problem(ctx: RequestContext) -> ErrorCode:
    """Return the error if tokens are disabled or the client may not use them; otherwise NONE."""
    login = ctx.connection.login
    if ctx.principal == ANONYMOUS or (login is not None and login.by_token):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if not ctx.server.delegation_keys:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    return ErrorCode.NONE


def _text(kind: str | None, name: str | None) -> str:
    return f"{kind}:{name}"


# --- CreateDelegationToken -----------------------------------------------------------------------


def handle_create_delegation_token(
    ctx: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse | Later:
    """Create a token for the client itself, or for the named principal."""
    requester = str(ctx.principal)
    is_own = not request.owner_principal_name
    owner = (
        requester if is_own else _text(request.owner_principal_type, request.owner_principal_name)
    )

    def answered(code: ErrorCode) -> CreateDelegationTokenResponse:
        return _uncreated(owner, requester, code, says_requester=ctx.api_version >= _REQUESTER_FROM)

    problem = _problem(ctx) or _complaint(request)
    if problem:
        return answered(problem)
    config, random_bytes = ctx.server.config, ctx.server.random_bytes
    lifetime_ms = config.token_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    keys = ctx.server.delegation_keys
    drawn = base64.urlsafe_b64encode(random_bytes(_ID_BYTES)).decode().rstrip("=")
    token_id = keys.marked(drawn)
    secret = token_hmac(keys.current, token_id)
    salts = [random_bytes(_SALT_BYTES) for _ in HASHES]
    renewers = list(
        dict.fromkeys(_text(one.principal_type, one.principal_name) for one in request.renewers)
    )
    more = token_bytes(owner, requester, renewers)
    if not _has_room(ctx, requester, more):
        return answered(TOKENS_ARE_FULL)
    asked = ctx.server.token_bytes_asked
    asked[requester] += more
    later = Later()

    def settle() -> None:
        asked[requester] -= more
        if not asked[requester]:
            del asked[requester]

    def decided(outcome: Outcome) -> None:
        settle()
        if outcome.kind is not OutcomeKind.APPLIED:
            later.complete(answered(undecided(outcome)[0]))
            return
        answer = outcome.result
        response = answered(answer.error)
        if answer.error is ErrorCode.NONE:
            response.issue_timestamp_ms = answer.issued_ms
            response.expiry_timestamp_ms = answer.expires_ms
            response.max_timestamp_ms = answer.max_ms
            response.token_id = token_id
            response.hmac = secret
        later.complete(response)

    def computed(verifiers: list[ScramUpsert] | BaseException) -> None:
        if isinstance(verifiers, BaseException):
            settle()
            raise verifiers
        if later.cancelled:
            settle()
            return
        ctx.server.host.propose_catalog(
            CreateDelegationToken(
                token_id, owner, requester, renewers, lifetime_ms, config.token_period_ms, verifiers
            ),
            deadline_ns=ctx.deadline_ns(_TIMEOUT_MS),
            done=lambda outcome: later.run(lambda: decided(outcome), without_client=True),
        )

    ctx.server.login_compute(
        lambda: token_verifiers(token_id, secret, salts),
        lambda result: later.run(lambda: computed(result), without_client=True),
    )
    return later


def _has_room(ctx: RequestContext, requester: str, more: int) -> bool:
    """Return True if the requester may have `more` bytes of the maximum of all tokens.

    A user's own tokens do not use up the share of others.
    """
    shares, now_ms = Shares(ALL_BYTES_MAX), ctx.server.host.agreed_ms()
    for token in ctx.server.host.catalog.tokens.tokens.values():
        if now_ms < token.expires_ms:
            shares.change(token.requester, token.bytes)
    for who, count in ctx.server.token_bytes_asked.items():
        shares.change(who, count)
    return shares.may_take(requester, more)


def _complaint(request: CreateDelegationTokenRequest) -> ErrorCode:
    named = [(one.principal_type, one.principal_name) for one in request.renewers]
    if request.owner_principal_name:
        named.append((request.owner_principal_type or "", request.owner_principal_name))
    if any(kind != USER for kind, _ in named):
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    if len(named) > RENEWERS_MAX or any(not 0 < len(name) <= NAME_CHARS_MAX for _, name in named):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _uncreated(
    owner: str, requester: str, code: ErrorCode, *, says_requester: bool
) -> CreateDelegationTokenResponse:
    owner_type, _, owner_name = owner.partition(":")
    response = CreateDelegationTokenResponse(code, owner_type, owner_name)
    if says_requester:
        kind, _, name = requester.partition(":")
        response.token_requester_principal_type = kind
        response.token_requester_principal_name = name
    return response


# --- RenewDelegationToken, ExpireDelegationToken -------------------------------------------------


def handle_renew_delegation_token(
    ctx: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse | Later:
    """Renew a token for a time, or for the default period; never beyond its maximum age."""
    period_ms = ctx.server.config.token_period_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    return _altered(ctx, request.hmac, period_ms, RenewDelegationTokenResponse)


def handle_expire_delegation_token(
    ctx: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse | Later:
    """Set the remaining time of a token; a negative time ends it for good at once."""
    return _altered(
        ctx, request.hmac, max(-1, request.expiry_time_period_ms), ExpireDelegationTokenResponse
    )


def _altered(
    ctx: RequestContext, secret: bytes, period_ms: int, response: type[_Response]
) -> _Response | Later:
    problem = _problem(ctx)
    token = None if problem else _find(ctx, bytes(secret))
    if token is None:
        return response(error_code=problem or ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    later = Later()

    def decided(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            answer = outcome.result
            later.complete(response(answer.error, answer.expires_ms))
        else:
            later.complete(response(error_code=undecided(outcome)[0]))

    ctx.server.host.propose_catalog(
        AlterDelegationToken(token.token_id, str(ctx.principal), period_ms),
        deadline_ns=ctx.deadline_ns(_TIMEOUT_MS),
        done=lambda outcome: later.run(lambda: decided(outcome)),
    )
    return later


def _find(ctx: RequestContext, secret: bytes) -> DelegationToken | None:
    """Return the token with this secret. There are at most 2,000."""
    keys = ctx.server.delegation_keys
    found = None
    for token in ctx.server.host.catalog.tokens.tokens.values():
        for key in keys.of(token.token_id):
            if hmac.compare_digest(token_hmac(key, token.token_id), secret):
                found = token
    return found


# --- DescribeDelegationToken ---------------------------------------------------------------------


def handle_describe_delegation_token(
    ctx: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Return unexpired tokens of all owners or of some.

    The permission checks remove the tokens that the client may not see.
    """
    problem = _problem(ctx)
    if problem:
        return DescribeDelegationTokenResponse(error_code=problem)
    now_ms = ctx.server.host.agreed_ms()
    wanted = None
    if request.owners is not None:
        wanted = [_text(one.principal_type, one.principal_name) for one in request.owners]
    response = DescribeDelegationTokenResponse()
    for token in ctx.server.host.catalog.tokens.tokens.values():
        is_wanted = wanted is None or any(map(token.belongs_to, wanted))
        keys = ctx.server.delegation_keys.of(token.token_id)
        if is_wanted and keys and now_ms < token.expires_ms:
            told = _described(keys[0], token)
            if ctx.api_version < _REQUESTER_FROM:
                told.token_requester_principal_type = told.token_requester_principal_name = ""
            response.tokens.append(told)
    return response


def _described(key: bytes, token: DelegationToken) -> DescribedDelegationToken:
    owner_type, _, owner_name = token.owner.partition(":")
    requester_type, _, requester_name = token.requester.partition(":")
    return DescribedDelegationToken(
        owner_type,
        owner_name,
        requester_type,
        requester_name,
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        token.token_id,
        token_hmac(key, token.token_id),
        [DescribedDelegationTokenRenewer(*one.split(":", 1)) for one in token.renewers],
    )
