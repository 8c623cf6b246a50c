"""How fast followers that are far behind are fed from disk.

They read what nobody else reads, and may read all of it: without a limit they would take the disk
and the links from the producers' followers. One limit in bytes serves all groups a server leads.

Must not know: what is read, for whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vdl.clock import Clock, Timer

_SECOND_NS = 1_000_000_000
BURST_NS = 100_000_000
"""A pause of this length may be made up for at once."""


class Pace:
    """See the module."""

    __slots__ = ("_bytes_per_second", "_clock", "_next_ns", "_timer", "_waiting")

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._next_ns = 0
        """When the next read may begin: when all so far have taken their time."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._timer: Timer | None = None

    def run(self, size: int, job: Callable[[], None]) -> None:
        """Run a job that moves at most `size` bytes, now or when it is its turn."""
        self._waiting.append((size, job))
        self._go_on()

    def found_less(self, size: int) -> None:
        """A job moved so many bytes less: others may use its time."""
        if size:
            self._next_ns -= size * _SECOND_NS // self._bytes_per_second
            self._go_on()

    def _go_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._clock.now_ns()
        while self._waiting and self._next_ns <= now_ns:
            size, job = self._waiting.popleft()
            start_ns = max(self._next_ns, now_ns - BURST_NS)
            self._next_ns = start_ns + size * _SECOND_NS // self._bytes_per_second
            job()
        if self._waiting and self._timer is None:
            self._timer = self._clock.call_later(self._next_ns - now_ns, self._due)

    def _due(self) -> None:
        self._timer = None
        self._go_on()
