"""Decoding of long requests in a thread, in fair order of the askers (`ConnectionInfo.asker`).

Decoding 200,000 elements takes a tenth of a second and more. A thread that does it holds the
interpreter for a few milliseconds at a time, so the loop continues to run. One request is decoded
at a time, because more would not be faster. Requests of one asker wait for each other; a request of
another asker waits for at most one of them.

The size in bytes does not show how long a request takes: a Produce consists mostly of records,
which are not decoded then. So the loop begins to decode, up to `LOOP_ELEMENTS`, and passes longer
requests to the thread.

Does not depend on connections or APIs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vdl.kafka.fair_queue import FairQueue
from vdl.kafka.host import Compute

LOOP_BYTES = 32 << 10
"""Size up to which a request is decoded on the loop. A Produce may be larger, because its records
are not copied."""

_Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Decoding:
    """Queue of the requests to decode on one server. Called on the loop."""

    __slots__ = ("_compute", "_is_running", "_waiting", "left_loop")

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._waiting: FairQueue[_Job] = FairQueue()
        self._is_running = False
        self.left_loop = 0
        """Number of requests that were decoded in a thread."""

    def run(self, asker: str, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `job` in the turn of `asker`, and pass its result or exception to `done`.

        `done` may be called within this call.
        """
        self.left_loop += 1
        self._waiting.put(asker, (job, done))
        self._start()

    def _start(self) -> None:
        while self._waiting and not self._is_running:
            job, done = self._waiting.take()
            self._is_running = True
            self._compute(job, partial(self._done, done))

    def _done(self, done: Callable[[Any], None], outcome: Any) -> None:
        self._is_running = False
        self._start()
        done(outcome)
