"""Long requests are decoded in a thread, in turns between those who sent them.

To decode 200,000 elements takes a tenth of a second and more. A thread that does it holds the
interpreter for a few milliseconds at a time, and the loop goes on. One request is decoded at a
time: more would not be faster. Those of one asker wait for each other, and others for one of them.

Bytes alone do not tell what is long: those of a Produce are records, which are not looked at then.
So the loop begins to decode, up to `LOOP_ELEMENTS`, and leaves to the thread what has more.

Must not know: connections, which APIs there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from vdl.kafka.fair_queue import FairQueue
from vdl.kafka.host import Compute

LOOP_BYTES = 32 << 10
"""A request of no more is decoded on the loop. A Produce may have more: records are not copied."""

_Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Decoding:
    """The decoding of one server. Called on the loop."""

    __slots__ = ("_compute", "_is_running", "_waiting", "left_loop")

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._waiting: FairQueue[_Job] = FairQueue()
        self._is_running = False
        self.left_loop = 0
        """Requests that were decoded in a thread."""

    def run(self, asker: str, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have `job` done in the turn of `asker`; `done` gets its result or exception. It may be
        called at once."""
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
