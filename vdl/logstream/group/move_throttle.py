"""How fast replicas that a reassignment adds are fed, where an operator has set a limit (KIP-73).

An operator limits what servers send as leaders, and what servers get as followers, in bytes a
second; and says for which replicas of a topic each limit is. Kafka's leaders and followers keep to
these each for itself. Here it is leaders who feed, so they keep both: of what a follower may get,
each leader takes the part that its share of that follower's moves is.

Whoever is fed under a limit has to wait until every limit that is for it has room, and is never fed
faster because others write: a limit below what is written keeps a move from ever ending, as in
Kafka, and shows as such. Nobody else is held up: replicas that were lost, and members that have
fallen behind, are fed as ever (`recovery_throttle.py`).

It has the methods of `RecoveryThrottle`, and its jobs are of keys as there (`keyed_jobs.py`).

Must not know: what moves, who has set a limit, what a key stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from vdl.clock import Clock, Timer
from vdl.logstream.group.keyed_jobs import KeyedJobs

_SECOND_NS = 1_000_000_000
PIECE_NS = 100_000_000
"""A piece takes about so long at the limit."""
PIECE_BYTES_MIN = 16 << 10


def piece_bytes(limit: int) -> int:
    """How much to move at a time: what others wait for."""
    return max(PIECE_BYTES_MIN, limit * PIECE_NS // _SECOND_NS)


class _Job(NamedTuple):
    size: int
    run: Callable[[], None]


class MoveThrottle:
    """See the module."""

    __slots__ = ("_clock", "_is_starting", "_jobs", "_limits", "_next_ns", "_paced", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: Mapping[Hashable, int] = {}
        """Bytes a second, by limit."""
        self._paced: Mapping[Hashable, tuple[Hashable, ...]] = {}
        """By key: the limits that are for it."""
        self._next_ns: dict[Hashable, int] = {}
        """By limit: when what was begun so far has taken its time."""
        self._jobs: KeyedJobs[_Job, tuple[Hashable, ...]] = KeyedJobs()
        """A job runs on the limits that its bytes count for."""
        self._is_starting = False
        self._timer: Timer | None = None

    def pace(
        self, limits: Mapping[Hashable, int], paced: Mapping[Hashable, tuple[Hashable, ...]]
    ) -> None:
        """From now on these limits hold (bytes a second, at least 1), each for the keys that name
        it. A key that names none is not held up."""
        self._limits, self._paced = limits, paced
        self._next_ns = {limit: self._next_ns.get(limit, 0) for limit in limits}
        self._go_on()

    def is_paced(self, key: Hashable) -> bool:
        """Whether a limit is for it."""
        return key in self._paced

    def run(
        self, key: Hashable, size: int, job: Callable[[], None], *, due_ns: int | None = None
    ) -> None:
        """Run a job that moves about `size` bytes when it may; `ended` must follow. It takes the
        place of the one of its key that waits. No time makes it due."""
        del due_ns
        if self._jobs.add(key, _Job(size, job)):
            self._go_on()

    def now_ns(self) -> int:
        """The clock of it all."""
        return self._clock.now_ns()

    def withdraw(self, key: Hashable) -> None:
        """The job of this key is not needed any more: it does not run, unless it has begun."""
        self._jobs.withdraw(key)

    def ended(self, key: Hashable, less: int) -> None:
        """The job of this key that ran is over. It moved `less` bytes fewer than was said, or more:
        a batch is never cut."""
        limits, _ = self._jobs.end(key)
        for limit in limits:
            if limit in self._limits:
                self._next_ns[limit] -= less * _SECOND_NS // self._limits[limit]
        self._go_on()

    def _go_on(self) -> None:
        if self._is_starting:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._clock.now_ns()
        self._is_starting = True
        while (key := self._first_that_may(now_ns)) is not None:
            self._begin(key, now_ns)
        self._is_starting = False
        if waiting := self._jobs.waiting:
            wait_ns = min(self._may_begin_ns(key) for key in waiting) - now_ns
            self._timer = self._clock.call_later(max(0, wait_ns), self._due)

    def _first_that_may(self, now_ns: int) -> Hashable | None:
        return next((key for key in self._jobs.waiting if self._may_begin_ns(key) <= now_ns), None)

    def _may_begin_ns(self, key: Hashable) -> int:
        return max((self._next_ns[limit] for limit in self._paced.get(key, ())), default=0)

    def _begin(self, key: Hashable, now_ns: int) -> None:
        limits = self._paced.get(key, ())
        size, job = self._jobs.begin(key, limits)
        for limit in limits:
            # A pause is not made up for: what follows would be faster than the limit.
            start_ns = max(self._next_ns[limit], now_ns)
            self._next_ns[limit] = start_ns + size * _SECOND_NS // self._limits[limit]
        job()

    def _due(self) -> None:
        self._timer = None
        self._go_on()
