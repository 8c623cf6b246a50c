"""How fast followers that are far behind are fed from disk.

They read what nobody else reads, and may read all of it: without a limit they would take the disk
and the links from the producers' followers. One limit in bytes serves all groups a server leads.

Jobs have a key, which says for whom they are: of each key at most one runs and one waits, and the
one that waits can be withdrawn. Without that each reset of a link would leave a read behind that
nobody needs, and those who do need theirs would wait for all of them.

Must not know: what is read, what a key stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from vdl.clock import Clock, Timer

_SECOND_NS = 1_000_000_000
BURST_NS = 100_000_000
"""A pause of this length may be made up for at once."""

_Job = tuple[int, Callable[[], None]]
"""The most bytes it may move, and what it does."""


class Pace:
    """See the module."""

    __slots__ = (
        "_behind", "_bytes_per_second", "_clock", "_is_starting", "_next_ns", "_running", "_timer",
        "_waiting",
    )  # fmt: skip

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._next_ns = 0
        """When the next read may begin: when all so far have taken their time."""
        self._waiting: dict[Hashable, _Job] = {}
        """In their order. Invariant: no key is also in `_running`."""
        self._running: set[Hashable] = set()
        self._behind: dict[Hashable, _Job] = {}
        """What waits for the job of its key that runs. Invariant: all keys are in `_running`."""
        self._is_starting = False
        """A job may end before it returns: the loop that began it goes on, not one within it."""
        self._timer: Timer | None = None

    def run(self, key: Hashable, size: int, job: Callable[[], None]) -> None:
        """Run a job that moves at most `size` bytes, now or when it is its turn; `ended` must
        follow. It takes the place of the one of its key that waits."""
        if key in self._running:
            self._behind[key] = size, job
            return
        self._waiting[key] = size, job
        self._go_on()

    def withdraw(self, key: Hashable) -> None:
        """The job of this key is not needed any more: it does not run, unless it has begun."""
        self._waiting.pop(key, None)
        self._behind.pop(key, None)

    def ended(self, key: Hashable, less: int) -> None:
        """The job of this key that ran is over. It moved `less` bytes fewer than it might have:
        others may use its time."""
        self._running.remove(key)
        behind = self._behind.pop(key, None)
        if behind is not None:
            self._waiting[key] = behind
        self._next_ns -= less * _SECOND_NS // self._bytes_per_second
        self._go_on()

    def _go_on(self) -> None:
        if self._is_starting:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._clock.now_ns()
        self._is_starting = True
        while self._waiting and self._next_ns <= now_ns:
            key = next(iter(self._waiting))
            size, job = self._waiting.pop(key)
            start_ns = max(self._next_ns, now_ns - BURST_NS)
            self._next_ns = start_ns + size * _SECOND_NS // self._bytes_per_second
            self._running.add(key)
            job()
        self._is_starting = False
        if self._waiting and self._timer is None:
            self._timer = self._clock.call_later(self._next_ns - now_ns, self._due)

    def _due(self) -> None:
        self._timer = None
        self._go_on()
