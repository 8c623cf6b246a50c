"""Which topics match the patterns that members of groups subscribe by.

A pattern is matched once with each name: what matched is kept until the topic is gone or nobody
uses the pattern. So a new topic costs one match for each pattern, however many topics there are.

Must not know: groups, who uses a pattern.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from vdl.linear_regex import Pattern, compile_pattern


class _Known:
    """One pattern, and what is known of it."""

    __slots__ = ("matched", "pattern", "seen")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.seen: set[str] = set()
        self.matched: set[str] = set()


class TopicPatterns:
    """See the module. Not for two threads at once."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __len__(self) -> int:
        """How many patterns something is known of."""
        return len(self._known)

    def unseen(self, patterns: Collection[str], names: Collection[str]) -> int:
        """How many matches `resolve` would have to make, about."""
        total = 0
        for pattern in patterns:
            known = self._known.get(pattern)
            total += len(names) if known is None else max(0, len(names) - len(known.seen))
        return total

    def resolve(self, pattern: str, names: Set[str]) -> list[str]:
        """The names that match all of the pattern, in order. One whose syntax is wrong, which
        nobody let in, matches nothing."""
        known = self._known.get(pattern)
        if known is None:
            known = self._known[pattern] = _Known(compile_pattern(pattern))
        if gone := known.seen - names:
            known.seen -= gone
            known.matched -= gone
        for name in names - known.seen:
            known.seen.add(name)
            if known.pattern.matches(name):
                known.matched.add(name)
        return sorted(known.matched)

    def keep_only(self, patterns: Set[str]) -> None:
        """Forget what is known of others."""
        for pattern in self._known.keys() - patterns:
            del self._known[pattern]
