"""One connection's login by SASL: its state, the requests allowed in it, and its duration.

```
        SaslHandshake            token: Challenge          token: Accepted
CHOOSING ───────────▶ PROVING ───────────────────┐ ────────────────────────▶ DONE
    ▲ ApiVersions        ▲───────────────────────┘                             │
    └─ unknown mechanism │               SaslHandshake, where sessions end     │
                         └─────────────────────────────────────────────────────┘
```
Everything else leads to FAILED, and the connection is closed once it is answered. Before the first
login is done, a client may send no other request than ApiVersions, and that only before it has
chosen a mechanism. With `connections.max.reauth.ms`, or a token that expires, a session ends
(KIP-368): from then on only another login is accepted, by the same mechanism and principal.

After SaslHandshake v0 tokens come bare: a length and the token, without a request header (KIP-43).

Does not depend on connections, or on any mechanism.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from vdl.clock import MS, Clock
from vdl.errors import ErrorCode
from vdl.kafka.security.login_failures import LoginFailures
from vdl.kafka.security.mechanism import Accepted, Challenge, Mechanism, Refused, Step
from vdl.kafka.security.principal import ANONYMOUS, Principal

SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS = 17, 36, 18
LOGIN_APIS = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
LOGIN_SECONDS_MAX = 30
"""Time from the connection to the end of its first login."""


class LoginState(Enum):
    """State of a login; see the module."""

    CHOOSING = "choosing"
    PROVING = "proving"
    DONE = "done"
    FAILED = "failed"


_ALLOWED = {
    LoginState.CHOOSING: frozenset({API_VERSIONS, SASL_HANDSHAKE}),
    LoginState.PROVING: frozenset({SASL_AUTHENTICATE}),
    LoginState.FAILED: frozenset[int](),
}


@dataclass(slots=True)
class LoginAnswer:
    """Answer to a token."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    token: bytes = b""
    lifetime_ms: int = 0
    """Duration of the session that began; 0 if it does not end."""
    is_locked: bool = False
    """True if there must be no answer: the attempt was not judged, and the client may try again."""


