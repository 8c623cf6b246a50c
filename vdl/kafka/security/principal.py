"""Identity of a client, once its connection has proven it.

A listener without authentication gives every client `ANONYMOUS`. TLS with client certificates and
SASL give others, at the end of their handshake. Permissions are decided elsewhere.

Does not depend on connections, credentials or permissions.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

USER = "User"
"""The only type of principal that Kafka itself makes."""


@dataclass(frozen=True, slots=True)
class Principal:
    """One identity; `str` of it is its form in ACLs and `super.users`: "User:alice"."""

    name: str
    type: str = USER

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""Principal of a client without an identity. It is never a super user."""


def parse_principal(text: str) -> Principal:
    """Return the principal of a text such as "User:alice".

    Raises ValueError(expected form).
    """
    kind, separator, name = text.partition(":")
    if not kind or not separator or not name:
        raise ValueError('a principal such as "User:alice"')
    return Principal(name, kind)


def is_name(text: str) -> bool:
    """Return True if a certificate or a token may name a principal like this.

    Control characters and line separators would forge lines of logs.
    """
    return not any(unicodedata.category(char) in _FORBIDDEN for char in text)


_FORBIDDEN = frozenset({"Cc", "Zl", "Zp"})
