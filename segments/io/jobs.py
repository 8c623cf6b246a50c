"""Blocking work of one store: a directory is released only when none of its jobs is running.

A job that writes after another process has taken the directory would overwrite that process's data.
So a store submits all its work through `Jobs`, which tracks unfinished jobs. After `over` no
further job begins, as in a killed process, and no `done` is called. `then` is called when the last
running job has ended.

Threads take no locks. A job sets its flag `has_begun` before it checks if it may run; `over`
forbids it before it checks which jobs have begun.

Does not depend on what the jobs do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from segments.api import Buffer, Workers, Write

T = TypeVar("T")


class _Job:
    """One job: `run` is called in the thread, everything else on the loop."""

    __slots__ = ("done", "has_begun", "has_ended", "jobs", "work")

    def __init__(self, jobs: Jobs, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs = jobs
        self.work = work
        self.done = done
        self.has_begun = False
        self.has_ended = False

    def run(self) -> Any:
        self.has_begun = True
        try:
            return None if self.jobs.is_over else self.work()
        finally:
            self.has_ended = True


class _WriteJob(_Job):
    """A durable write, which begins in a thread or in the kernel."""

    __slots__ = ("write",)

    write: Write

    def place(self) -> tuple[int, Sequence[Buffer], int] | None:
        """See `Write.place`. The caller begins it, or runs the job."""
        place = None if self.jobs.is_over else self.write.place()
        self.has_begun = place is not None
        return place


class Jobs:
    """`segments.api.Workers` for one store.

    `on_rest` is called on the loop when all submitted jobs have ended.
    """

    __slots__ = ("_handed", "_then", "_workers", "call_later", "is_over", "on_rest")

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.call_later = workers.call_later
        self._handed: set[_Job] = set()
        self._then: Callable[[], None] | None = None
        self.is_over = False
        self.on_rest: Callable[[], None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._handed

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        handed = _Job(self, job, done)
        self._handed.add(handed)
        self._workers.journal(handed.run, partial(self._ended, handed))

    def write(self, write: Write, done: Callable[[int | BaseException], None]) -> None:
        handed = _WriteJob(self, write.run, done)
        handed.write = write
        self._handed.add(handed)
        self._workers.write(handed, partial(self._ended, handed))

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        handed = _Job(self, job, done)
        self._handed.add(handed)
        self._workers.payload(handed.run, partial(self._ended, handed))

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        handed = _Job(self, job, done)
        self._handed.add(handed)
        self._workers.pool(handed.run, partial(self._ended, handed))

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        handed = _Job(self, job, done)
        self._handed.add(handed)
        self._workers.essential(handed.run, partial(self._ended, handed))

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        handed = _Job(self, job, done)
        self._handed.add(handed)
        self._workers.files(handed.run, partial(self._ended, handed))

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run a job that touches no file; the directory is released without waiting for it."""
        self._workers.compute(job, done)

    def over(self, then: Callable[[], None]) -> None:
        """Let no further job begin and no `done` be called; call `then` when none is running."""
        self.is_over = True
        self._then = then
        self._look(then)

    def _ended(self, handed: _Job, result: object) -> None:
        self._handed.discard(handed)
        if not self.is_over:
            handed.done(result)
            if self.on_rest is not None and not self._handed:
                self.on_rest()
        if self._then is not None:
            self._look(self._then)

    def _look(self, then: Callable[[], None]) -> None:
        if not any(job.has_begun and not job.has_ended for job in self._handed):
            self._then = None
            then()
