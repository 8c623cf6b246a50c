"""Who a client is, once its connection has shown it.

A listener that asks for nothing gives every client `ANONYMOUS`. TLS with client certificates and
SASL give others, at the end of their handshake. Decisions about permission are made elsewhere.

Must not know: connections, credentials, permissions.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

USER = "User"
"""The only type of principal that Kafka's own parts make."""


@dataclass(frozen=True, slots=True)
class Principal:
    """One identity; `str` of it is what ACLs and `super.users` name: "User:alice"."""

    name: str
    type: str = USER

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""Nobody has shown who they are. It is never a super user."""


def parse_principal(text: str) -> Principal:
    """The principal that a text such as "User:alice" names. Raises ValueError(what was
    expected)."""
    kind, separator, name = text.partition(":")
    if not kind or not separator or not name:
        raise ValueError('a principal such as "User:alice"')
    return Principal(name, kind)


def is_name(text: str) -> bool:
    """Return whether a certificate or a token may name a principal like this: control characters
    and line separators would forge lines of logs."""
    return not any(unicodedata.category(char) in _FORBIDDEN for char in text)


_FORBIDDEN = frozenset({"Cc", "Zl", "Zp"})
