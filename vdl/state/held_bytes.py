"""How much all groups of a table take in a snapshot, about.

A command may change a group many times, and few commands ask for the sum. So a change only notes
the group, and the next question counts those that were noted anew.

Must not know: what a group takes, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Sized(Protocol):
    """Something that knows what it takes."""

    @property
    def bytes(self) -> int: ...


class HeldBytes:
    """See the module."""

    __slots__ = ("_sizes", "_total", "stale")

    def __init__(self) -> None:
        self._total = 0
        """Invariant: the sum of `_sizes`."""
        self._sizes: dict[str, int] = {}
        """By name: what it took when it was counted last."""
        self.stale: set[str] = set()
        """Names of what has changed since, came or went. Use: added to with every change."""

    def of(self, known: Mapping[str, Sized]) -> int:
        """What all of `known` takes; it is what changes were noted of."""
        for name in self.stale:
            one = known.get(name)
            now = 0 if one is None else one.bytes
            self._total += now - self._sizes.pop(name, 0)
            if now:
                self._sizes[name] = now
        self.stale.clear()
        return self._total

    def load(self, known: Mapping[str, Sized]) -> None:
        """Count everything anew."""
        self.stale = set()
        self._sizes = {name: one.bytes for name, one in known.items()}
        self._total = sum(self._sizes.values())
