"""Keys from which secrets of delegation tokens are made (KIP-48), and the key of each token.

A token's id ends with a mark of the key it was made with. When no server has the key any more, its
tokens end. Older ids have no mark: such a token is valid with any key, until it expires.

Does not depend on where keys are stored, or on the catalog.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from hashlib import blake2b

_SEPARATOR = "."
"""A character that does not occur in older ids."""
_MARK_BYTES = 6


@dataclass(frozen=True, slots=True)
class DelegationKeys:
    """Keys of delegation tokens. Without any key there are no tokens."""

    current: bytes = field(default=b"", repr=False)
    """Key with which new tokens are made; empty if there is none."""
    other: bytes = field(default=b"", repr=False)
    """Key whose tokens are valid as well: the previous or the next key. May be empty."""

    def __bool__(self) -> bool:
        return bool(self.current)

    def marked(self, token_id: str) -> str:
        """Return the id of a new token, made of a unique id."""
        return token_id + _SEPARATOR + _mark(self.current)

    def of(self, token_id: str) -> tuple[bytes, ...]:
        """Return the keys with which a token may have been made; empty if its key is gone."""
        _, is_marked, mark = token_id.partition(_SEPARATOR)
        return tuple(
            key
            for key in (self.current, self.other)
            if key and (not is_marked or _mark(key) == mark)
        )


def _mark(key: bytes) -> str:
    """Return a mark that identifies a key without revealing anything about it."""
    digest = blake2b(key, digest_size=_MARK_BYTES, person=b"vdl token key").digest()
    return base64.urlsafe_b64encode(digest).decode()
