"""The keys that secrets of delegation tokens are made of (KIP-48), and which token is of which.

A token's id ends with a mark of the key it was made with, so a key that no server has any more ends
its tokens. Ids from before there were marks say nothing: such a token holds with any key, until it
ends by itself.

Must not know: where keys are kept, the catalog.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from hashlib import blake2b

_SEPARATOR = "."
"""Not among the characters of the ids before it."""
_MARK_BYTES = 6


@dataclass(frozen=True, slots=True)
class DelegationKeys:
    """None at all: there are no tokens."""

    current: bytes = field(default=b"", repr=False)
    """New tokens are made with it; empty: there is none."""
    other: bytes = field(default=b"", repr=False)
    """Tokens made with this one are good as well: the key of before, or the next one. May be
    empty."""

    def __bool__(self) -> bool:
        return bool(self.current)

    def marked(self, token_id: str) -> str:
        """The id of a new token, made of some that no other has."""
        return token_id + _SEPARATOR + _mark(self.current)

    def of(self, token_id: str) -> tuple[bytes, ...]:
        """The keys that a token may have been made with; none: it has ended with its key."""
        _, is_marked, mark = token_id.partition(_SEPARATOR)
        return tuple(
            key
            for key in (self.current, self.other)
            if key and (not is_marked or _mark(key) == mark)
        )


def _mark(key: bytes) -> str:
    """Which key it is; says nothing of the key."""
    digest = blake2b(key, digest_size=_MARK_BYTES, person=b"vdl token key").digest()
    return base64.urlsafe_b64encode(digest).decode()
