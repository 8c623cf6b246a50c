"""Rate limits for feeding followers that are far behind from disk.

They read data that no other reader needs, and may read all of it: without a limit they would take
the disk and the links from the followers that are in step. One limit in bytes serves all groups
that a server leads, in turns.

With this limit alone a follower could stay behind for ever when producers are faster. So each
follower may also be fed `GAIN` times as fast as its group is written to, whatever others use:
`Gain` measures that, and `run` takes the time at which a job is due by it.

Replicas that a reassignment adds have other limits if an operator has set any (KIP-73). They wait
until each limit that applies to them has room, and are not fed faster when others write: a limit
below the write rate keeps a move from ever ending, as in Kafka.

Jobs have a key, which stands for the party that they serve. Of each key at most one runs and one
waits: a second one replaces the one that waits, which can also be withdrawn. Otherwise each reset
of a link would leave an unneeded read behind, for which needed ones would wait.

Does not depend on what is read, what moves, or what a key stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from ids import Index
from vdl.clock import Clock, Timer

_SECOND_NS = 1_000_000_000
BURST_NS = 100_000_000
"""A pause of catching up of up to this length may be compensated at once. Pauses of moves are not:
what follows would be faster than the operator's limit."""
GAIN = 2
"""Minimum rate at which a follower is fed, as a multiple of its group's write rate."""
GAIN_NS = _SECOND_NS
"""Approximate period over which the write rate is measured."""
NEVER_NS = 1 << 63

Limits = tuple[Hashable, ...]
_CATCH_UP: Limits = ("catch-up",)
"""The server's own limit. It applies to keys without any of an operator."""


class _Job(NamedTuple):
    number: int
    """Order of the requests. A job keeps that of the one it replaces."""
    size: int
    """Bytes that it may move at most."""
    run: Callable[[], None]
    due_ns: int
    """Time at which it may begin regardless of the server's own limit."""


