"""A thread of its own for one kind of computing: handshakes of TLS, passwords of logins,
patterns.

Those that anybody can ask for have a thread that nothing else waits for: a flood of them delays
itself. OpenSSL computes without Python's lock.

Must not know: what is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Job = tuple[Callable[[], Any], Callable[[Any], None]]
Ring = Callable[[Callable[[Any], None], object], object]


class SideThread:
    """`run` has jobs done one after the other."""

    def __init__(self, name: str, ring: Ring) -> None:
        """`ring(fn, argument)`, from any thread, has `fn(argument)` run on the loop."""
        self._ring = ring
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """`done` gets the result, or the exception that was raised, on the loop."""
        self._jobs.put((job, done))

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
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
