"""Rate of incoming bytes over the last second.

A ring of tenths of a second. The rate counts the last ten whole tenths and the current one, so it
is at most a tenth too high and never too low while bytes arrive evenly. Adding and reading cost the
same at any rate.
"""

from __future__ import annotations

SLOT_NS = 100_000_000
SLOTS = 11
"""Ten whole tenths and the current one."""


class IngestRate:
    """Bytes by tenths of a second. Times are of the monotonic clock, in nanoseconds."""

    __slots__ = ("_bytes", "_slot", "_total")

    def __init__(self) -> None:
        self._bytes = [0] * SLOTS
        self._slot = 0
        """Newest slot: number of tenths since the clock's zero."""
        self._total = 0
        """Invariant: the sum of `_bytes`."""

    def add(self, count: int, now_ns: int) -> None:
        self._total = self.per_second(now_ns) + count
        self._bytes[self._slot % SLOTS] += count

    def per_second(self, now_ns: int) -> int:
        slot = now_ns // SLOT_NS
        if slot - self._slot >= SLOTS:
            self._bytes = [0] * SLOTS
            self._total = 0
            self._slot = slot
        while self._slot < slot:
            self._slot += 1
            at = self._slot % SLOTS
            self._total -= self._bytes[at]
            self._bytes[at] = 0
        assert self._total >= 0, self._total
        return self._total
