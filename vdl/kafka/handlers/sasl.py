"""SaslHandshake (key 17) v0–1 and SaslAuthenticate (key 36) v0–2: login of a client.

Handshake v0: bare tokens follow, without requests around them (KIP-43); v1: tokens in
SaslAuthenticate (KIP-152). Authenticate v1: lifetime of the session (KIP-368); v2 is flexible.

After too many failures of a user from one address, such logins are locked for a while
(`login_failures.py`). A locked login's connection is closed without an answer, because clients
treat SASL_AUTHENTICATION_FAILED as final.

A refusal is answered after `REFUSAL_DELAY_MS`, so that guessing takes time. Neither its text nor
its duration reveals the reason: it comes a whole number of delays after its request. Then the
connection is closed.

Does not depend on any mechanism.
"""

from __future__ import annotations

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later, Reply
from vdl.kafka.context import RequestContext
from vdl.kafka.security.audit import NAME_CHARS_MAX
from vdl.kafka.security.login import Login, LoginAnswer, LoginState
from vdl.kafka.wire.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

REFUSAL_DELAY_MS = 100
"""Kafka's `connection.failed.authentication.delay.ms`."""
_DELAY_NS = REFUSAL_DELAY_MS * MS


def handle_sasl_handshake(
    ctx: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Choose a mechanism, or return the available ones."""
    login = ctx.connection.login
    if login is None:
        return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE)
    error = login.choose(request.mechanism, ctx.api_version)
    return SaslHandshakeResponse(error, sorted(login.mechanisms))


def handle_sasl_authenticate(
    ctx: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Later:
    """Process one token of the login."""
    login = ctx.connection.login
    if login is None:
        return SaslAuthenticateResponse(
            ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received on a plain listener"
        )
    later = Later()

    def answered(answer: LoginAnswer) -> None:
        ctx.connection.principal = login.principal
        _note(ctx, login, answer)
        response = SaslAuthenticateResponse(
            answer.error, answer.message, answer.token, answer.lifetime_ms
        )
        if answer.error is ErrorCode.NONE:
            later.complete(response)
        else:
            took_ns = ctx.server.clock.now_ns() - ctx.received_ns
            wait_ns = _DELAY_NS - took_ns % _DELAY_NS
            refusal = Reply.CLOSE if answer.is_locked else response
            ctx.server.clock.call_later(wait_ns, lambda: later.complete(refusal))

    login.take(request.auth_bytes, lambda answer: later.run(lambda: answered(answer)))
    return later


def _note(ctx: RequestContext, login: Login, answer: LoginAnswer) -> None:
    """Write the result of a login to the audit log, with the reason of a failure."""
    audit = ctx.server.audit
    if audit is None or (answer.error is ErrorCode.NONE and login.state is not LoginState.DONE):
        return
    connection = ctx.connection
    fields = {"mechanism": login.mechanism_name, "client": ctx.client_id[:NAME_CHARS_MAX]}
    if answer.error is not ErrorCode.NONE:
        fields["reason"] = login.failure
        fields["user"] = login.user[:NAME_CHARS_MAX]
    audit.note(
        "logged_in" if answer.error is ErrorCode.NONE else "login_refused",
        str(login.principal),
        connection.peer_host,
        is_act=False,
        listener=connection.listener,
        connection=connection.id,
        **fields,
    )
