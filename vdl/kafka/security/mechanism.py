"""What a SASL mechanism is to a login: tokens in, and what comes of each.

Must not know: any mechanism, connections.
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
    """The client has shown who it is."""

    principal: Principal
    token: bytes = b""
    expires_ms: int = -1
    """When its credential ends (ms since 1970); -1: never."""
    by_token: bool = False
    """It logged in with a delegation token (KIP-48)."""
    holds: Callable[[], bool] = _always
    """Whether what it logged in with is still in the catalog. It may be taken back at any time,
    also between a client's first token and its last."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The client has not, and its connection ends."""

    reason: str
    """For the server's log. Nothing of what the client sent."""
    is_credential: bool = False
    """Not because of the form of what it sent, but because of what it does not know."""
    message: str = ""
    """For the client, if the mechanism has one of its own."""


Step = Challenge | Accepted | Refused


class Mechanism(Protocol):
    """One login by one mechanism."""

    @property
    def user(self) -> str:
        """Whom the client says it is, by a name that its next tokens are to prove; empty where
        nobody has said so yet, or a signed token says it all."""

    def step(self, token: bytes, done: Callable[[Step], None]) -> None:
        """Take the client's next token. `done` is called once, perhaps within this call, perhaps
        later. No further call follows one that ended in anything but a Challenge."""
