"""Cache of the topics that match the patterns of group members.

A pattern is matched once with each name: a match is kept until the topic is gone or no member uses
the pattern. So a new topic costs one match for each pattern, however many topics there are.
Matching runs off the loop (`vdl.kafka.limits.pattern_work`), and groups continue with the known
matches.

A member's pattern is matched only with topics that it may see: matching time must not reveal a name
that it may not see. So results are kept by pattern and viewer.

Does not depend on members.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Set

from vdl.kafka.limits.pattern_work import Asked, Found, PatternWork
from vdl.patterns import BadPattern

KEPT_BYTES_MAX = 16 << 20
"""Approximate bytes of all results; beyond that the least recently used patterns are forgotten."""
_KNOWN_BYTES = 500
_NAME_BYTES = 8

Key = tuple[str, Hashable]
"""A pattern and its viewer; None: a viewer that may see all topics."""


class _Known:
    """The names that one key was matched with, and the result."""

    __slots__ = ("asked", "matched", "names", "refusal", "waiting")

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        """Names that it was matched with."""
        self.matched: tuple[str, ...] = ()
        """Those of `names` that match, ascending."""
        self.refusal: BadPattern | None = None
        """Error of an invalid pattern, which matches nothing; None if it is valid."""
        self.asked: Asked | None = None
        """The match in progress."""
        self.waiting: dict[str, Callable[[], None]] = {}
        """By group: called when the match in progress has ended."""


class TopicPatterns:
    """Results by pattern and viewer: see the module. Called on the loop."""

    def __init__(self, work: PatternWork) -> None:
        self._work = work
        self._known: OrderedDict[Key, _Known] = OrderedDict()
        """The least recently used one first."""
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of patterns, by viewer, with results."""
        return len(self._known)

    def refusal(self, key: Key) -> BadPattern | None:
        """Return the error of an invalid pattern, or None if none is known. An earlier version may
        have accepted a pattern that is invalid here."""
        known = self._known.get(key)
        return self._work.refusal(key[0]) if known is None else known.refusal

    def matched(self, key: Key, names: frozenset[str]) -> tuple[str, ...] | None:
        """Return those of the names that match the whole pattern, ascending. None: the pattern has
        not been matched with all of them."""
        known = self._known.get(key)
        if known is None:
            return None
        is_current = known.names is names or known.names == names
        if known.refusal is None and not is_current:
            return None
        self._known.move_to_end(key)
        return known.matched

    def resolve(
        self,
        key: Key,
        names: frozenset[str],
        *,
        asker: str,
        group_id: str,
        done: Callable[[], None],
    ) -> None:
        """Match the pattern with names it has not been matched with, in the asker's turn; then call
        `done()`, once for a group. After that, `matched` returns the result, unless the names
        changed meanwhile."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known()
            self._count(key, known, 1)
        known.waiting[group_id] = done
        if known.asked is not None:
            self._work.join(asker, known.asked)
            return
        question = key[0], names - known.names

        def answered(found: list[Found]) -> None:
            self._answered(key, known, names, found[0])

        asked = Asked([question], answered)
        known.asked = asked
        self._work.join(asker, asked)

    def _answered(self, key: Key, known: _Known, names: frozenset[str], found: Found) -> None:
        known.asked = None
        is_kept = self._known.get(key) is known
        if is_kept:
            self._count(key, known, -1)
        if isinstance(found, BadPattern):
            known.refusal, known.matched, known.names = found, (), frozenset()
        else:
            still = [name for name in known.matched if name in names]
            known.matched, known.names = tuple(sorted([*still, *found])), names
        if is_kept:
            self._count(key, known, 1)
        waiting, known.waiting = known.waiting, {}
        for done in waiting.values():
            done()
        self._forget_oldest()

    def _count(self, key: Key, known: _Known, sign: int) -> None:
        self._bytes += sign * (_KNOWN_BYTES + len(key[0]) + _NAME_BYTES * len(known.matched))

    def _forget_oldest(self) -> None:
        while self._bytes > KEPT_BYTES_MAX and len(self._known) > 1:
            self._forget(next(iter(self._known)))

    def keep_only(self, keys: Set[Key]) -> None:
        """Forget the results of all other keys."""
        for key in self._known.keys() - keys:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        known = self._known.pop(key)
        self._count(key, known, -1)
        if known.asked is not None:
            known.asked.cancel()
