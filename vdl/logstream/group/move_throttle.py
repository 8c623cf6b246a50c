"""Rate limits set by an operator for feeding replicas that a reassignment adds (KIP-73).

An operator limits what servers send as leaders, and what servers receive as followers, in bytes a
second; and lists the replicas of a topic to which each limit applies. In Kafka leaders and
followers enforce their limits separately. Here leaders enforce both: each leader takes the fraction
of a follower's limit that corresponds to its fraction of that follower's moves.

A limited replica waits until every limit that applies to it has room. It is not fed faster when
others write: a limit below the write rate keeps a move from ever ending, as in Kafka, and shows as
such. Other replicas are not limited: lost replicas, and members that have fallen behind, are fed by
`recovery_throttle.py`.

Has the methods of `RecoveryThrottle`, and jobs by key as there (`keyed_jobs.py`).

Does not depend on what moves, who set a limit, or what a key stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from vdl.clock import Clock, Timer
from vdl.logstream.group.keyed_jobs import KeyedJobs

_SECOND_NS = 1_000_000_000
PIECE_NS = 100_000_000
"""A piece takes about this long at the limit."""
PIECE_BYTES_MIN = 16 << 10


def piece_bytes(limit: int) -> int:
    """Return the number of bytes to move at a time, for which others wait."""
    return max(PIECE_BYTES_MIN, limit * PIECE_NS // _SECOND_NS)


class _Job(NamedTuple):
    size: int
    run: Callable[[], None]


class MoveThrottle:
    """Rate limits of moves on one server."""

    __slots__ = ("_clock", "_is_starting", "_jobs", "_limits", "_next_ns", "_paced", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: Mapping[Hashable, int] = {}
        """Bytes a second, by limit."""
        self._paced: Mapping[Hashable, tuple[Hashable, ...]] = {}
        """By key: the limits that apply to it."""
        self._next_ns: dict[Hashable, int] = {}
        """By limit: time at which all that was begun has used its share."""
        self._jobs: KeyedJobs[_Job, tuple[Hashable, ...]] = KeyedJobs()
        """The terms of a job are the limits that count its bytes."""
        self._is_starting = False
        self._timer: Timer | None = None

    def pace(
        self, limits: Mapping[Hashable, int], paced: Mapping[Hashable, tuple[Hashable, ...]]
    ) -> None:
        """Set the limits (bytes a second, at least 1), and the limits that apply to each key.

        Keys without limits are not delayed.
        """
        self._limits, self._paced = limits, paced
        self._next_ns = {limit: self._next_ns.get(limit, 0) for limit in limits}
        self._go_on()

    def is_paced(self, key: Hashable) -> bool:
        """Return True if a limit applies to the key."""
        return key in self._paced

    def run(
        self, key: Hashable, size: int, job: Callable[[], None], *, due_ns: int | None = None
    ) -> None:
        """Run a job that moves about `size` bytes, once its limits allow it; `ended` must follow.

        It replaces the waiting job of its key. `due_ns` is ignored.
        """
        del due_ns
        if self._jobs.add(key, _Job(size, job)):
            self._go_on()

    def now_ns(self) -> int:
        """Return the present time of the throttle's clock."""
        return self._clock.now_ns()

    def withdraw(self, key: Hashable) -> None:
        """Drop the job of this key, unless it has begun."""
        self._jobs.withdraw(key)

    def ended(self, key: Hashable, less: int) -> None:
        """End the running job of this key.

        It moved `less` bytes fewer than announced, or more: a batch is never cut.
        """
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
            # Pauses are not compensated: what follows would be faster than the limit.
            start_ns = max(self._next_ns[limit], now_ns)
            self._next_ns[limit] = start_ns + size * _SECOND_NS // self._limits[limit]
        job()

    def _due(self) -> None:
        self._timer = None
        self._go_on()
