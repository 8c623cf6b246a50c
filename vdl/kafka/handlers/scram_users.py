"""SCRAM credentials of users (KIP-554).

DescribeUserScramCredentials (key 50) v0, AlterUserScramCredentials (key 51) v0.

The client computes the salted password, so the server receives no password and computes no
iterations. It stores two keys derived from it (`vdl/kafka/security/scram.py`). Neither API ever
returns either.

Does not depend on how credentials are used.
"""

from __future__ import annotations

import re
from collections import Counter

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.security.principal import USER
from vdl.kafka.security.protocol import SCRAM_SHA_256, SCRAM_SHA_512
from vdl.kafka.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, verifier_of
from vdl.kafka.wire.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from vdl.kafka.wire.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import AlterDelegationToken, AlterScramCredentials, ScramUpsert

MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""Names of mechanisms by Kafka's numbers."""
_NUMBERS = {name: number for number, name in MECHANISMS.items()}
_DECOY_KEY_BYTES = 32
_SALT_BYTES_MAX = 64
_USER_CHARS_MAX = 256
_PROPOSE_MS_MAX = 30_000
_AT_ONCE = -1
"""Expiry time that ends a token for good at once."""
_UNSEEN = re.compile(r"[\x00-\x1f\x7f]")

Problem = tuple[ErrorCode, str]


def handle_describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Return mechanisms and iterations of the named users, or of all."""
    scram = ctx.server.host.catalog.scram
    asked = [user.name for user in request.users or ()] or scram.users()
    times = Counter(asked)
    response = DescribeUserScramCredentialsResponse(error_message=None)
    for name in times:
        result = DescribeUserScramCredentialsResult(name, error_message=None)
        credentials = scram.of(name)
        if times[name] > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single"
                f" request: {name}"
            )
        elif not credentials:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = (
                f"Attempt to describe a user credential that does not exist: {name}"
            )
        else:
            result.credential_infos = sorted(
                (
                    CredentialInfo(_NUMBERS[mechanism], credential.iterations)
                    for mechanism, credential in credentials.items()
                ),
                key=lambda info: info.mechanism,
            )
        response.results.append(result)
    return response


def handle_alter_user_scram_credentials(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse | Later:
    """Delete and set credentials. A user with one invalid change is not changed at all.

    With a user's last credential its delegation tokens end, so that it cannot log in with one.
    """
    names = _names(request)
    problems = _problems(request)
    deletions = [
        (one.name, MECHANISMS[one.mechanism])
        for one in request.deletions
        if one.name not in problems
    ]
    upserts = [_upsert(one) for one in request.upsertions if one.name not in problems]
    if not deletions and not upserts:
        return _response(names, problems)
    later = Later()
    deadline_ns = ctx.received_ns + _PROPOSE_MS_MAX * MS

    def decided(outcome: Outcome) -> None:
        changed = [user for user, _ in deletions] + [upsert.user for upsert in upserts]
        if outcome.kind is OutcomeKind.APPLIED:
            found = zip(changed, outcome.result.errors, strict=True)
            problems.update((user, (code, text)) for user, (code, text) in found if code)
            end_tokens()
        else:
            problems.update(dict.fromkeys(changed, undecided(outcome)))
            later.complete(_response(names, problems))

    def end_tokens() -> None:
        """End one token of a user without credentials, and then the next.

        This goes on if the client disconnects. After a failure, removing the user again completes
        it.
        """
        catalog = ctx.server.host.catalog
        gone = {f"{USER}:{user}" for user, _ in deletions if not catalog.scram.of(user)}
        token = next((one for one in catalog.tokens.tokens.values() if one.lets_in(gone)), None)
        if token is None:
            later.complete(_response(names, problems))
            return
        ctx.server.host.propose_catalog(
            AlterDelegationToken(token.token_id, token.owner, _AT_ONCE),
            deadline_ns=deadline_ns,
            done=lambda outcome: later.run(lambda: token_ended(outcome), without_client=True),
        )

    def token_ended(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            end_tokens()
        else:
            problems.update(dict.fromkeys((user for user, _ in deletions), undecided(outcome)))
            later.complete(_response(names, problems))

    ctx.server.host.propose_catalog(
        AlterScramCredentials(deletions, upserts, ctx.server.random_bytes(_DECOY_KEY_BYTES)),
        deadline_ns=deadline_ns,
        done=lambda outcome: later.run(lambda: decided(outcome), without_client=True),
    )
    return later


def fail_alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, version: int, code: ErrorCode
) -> AlterUserScramCredentialsResponse:
    """Return `code` for every user."""
    del version
    names = _names(request)
    return _response(names, dict.fromkeys(names, (code, "")))


def _names(request: AlterUserScramCredentialsRequest) -> list[str]:
    return [one.name for one in request.deletions] + [one.name for one in request.upsertions]


def _response(names: list[str], problems: dict[str, Problem]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(name, code, message or None)
            for name in dict.fromkeys(names)
            for code, message in [problems.get(name, (ErrorCode.NONE, ""))]
        ]
    )


def _problems(request: AlterUserScramCredentialsRequest) -> dict[str, Problem]:
    """Return the error of each user whose changes are invalid."""
    problems: dict[str, Problem] = {}
    for deletion in request.deletions:
        _note(problems, deletion.name, _problem_of(deletion.name, deletion.mechanism))
    for upsertion in request.upsertions:
        problem = _problem_of(upsertion.name, upsertion.mechanism) or _problem_with(upsertion)
        _note(problems, upsertion.name, problem)
    deleted = Counter((one.name, one.mechanism) for one in request.deletions)
    altered = Counter((one.name, one.mechanism) for one in request.upsertions) + deleted
    for (name, _), times in altered.items():
        if times > 1:
            message = "A user credential cannot be altered twice in the same request"
            problems[name] = ErrorCode.DUPLICATE_RESOURCE, message
    return problems


def _note(problems: dict[str, Problem], name: str, problem: Problem | None) -> None:
    if problem is not None:
        problems.setdefault(name, problem)


def _problem_of(name: str, mechanism: int) -> Problem | None:
    if not name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if len(name) > _USER_CHARS_MAX or _UNSEEN.search(name):
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username is too long, or has invalid characters"
    if mechanism not in MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    return None


def _problem_with(one: ScramCredentialUpsertion) -> Problem | None:
    if one.iterations < ITERATIONS_MIN:
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Too few iterations; expected at least {ITERATIONS_MIN}",
        )
    if one.iterations > ITERATIONS_MAX:
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Too many iterations; expected at most {ITERATIONS_MAX}",
        )
    if not one.salt or len(one.salt) > _SALT_BYTES_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt is empty or too long"
    if not one.salted_password or len(one.salted_password) > _SALT_BYTES_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password is empty or too long"
    return None


def _upsert(one: ScramCredentialUpsertion) -> ScramUpsert:
    mechanism = MECHANISMS[one.mechanism]
    verifier = verifier_of(mechanism, one.salted_password, one.salt, one.iterations)
    return ScramUpsert(
        one.name,
        mechanism,
        verifier.iterations,
        verifier.salt,
        verifier.stored_key,
        verifier.server_key,
    )
