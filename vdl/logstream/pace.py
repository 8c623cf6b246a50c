"""How fast followers that are far behind are fed from disk.

They read what nobody else reads, and may read all of it: without a limit they would take the disk
and the links from the producers' followers. One limit in bytes serves all groups a server leads.

Must not know: what is read, for whom.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.clock import Clock

_SECOND_NS = 1_000_000_000
BURST_NS = 100_000_000
"""A pause of this length may be made up for at once."""


class Pace:
    """See the module."""

    __slots__ = ("_bytes_per_second", "_clock", "_next_ns")

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._next_ns = 0
        """When the next read would begin if all so far had taken their time."""

    def run(self, size: int, job: Callable[[], None]) -> None:
        """Run a job that moves `size` bytes, now or when it is its turn."""
        now_ns = self._clock.now_ns()
        start_ns = max(self._next_ns, now_ns - BURST_NS)
        self._next_ns = start_ns + size * _SECOND_NS // self._bytes_per_second
        if start_ns <= now_ns:
            job()
        else:
            self._clock.call_later(start_ns - now_ns, job)
