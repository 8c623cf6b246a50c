"""Interface between a login and a SASL mechanism: tokens in, results out.

Does not depend on any mechanism, or on connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from vdl.kafka.security.principal import Principal


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Challenge:
    """Another token of the client is needed."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client has proven its identity."""

    principal: Principal
    token: bytes = b""
    expires_ms: int = -1
    """Time when its credential expires (ms since 1970); -1: never."""
    by_token: bool = False
    """True if it logged in with a delegation token (KIP-48)."""
    holds: Callable[[], bool] = _always
    """Return True if its credential is still in the catalog. It may be removed at any time, also
    between a client's first token and its last."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client has not proven its identity, and its connection ends."""

    reason: str
    """Reason for the server's log. Contains nothing that the client sent."""
    is_credential: bool = False
    """True if the credential is wrong; False if the message is malformed."""
    message: str = ""
    """Message for the client, if the mechanism has one of its own."""


Step = Challenge | Accepted | Refused


class Mechanism(Protocol):
    """One login by one mechanism."""

    @property
    def user(self) -> str:
        """Name that the client claims, and that its next tokens must prove.

        Empty before the claim, or if a signed token is the claim and its proof.
        """

    def step(self, token: bytes, done: Callable[[Step], None]) -> None:
        """Process the client's next token.

        `done` is called once, perhaps within this call, perhaps later. After a result other than a
        Challenge this is not called again.
        """
