"""Long requests are decoded in a thread, in turns between those who sent them.

To decode 200,000 elements takes a tenth of a second and more. A thread that does it holds the
interpreter for a few milliseconds at a time, and the loop goes on. One request is decoded at a
time: more would not be faster. Those of one asker wait for each other, and others for one of them.
The thread takes the interpreter from the loop, so an asker that has much decoded rests in between
(`rests.py`).

Bytes alone do not tell what is long: those of a Produce are records, which are not looked at then.
So the loop begins to decode, up to `LOOP_ELEMENTS`, and leaves to the thread what has more.

Must not know: connections, which APIs there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from vdl.clock import Clock
from vdl.kafka.fair_queue import FairQueue
from vdl.kafka.host import Compute
from vdl.kafka.limits.rests import Rests

LOOP_BYTES = 32 << 10
"""A request of no more is decoded on the loop. A Produce may have more: records are not copied."""


class _Job(NamedTuple):
    asker: str
    job: Callable[[], Any]
    done: Callable[[Any], None]


class Decoding:
    """The decoding of one server. Called on the loop."""

    __slots__ = (
        "_clock",
        "_compute",
        "_cpu_ns",
        "_is_running",
        "_resting",
        "_rests",
        "_waiting",
        "left_loop",
    )

    def __init__(
        self, compute: Compute, clock: Clock, rests: Rests, cpu_ns: Callable[[], int]
    ) -> None:
        """`cpu_ns`: processor time of the thread it is called in (ns)."""
        self._compute = compute
        self._clock = clock
        self._rests = rests
        self._cpu_ns = cpu_ns
        self._waiting: FairQueue[_Job] = FairQueue()
        self._resting: dict[str, list[_Job]] = {}
        """By asker. Invariant: none is empty, and each has a timer."""
        self._is_running = False
        self.left_loop = 0
        """Requests that were decoded in a thread."""

    def run(self, asker: str, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have `job` done in the turn of `asker`; `done` gets its result or exception. It may be
        called at once."""
        self.left_loop += 1
        self._waiting.put(asker, _Job(asker, job, done))
        self._start()

    def _start(self) -> None:
        while self._waiting and not self._is_running:
            one = self._waiting.take()
            left_ns = self._rests.left_ns(one.asker)
            if left_ns:
                self._let_rest(one, left_ns)
                continue
            self._is_running = True
            self._compute(partial(self._measured, one.job), partial(self._done, one))

    def _let_rest(self, one: _Job, left_ns: int) -> None:
        """It is not its asker's turn yet."""
        if one.asker not in self._resting:
            self._resting[one.asker] = []
            self._clock.call_later(left_ns, partial(self._rested, one.asker))
        self._resting[one.asker].append(one)

    def _rested(self, asker: str) -> None:
        for one in self._resting.pop(asker):
            self._waiting.put(asker, one)
        self._start()

    def _measured(self, job: Callable[[], Any]) -> tuple[int, Any]:
        """What it took (ns of processor), and its result. In the thread."""
        began_ns = self._cpu_ns()
        result = job()
        return self._cpu_ns() - began_ns, result

    def _done(self, one: _Job, outcome: tuple[int, Any] | BaseException) -> None:
        self._is_running = False
        if isinstance(outcome, BaseException):
            result: Any = outcome
        else:
            used_ns, result = outcome
            self._rests.used(one.asker, used_ns)
        self._start()
        one.done(result)
