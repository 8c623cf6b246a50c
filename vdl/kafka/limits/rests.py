"""Who did much at once rests, so that nobody has more than a part of a processor for it.

For work that few ask for and that takes long: requests of very many elements. Whoever asks for it
rests `REST` times as long as it took, so it has a quarter of a processor at the most. Up to
`AT_ONCE_NS` of work in hand nobody notices: one such request is done as fast as it can be.

Must not know: what the work is, who the askers are.
"""

from __future__ import annotations

from vdl.clock import MS, Clock

REST = 3
AT_ONCE_NS = 250 * MS
ASKERS_MAX = 1_000
"""Beyond so many, those that need not rest any more are forgotten."""


class Rests:
    """See the module."""

    __slots__ = ("_clock", "_until_ns")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ns: dict[str, int] = {}
        """Of each asker: when all it did would be rested for, if it began at once."""

    def used(self, asker: str, used_ns: int) -> None:
        """Count work that took so long."""
        if used_ns <= 0:
            return
        now_ns = self._clock.now_ns()
        if len(self._until_ns) >= ASKERS_MAX and asker not in self._until_ns:
            self._until_ns = {who: ns for who, ns in self._until_ns.items() if ns > now_ns}
        self._until_ns[asker] = max(now_ns, self._until_ns.get(asker, 0)) + (1 + REST) * used_ns

    def left_ns(self, asker: str) -> int:
        """Return how long the asker is to rest now, before it does more; 0: not at all."""
        until_ns = self._until_ns.get(asker)
        if until_ns is None:
            return 0
        return max(0, until_ns - self._clock.now_ns() - (1 + REST) * AT_ONCE_NS)