class FeedThrottle:
    """Rate limits of one server's reads for followers."""

    __slots__ = (
        "_behind", "_clock", "_due_first", "_is_starting", "_moves", "_next_ns", "_number",
        "_rates", "_running", "_timer", "_waiting",
    )  # fmt: skip

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._rates: dict[Hashable, int] = dict.fromkeys(_CATCH_UP, bytes_per_second)
        """Bytes a second, by limit."""
        self._next_ns: dict[Hashable, int] = dict.fromkeys(_CATCH_UP, 0)
        """By limit: time at which all that was begun has used its share."""
        self._moves: Mapping[Hashable, Limits] = {}
        """The operators' limits that apply to a key."""
        self._waiting: dict[Limits, dict[Hashable, _Job]] = {}
        """Waiting jobs in order, by their limits. Invariant: no key is also in `_running`."""
        self._running: dict[Hashable, Limits] = {}
        """By key of a running job: the limits that count its bytes."""
        self._behind: dict[Hashable, _Job] = {}
        """Jobs that wait for the running one of their key."""
        self._due_first: list[tuple[int, int, Hashable]] = []
        """Heap of (time, number, key) of jobs that become due regardless of the limit. It may
        contain jobs that wait no longer, which are dropped when they come up."""
        self._is_starting = False
        """True while jobs are started. A job may end before it returns: the loop that began it
        continues, not a nested one."""
        self._timer: Timer | None = None
        self._number = 0

    def limit_moves(self, rates: Mapping[Hashable, int], moves: Mapping[Hashable, Limits]) -> None:
        """Set the operators' limits (bytes a second, at least 1), and those that apply to a key.

        What was begun before has its share of the new rate.
        """
        own, before = _CATCH_UP[0], self._rates
        now_rates = {own: before[own], **rates}
        if now_rates == before and moves == self._moves:
            return
        now_ns = self._clock.now_ns()
        for limit in before.keys() & now_rates:
            used_ns = self._next_ns[limit] - now_ns
            if used_ns > 0:
                self._next_ns[limit] = now_ns + used_ns * before[limit] // now_rates[limit]
        self._rates = now_rates
        self._next_ns = {limit: self._next_ns.get(limit, 0) for limit in now_rates}
        self._moves = moves
        self._queue_anew()
        self._go_on()

    def _queue_anew(self) -> None:
        before, self._waiting, self._due_first = self._waiting, {}, []
        jobs = [(job, key) for waiting in before.values() for key, job in waiting.items()]
        for job, key in sorted(jobs, key=lambda found: found[0].number):
            self._wait(key, job)

    def run(
        self, key: Hashable, size: int, job: Callable[[], None], *, due_ns: int = NEVER_NS
    ) -> None:
        """Run a job that moves at most `size` bytes, when its limits admit it, or at `due_ns`.

        `ended` must follow. It replaces the waiting job of its key, in its place. An operator's
        limit applies regardless of `due_ns`.
        """
        self._number += 1
        if key in self._running:
            self._behind[key] = _Job(self._number, size, job, due_ns)
            return
        before = self._queue_of(key).get(key)
        number = self._number if before is None else before.number
        self._wait(key, _Job(number, size, job, due_ns))
        self._go_on()

    def _queue_of(self, key: Hashable) -> dict[Hashable, _Job]:
        return self._waiting.setdefault(self._moves.get(key, _CATCH_UP), {})

    def _wait(self, key: Hashable, job: _Job) -> None:
        self._queue_of(key)[key] = job
        if job.due_ns < NEVER_NS and key not in self._moves:
            heappush(self._due_first, (job.due_ns, job.number, key))

    def now_ns(self) -> int:
        """Return the present time of the clock of due times."""
        return self._clock.now_ns()

    def withdraw(self, key: Hashable) -> None:
        """Drop the job of this key, unless it has begun."""
        self._queue_of(key).pop(key, None)
        self._behind.pop(key, None)

    def ended(self, key: Hashable, less: int) -> None:
        """End the running job of this key.

        It moved `less` bytes fewer than it might have, which others may use; or more, because a
        batch is never cut.
        """
        for limit in self._running.pop(key):
            if limit in self._rates:
                self._next_ns[limit] -= less * _SECOND_NS // self._rates[limit]
        behind = self._behind.pop(key, None)
        if behind is not None:
            self._wait(key, behind)
        self._go_on()

    def _go_on(self) -> None:
        if self._is_starting:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._clock.now_ns()
        self._is_starting = True
        while (limits := self._first_that_may(now_ns)) is not None:
            self._begin(next(iter(self._waiting[limits])), limits, now_ns)
        while (due_ns := self._first_due_ns()) <= now_ns:
            self._begin(self._due_first[0][2], (), now_ns)
        self._is_starting = False
        next_ns = min((self._next_of(limits) for limits in self._in_use()), default=NEVER_NS)
        if next_ns < NEVER_NS:
            wait_ns = max(0, min(next_ns, due_ns) - now_ns)
            self._timer = self._clock.call_later(wait_ns, self._due)

    def _in_use(self) -> list[Limits]:
        """Return the limits for which jobs wait, in the order of their first ones."""
        in_use = [limits for limits, jobs in self._waiting.items() if jobs]
        return sorted(in_use, key=lambda limits: next(iter(self._waiting[limits].values())).number)

    def _next_of(self, limits: Limits) -> int:
        """Return when the next job with these limits may begin."""
        return max(self._next_ns[limit] for limit in limits)

    def _first_that_may(self, now_ns: int) -> Limits | None:
        return next((limits for limits in self._in_use() if self._next_of(limits) <= now_ns), None)

    def _begin(self, key: Hashable, limits: Limits, now_ns: int) -> None:
        """Begin the waiting job of this key, whose bytes count for the limits."""
        job = self._queue_of(key).pop(key)
        self._running[key] = limits
        earliest_ns = now_ns - BURST_NS if limits == _CATCH_UP else now_ns
        for limit in limits:
            start_ns = max(self._next_ns[limit], earliest_ns)
            self._next_ns[limit] = start_ns + job.size * _SECOND_NS // self._rates[limit]
        job.run()

    def _first_due_ns(self) -> int:
        """Return when the first waiting job becomes due regardless of the limit."""
        heap, waiting = self._due_first, self._waiting.get(_CATCH_UP, {})
        while heap:
            due_ns, _, key = heap[0]
            job = waiting.get(key)
            if job is not None and job.due_ns == due_ns:
                return due_ns
            heappop(heap)
        return NEVER_NS

    def _due(self) -> None:
        self._timer = None
        self._go_on()


class Gain:
    """Write rate of a group, in entries, and when slow followers must be fed to gain on it.

    Measured only while a follower is far behind: it costs appends nothing. Entries count, not
    bytes: a follower gains on the log's end if it is fed more entries than are written.
    """

    __slots__ = ("_fed", "_seen")

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []
        """(time, the log's last index), oldest first: the last `GAIN_NS`, and one before."""
        self._fed: dict[Hashable, tuple[int, int]] = {}
        """By follower: when it was last fed, and how many entries."""

    def fed(self, follower: Hashable, count: int, now_ns: int) -> None:
        """Note that `count` entries are sent to a follower."""
        self._fed[follower] = now_ns, count

    def forget(self, follower: Hashable) -> None:
        """Forget a follower that is no member any more."""
        self._fed.pop(follower, None)

    def due_ns(self, follower: Hashable, last_index: Index, now_ns: int) -> int:
        """Return when the follower must be fed again to gain; `NEVER_NS` without writes."""
        seen = self._seen
        if not seen or now_ns > seen[-1][0]:
            seen.append((now_ns, last_index))
        while len(seen) > 2 and now_ns - seen[1][0] >= GAIN_NS:
            del seen[0]
        since_ns, before = seen[0]
        written = last_index - before
        if written <= 0 or now_ns <= since_ns:
            return NEVER_NS
        began_ns, count = self._fed.get(follower, (now_ns, 0))
        return began_ns + count * (now_ns - since_ns) // (GAIN * written)
