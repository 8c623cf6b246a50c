"""A thread for one kind of computation: TLS handshakes, passwords of logins, patterns.

A computation that any client can request has a thread of its own, which no other work waits for: a
flood of requests delays only itself. OpenSSL computes without Python's lock.

Does not depend on the computation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], Callable[[Any], None]]
Ring = Callable[[Callable[[Any], None], object], object]


class SideThread:
    """Runs jobs in one thread, one after the other."""

    def __init__(self, name: str, ring: Ring) -> None:
        """`ring(fn, argument)`, from any thread, runs `fn(argument)` on the loop."""
        self._ring = ring
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a job; `done` receives the result, or the exception raised, on the loop."""
        self._jobs.put((job, done))

    @property
    def waiting(self) -> int:
        """Number of jobs that have not begun."""
        return self._jobs.qsize()

    def _work(self) -> None:
        while True:
            job, done = self._jobs.get()
            result: Any
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - the loop decides what a failure means
                result = error
            self._ring(done, result)
            del job, done, result  # a secret must not stay until the next job
