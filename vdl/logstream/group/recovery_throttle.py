"""Rate limit for feeding followers that are far behind from disk.

They read data that no other reader needs, and may read all of it: without a limit they would take
the disk and the links from the followers that are in step. One limit in bytes serves all groups
that a server leads, in turns.

With this limit alone a follower could stay behind for ever when producers are faster. So each
follower may also be fed `GAIN` times as fast as its group is written to, whatever others use:
`Gain` measures that, and `run` takes the time at which a job is due by it.

Jobs have a key, which stands for the party that they serve: of each key at most one runs and one
waits, and the waiting one can be withdrawn (`keyed_jobs.py`). Otherwise each reset of a link would
leave an unneeded read behind, for which needed ones would wait.

Does not depend on what is read, or what a key stands for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from heapq import heappop, heappush

from ids import Index
from vdl.clock import Clock, Timer
from vdl.logstream.group.keyed_jobs import KeyedJobs

_SECOND_NS = 1_000_000_000
BURST_NS = 100_000_000
"""A pause of up to this length may be compensated at once."""
GAIN = 2
"""Minimum rate at which a follower is fed, as a multiple of its group's write rate."""
GAIN_NS = _SECOND_NS
"""Approximate period over which the write rate is measured."""
NEVER_NS = 1 << 63

_Job = tuple[int, Callable[[], None], int]
"""(bytes it may move at most, the job, time at which it may begin regardless of the limit)."""


class RecoveryThrottle:
    """Rate limit of one server's recovery reads."""

    __slots__ = (
        "_bytes_per_second", "_clock", "_due_first", "_is_starting",
        "_jobs", "_next_ns", "_number", "_timer",
    )  # fmt: skip

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._next_ns = 0
        """Time at which the next read may begin: when all so far have used their share."""
        self._jobs: KeyedJobs[_Job, bool] = KeyedJobs()
        """The terms of a job: True if its bytes count for the limit."""
        self._due_first: list[tuple[int, int, Hashable]] = []
        """Heap of (time, number, key) of jobs that become due regardless of the limit. It may
        contain jobs that wait no longer, which are dropped when they come up."""
        self._is_starting = False
        """True while jobs are started. A job may end before it returns: the loop that began it
        continues, not a nested one."""
        self._timer: Timer | None = None
        self._number = 0

    def run(
        self, key: Hashable, size: int, job: Callable[[], None], *, due_ns: int = NEVER_NS
    ) -> None:
        """Run a job that moves at most `size` bytes, when the limit admits it, or at `due_ns`.

        `ended` must follow. It replaces the waiting job of its key.
        """
        if self._jobs.add(key, (size, job, due_ns)):
            self._note_due(key, due_ns)
            self._go_on()

    def _note_due(self, key: Hashable, due_ns: int) -> None:
        if due_ns < NEVER_NS:
            self._number += 1
            heappush(self._due_first, (due_ns, self._number, key))

    def now_ns(self) -> int:
        """Return the present time of the clock of due times."""
        return self._clock.now_ns()

    def withdraw(self, key: Hashable) -> None:
        """Drop the job of this key, unless it has begun."""
        self._jobs.withdraw(key)

    def ended(self, key: Hashable, less: int) -> None:
        """End the running job of this key.

        It moved `less` bytes fewer than it might have, which others may use.
        """
        counts, behind = self._jobs.end(key)
        if behind is not None:
            self._note_due(key, behind[2])
        if counts:
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
        waiting = self._jobs.waiting
        while waiting and self._next_ns <= now_ns:
            key = next(iter(waiting))
            start_ns = max(self._next_ns, now_ns - BURST_NS)
            self._next_ns = start_ns + waiting[key][0] * _SECOND_NS // self._bytes_per_second
            self._begin(key, counts=True)
        while (due_ns := self._first_due_ns()) <= now_ns:
            self._begin(self._due_first[0][2], counts=False)
        self._is_starting = False
        if waiting and self._timer is None:
            wait_ns = max(0, min(self._next_ns, due_ns) - now_ns)
            self._timer = self._clock.call_later(wait_ns, self._due)

    def _begin(self, key: Hashable, *, counts: bool) -> None:
        _, job, _ = self._jobs.begin(key, counts)
        job()

    def _first_due_ns(self) -> int:
        """Return when the first waiting job becomes due regardless of the limit."""
        heap = self._due_first
        while heap:
            due_ns, _, key = heap[0]
            job = self._jobs.waiting.get(key)
            if job is not None and job[2] == due_ns:
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
        self._seen: deque[tuple[int, int]] = deque()
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
            seen.popleft()
        since_ns, before = seen[0]
        written = last_index - before
        if written <= 0 or now_ns <= since_ns:
            return NEVER_NS
        began_ns, count = self._fed.get(follower, (now_ns, 0))
        return began_ns + count * (now_ns - since_ns) // (GAIN * written)
