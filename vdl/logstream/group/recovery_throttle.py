"""How fast followers that are far behind are fed from disk.

They read what nobody else reads, and may read all of it: without a limit they would take the disk
and the links from the producers' followers. One limit in bytes serves all groups a server leads,
which take turns.

A limit alone would leave a follower behind for ever when producers are faster. So each may also be
fed `GAIN` times as fast as its group is written to, whatever others take (`Gain` measures that,
and `run` is told when the job is due by it).

Jobs have a key, which says for whom they are: of each key at most one runs and one waits, and the
one that waits can be withdrawn (`keyed_jobs.py`). Without that each reset of a link would leave a
read behind that nobody needs, and those who do need theirs would wait for all of them.

Must not know: what is read, what a key stands for.
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
"""A pause of this length may be made up for at once."""
GAIN = 2
"""How many times as fast as its group is written to a follower is fed at least."""
GAIN_NS = _SECOND_NS
"""Over how long that is measured, about."""
NEVER_NS = 1 << 63

_Job = tuple[int, Callable[[], None], int]
"""The most bytes it may move, what it does, when it may begin whatever others take."""


class RecoveryThrottle:
    """See the module."""

    __slots__ = (
        "_bytes_per_second", "_clock", "_due_first", "_is_starting",
        "_jobs", "_next_ns", "_number", "_timer",
    )  # fmt: skip

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._next_ns = 0
        """When the next read may begin: when all so far have taken their time."""
        self._jobs: KeyedJobs[_Job, bool] = KeyedJobs()
        """A job runs on whether its bytes count for the limit."""
        self._due_first: list[tuple[int, int, Hashable]] = []
        """A heap of (when, number, key) of jobs that are due by themselves; also of some that wait
        no longer, dropped when they come up."""
        self._is_starting = False
        """A job may end before it returns: the loop that began it goes on, not one within it."""
        self._timer: Timer | None = None
        self._number = 0

    def run(
        self, key: Hashable, size: int, job: Callable[[], None], *, due_ns: int = NEVER_NS
    ) -> None:
        """Run a job that moves at most `size` bytes, now or when it is its turn, at `due_ns` at the
        latest; `ended` must follow. It takes the place of the one of its key that waits."""
        if self._jobs.add(key, (size, job, due_ns)):
            self._note_due(key, due_ns)
            self._go_on()

    def _note_due(self, key: Hashable, due_ns: int) -> None:
        if due_ns < NEVER_NS:
            self._number += 1
            heappush(self._due_first, (due_ns, self._number, key))

    def now_ns(self) -> int:
        """The clock that due times are of."""
        return self._clock.now_ns()

    def withdraw(self, key: Hashable) -> None:
        """The job of this key is not needed any more: it does not run, unless it has begun."""
        self._jobs.withdraw(key)

    def ended(self, key: Hashable, less: int) -> None:
        """The job of this key that ran is over. It moved `less` bytes fewer than it might have:
        others may use its time."""
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
        """When the first job that waits is due by itself."""
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
    """How fast a group is written to, in entries, and when by that each of its followers that are
    far behind is to be fed again. Looked at only while one is: it costs appends nothing. What
    counts is entries, not bytes: to gain on the log's end is to be fed more than are written."""

    __slots__ = ("_fed", "_seen")

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()
        """(time, the log's last index), oldest first: the last `GAIN_NS`, and one before."""
        self._fed: dict[Hashable, tuple[int, int]] = {}
        """By follower: when it was last fed, and how many entries."""

    def fed(self, follower: Hashable, count: int, now_ns: int) -> None:
        """A follower is sent so many entries."""
        self._fed[follower] = now_ns, count

    def forget(self, follower: Hashable) -> None:
        """It is no member any more."""
        self._fed.pop(follower, None)

    def due_ns(self, follower: Hashable, last_index: Index, now_ns: int) -> int:
        """When it is to be fed again so that it gains; `NEVER_NS` while nothing is written."""
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
