"""Bound on repeated names in a request.

Kafka answers a name that is repeated each time, and so does this server. But a name of ten bytes
may select megabytes of answer, and a request has room for a million names: without a bound a small
request could produce an answer beyond all memory. Names that occur once need no bound: all of them
together select no more than the server's state.

Does not depend on APIs, or on the meaning of names.
"""

from __future__ import annotations

from collections.abc import Hashable

REPEATS_MAX = 10
"""Repetitions of names with a large answer: a group, a transaction."""


class Repeats:
    """The names of one request."""

    __slots__ = ("_left", "_named")

    def __init__(self, repeats_max: int = REPEATS_MAX) -> None:
        self._left = repeats_max
        self._named: set[Hashable] = set()

    def refuses(self, name: Hashable) -> bool:
        """Return True if this name was there before, and there are too many repetitions."""
        if name not in self._named:
            self._named.add(name)
            return False
        self._left -= 1
        return self._left < 0