class Login:
    """State machine of one connection's login; see the module."""

    __slots__ = (
        "_address",
        "_clock",
        "_failures",
        "_make",
        "_mechanism",
        "_now_ms",
        "_session_ms_max",
        "_token_bytes_max",
        "bare_tokens",
        "by_token",
        "ends_ns",
        "failure",
        "holds",
        "mechanism_name",
        "mechanisms",
        "principal",
        "since_ns",
        "state",
        "user",
    )

    def __init__(
        self,
        mechanisms: tuple[str, ...],
        make: Callable[[str], Mechanism],
        clock: Clock,
        now_ms: Callable[[], int],
        session_ms_max: int,
        token_bytes_max: int,
        failures: LoginFailures,
        address: str,
    ) -> None:
        """Create a login.

        `make` starts one login by a mechanism. `now_ms` returns the time by which credentials
        expire. `session_ms_max` is the maximum duration of a session; 0 if it does not end.
        `token_bytes_max` also applies to a client that logs in again, whose other requests may be
        larger. `failures` are those of all logins. `address` is the name under which this one
        counts there.
        """
        self._failures = failures
        self._address = address
        self.user = ""
        """Name that the client claimed; empty before."""
        self.mechanisms = mechanisms
        self.state = LoginState.CHOOSING
        self.principal: Principal = ANONYMOUS
        """Principal of the client, once the first login is done."""
        self.by_token = False
        """See `Accepted.by_token`."""
        self.holds: Callable[[], bool] = bool
        """See `Accepted.holds`, once the first login is done."""
        self.failure = ""
        """Reason of the failure, for the log."""
        self.bare_tokens = False
        """True if the next frames are tokens."""
        self.ends_ns = 0
        """Time when the session ends; 0 if it does not."""
        self.since_ns = clock.now_ns()
        self._clock = clock
        self._now_ms = now_ms
        self._make = make
        self._session_ms_max = session_ms_max
        self._token_bytes_max = token_bytes_max
        self._mechanism: Mechanism | None = None
        self.mechanism_name = ""
        """Mechanism that was chosen last; empty before."""

    @property
    def was_done(self) -> bool:
        """True once a login has been done: the client's identity is known."""
        return bool(self.mechanism_name) and self.principal is not ANONYMOUS

    def is_overdue(self, now_ns: int) -> bool:
        """Return True if the first login takes too long."""
        return not self.was_done and now_ns - self.since_ns > LOGIN_SECONDS_MAX * 1_000 * MS

    def allows(self, api_key: int, now_ns: int) -> bool:
        """Return True if a request may be made now."""
        if self.state is LoginState.DONE:
            ended = self.ends_ns and now_ns >= self.ends_ns
            return not ended or api_key == SASL_HANDSHAKE
        return api_key in _ALLOWED[self.state]

    def is_locked(self, user: str) -> bool:
        """Return True if logins as this user from this address are locked now.

        A client that was logged in has proven its identity, and is not locked.
        """
        return not self.was_done and self._failures.is_locked(user, self._address)

    # --- SaslHandshake -------------------------------------------------------------------------
    def choose(self, name: str, version: int) -> ErrorCode:
        """Choose a mechanism. Return the error code of the answer."""
        if self.state is LoginState.DONE and not self.ends_ns:
            return ErrorCode.ILLEGAL_SASL_STATE
        if name not in self.mechanisms:
            self._fail(f"the listener does not offer the mechanism {name!r:.40}")
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self.was_done and name != self.mechanism_name:
            self._fail("a session cannot change its mechanism")
            return ErrorCode.ILLEGAL_SASL_STATE
        self.mechanism_name = name
        self._mechanism = self._make(name)
        self.bare_tokens = version == 0
        self.state = LoginState.PROVING
        return ErrorCode.NONE

    # --- SaslAuthenticate ------------------------------------------------------------------------
    def take(self, token: bytes, done: Callable[[LoginAnswer], None]) -> None:
        """Process a token of the client.

        `done` may be called later, and is not called within a step of another object.
        """
        mechanism = self._mechanism
        if self.state is not LoginState.PROVING or mechanism is None:
            done(
                LoginAnswer(
                    ErrorCode.ILLEGAL_SASL_STATE,
                    "SaslAuthenticate request received after successful authentication",
                )
            )
            return
        if len(token) > self._token_bytes_max:
            done(self._refused(Refused("the token is too long")))
            return
        mechanism.step(token, lambda step: done(self._stepped(step)))

    def _stepped(self, step: Step) -> LoginAnswer:
        assert self._mechanism is not None
        self.user = self._mechanism.user
        if self.is_locked(self.user):
            # Refuse in any case, so that the answer reveals nothing about the credential.
            answer = self._refused(Refused("too many failed logins", is_credential=True))
            answer.is_locked = True
            return answer
        if isinstance(step, Challenge):
            return LoginAnswer(token=step.token)
        if isinstance(step, Accepted):
            return self._accepted(step)
        return self._refused(step)

    def _accepted(self, step: Accepted) -> LoginAnswer:
        if not step.holds():
            # It would not be checked again: notifications of changes reach only logged-in
            # connections.
            return self._refused(Refused("the credential was removed", is_credential=True))
        if self.was_done and step.principal != self.principal:
            return self._refused(Refused("a session cannot change its principal"))
        lifetime_ms = self._session_ms_max
        if step.expires_ms >= 0:
            left_ms = step.expires_ms - self._now_ms()
            if left_ms <= 0:
                return self._refused(Refused("the credential has expired", is_credential=True))
            lifetime_ms = min(lifetime_ms or left_ms, left_ms)
        self._failures.done(self.user, self._address)
        self.principal = step.principal
        self.holds = step.holds
        self.by_token = step.by_token
        self.state = LoginState.DONE
        self.bare_tokens = False
        self._mechanism = None
        self.ends_ns = self._clock.now_ns() + lifetime_ms * MS if lifetime_ms else 0
        return LoginAnswer(token=step.token, lifetime_ms=lifetime_ms)

    def _refused(self, step: Refused) -> LoginAnswer:
        name = self.mechanism_name
        if step.is_credential and self.user:
            self._failures.failed(self.user, self._address)
        self._fail(f"{name}: {step.reason}")
        message = step.message or (
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {name}"
        )
        return LoginAnswer(ErrorCode.SASL_AUTHENTICATION_FAILED, message)

    def _fail(self, reason: str) -> None:
        self.state = LoginState.FAILED
        self.failure = reason
        self._mechanism = None
