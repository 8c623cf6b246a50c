"""Workers without threads, for tests and for tools without a loop.

Jobs queue until they are pumped, and time is advanced explicitly.

Does not depend on what the jobs do.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from segments.api import Write

T = TypeVar("T")


class InlineTimer:
    """A timer of `InlineWorkers`."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], None]) -> None:
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None


class InlineWorkers:
    """Jobs queue in order; `pump` runs them on the caller's thread.

    The current time is `now_ms`.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.journal_jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.payload_jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.pool_jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._timers: list[tuple[int, int, InlineTimer]] = []
        self._timer_count = 0

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.journal_jobs.append((job, done))

    def write(self, write: Write, done: Callable[[int | BaseException], None]) -> None:
        self.journal(write.run, done)

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.payload_jobs.append((job, done))

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool_jobs.append((job, done))

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool_jobs.append((job, done))

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool(job, done)

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.pool(job, done)

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> InlineTimer:
        timer = InlineTimer(fn)
        self._timer_count += 1
        heapq.heappush(self._timers, (self.now_ms + delay_ms, self._timer_count, timer))
        return timer

    def run_one(self, jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]]) -> None:
        """Run the oldest job of `jobs` and its completion."""
        job, done = jobs.popleft()
        result: Any
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - a worker hands every failure to its owner
            result = error
        done(result)

    def pump(self) -> None:
        """Run all jobs, jobs they start, and due timers, until none is left."""
        while True:
            if self.journal_jobs:
                self.run_one(self.journal_jobs)
            elif self.payload_jobs:
                self.run_one(self.payload_jobs)
            elif self.pool_jobs:
                self.run_one(self.pool_jobs)
            elif self._timers and self._timers[0][0] <= self.now_ms:
                timer = heapq.heappop(self._timers)[2]
                if timer.fn is not None:
                    timer.fn()
            else:
                return

    def advance(self, ms: int) -> None:
        """Advance time by `ms`, running timers in order and pumping in between."""
        end_ms = self.now_ms + ms
        self.pump()
        while self._timers and self._timers[0][0] <= end_ms:
            self.now_ms = max(self.now_ms, self._timers[0][0])
            self.pump()
        self.now_ms = end_ms
