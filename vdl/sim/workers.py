"""Workers for a simulated process's blocking jobs, on virtual time.

There is one worker for the journal, one for the large appends its blocks refer to, one for
essential jobs, one for checkpoints and chores, and a small pool. Jobs that only compute take a time
of their own and end in another order than they began.

A job does its work when it starts and completes when its virtual time is over: only then are its
effects durable and its caller notified (see `disk`). Callbacks end with their process; the disk
draws how far its running jobs got. A process that ends before it has opened its store has
`NoWorkers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from segments.api import Write
from vdl.clock import MS
from vdl.sim.clock import NodeClock, SimTimer
from vdl.sim.disk import SimDisk, Step

T = TypeVar("T")
POOL_WORKERS = 4
COMPUTE_NS = (30_000, 900_000, 5_000, 200_000, 3_000_000, 70_000, 10_000)
"""Duration of compute jobs, in turn."""


class NoWorkers:
    """`segments.api.Workers` of a process that ends before any job could begin."""

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do nothing: the job does not begin."""

    def write(self, write: Write, done: Callable[[int | BaseException], None]) -> None:
        """Do nothing: the write does not begin."""

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do nothing: the job does not begin."""

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do nothing: the job does not begin."""

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do nothing: the job does not begin."""

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do nothing: the job does not begin."""

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do nothing: the job does not begin."""

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> NoTimer:
        return NoTimer()


class NoTimer:
    """A timer that never runs."""

    def cancel(self) -> None:
        """Do nothing: there is nothing to stop."""


class SimWorkers:
    """`segments.api.Workers` on virtual time, for one process."""

    def __init__(self, clock: NodeClock, disk: SimDisk) -> None:
        self._clock = clock
        self._disk = disk
        self._journal: deque[Callable[[], None]] = deque()
        self._journal_busy = False
        self._payload: deque[Callable[[], None]] = deque()
        self._payload_busy = False
        self._pool: deque[Callable[[], None]] = deque()
        self._pool_busy = 0
        self._essential: deque[Callable[[], None]] = deque()
        self._essential_busy = False
        self._files: deque[Callable[[], None]] = deque()
        self._files_busy = False
        self._starved = False
        self.on_journal: Callable[[], None] = _nothing
        """Called with each job for the journal: data was staged."""
        self._running: dict[int, list[Step]] = {}
        self._jobs = 0
        self._computed = 0

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.on_journal()
        self._journal.append(lambda: self._run(job, done, self._journal_done))
        if not self._journal_busy:
            self._journal_next()

    def write(self, write: Write, done: Callable[[int | BaseException], None]) -> None:
        self.journal(write.run, done)

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._payload.append(lambda: self._run(job, done, self._payload_done))
        if not self._payload_busy:
            self._payload_next()

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._pool.append(lambda: self._run(job, done, self._pool_done))
        if self._pool_busy < POOL_WORKERS:
            self._pool_next()

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        cost_ns = COMPUTE_NS[self._computed % len(COMPUTE_NS)]
        self._computed += 1
        self._clock.call_later(cost_ns, lambda: done(job()))

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._essential.append(lambda: self._run(job, done, self._essential_done))
        if not self._essential_busy:
            self._essential_next()

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._files.append(lambda: self._run(job, done, self._files_done))
        self._files_next()

    def starve(self, *, is_starved: bool) -> None:
        """Hold back checkpoints and chores, as if their disk hung. The journal goes on."""
        self._starved = is_starved
        self._files_next()

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> SimTimer:
        return self._clock.call_later(delay_ms * MS, fn)

    @property
    def under_way(self) -> int:
        """Number of jobs that run or wait."""
        waiting = (self._journal, self._payload, self._pool, self._essential)
        return len(self._running) + sum(map(len, waiting))

    def die(self) -> None:
        """End the process: cut the running jobs at a random step."""
        running = [self._running[job] for job in sorted(self._running)]
        self._running.clear()
        self._journal.clear()
        self._payload.clear()
        self._pool.clear()
        self._essential.clear()
        self._files.clear()
        self._disk.cut_jobs(running)

    def _run(
        self,
        job: Callable[[], T],
        done: Callable[[T | BaseException], None],
        free: Callable[[], None],
    ) -> None:
        result, steps, cost_ns = self._disk.run_job(job)
        self._jobs += 1
        number = self._jobs
        self._running[number] = steps

        def complete() -> None:
            del self._running[number]
            for step in steps:
                if step.harden is not None:
                    step.harden()
            done(result)
            free()

        self._clock.call_later(cost_ns, complete)

    def _journal_next(self) -> None:
        if self._journal:
            self._journal_busy = True
            self._journal.popleft()()

    def _journal_done(self) -> None:
        self._journal_busy = False
        self._journal_next()

    def _payload_next(self) -> None:
        if self._payload:
            self._payload_busy = True
            self._payload.popleft()()

    def _payload_done(self) -> None:
        self._payload_busy = False
        self._payload_next()

    def _essential_next(self) -> None:
        if self._essential:
            self._essential_busy = True
            self._essential.popleft()()

    def _essential_done(self) -> None:
        self._essential_busy = False
        self._essential_next()

    def _files_next(self) -> None:
        if self._files and not (self._files_busy or self._starved):
            self._files_busy = True
            self._files.popleft()()

    def _files_done(self) -> None:
        self._files_busy = False
        self._files_next()

    def _pool_next(self) -> None:
        if self._pool:
            self._pool_busy += 1
            self._pool.popleft()()

    def _pool_done(self) -> None:
        self._pool_busy -= 1
        self._pool_next()


def _nothing() -> None:
    """Do nothing: the default of `on_journal`."""
