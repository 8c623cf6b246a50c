"""What a request may name again.

Kafka answers what is named twice twice, and so do we. But a name of ten bytes may stand for
megabytes of answer, and a request has room for a million names: without a bound a small request
makes an answer that no memory holds. What is named once needs none: all names together stand for no
more than the server knows.

Must not know: APIs, what the names stand for.
"""

from __future__ import annotations

from collections.abc import Hashable

REPEATS_MAX = 10
"""Of what may be large: a group, a transaction."""


class Repeats:
    """The names of one request."""

    __slots__ = ("_left", "_named")

    def __init__(self, repeats_max: int = REPEATS_MAX) -> None:
        self._left = repeats_max
        self._named: set[Hashable] = set()

    def refuses(self, name: Hashable) -> bool:
        """Whether this name was there before, and too many were."""
        if name not in self._named:
            self._named.add(name)
            return False
        self._left -= 1
        return self._left < 0
