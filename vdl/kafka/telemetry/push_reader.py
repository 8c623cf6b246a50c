"""Decompression and parsing of clients' pushes off the loop, one at a time.

The compute threads have other work: producers' batches wait for them. So pushes use at most one of
them, in fair order of the askers. `WAITING_OF_ONE_MAX` pushes of an asker may wait, and
`WAITING_MAX` in all; their bytes are counted with their requests.

Does not depend on requests, or on the meaning of the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vdl.errors import ErrorCode
from vdl.kafka.fair_queue import FairQueue
from vdl.kafka.host import Compute
from vdl.kafka.telemetry.otlp import BadMetrics, Point, read_points
from vdl.records.compression import Compression, CorruptCompression, decompress

WAITING_MAX = 64
WAITING_OF_ONE_MAX = 4

Outcome = list[Point] | ErrorCode | BaseException
"""The points of a push, INVALID_RECORD, or an unexpected exception."""
_Push = tuple[Callable[[], Outcome], Callable[[Outcome], None]]


class PushReader:
    """Queue of pushes to read; see the module."""

    __slots__ = ("_compute", "_count", "_is_running", "_waiting", "read_total")

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._waiting: FairQueue[_Push] = FairQueue()
        self._count = 0
        """Number of pushes in `_waiting`."""
        self._is_running = False
        self.read_total = 0

    def read(
        self, asker: str, codec: Compression, data: bytes, done: Callable[[Outcome], None]
    ) -> bool:
        """Queue a push; `done` gets the outcome. Return False if too many wait."""
        if self._count >= WAITING_MAX or self._waiting.waiting(asker) >= WAITING_OF_ONE_MAX:
            return False
        self._count += 1
        self._waiting.put(asker, (partial(_read, codec, data), done))
        self._start()
        return True

    def _start(self) -> None:
        if self._waiting and not self._is_running:
            job, done = self._waiting.take()
            self._count -= 1
            self._is_running = True
            self._compute(job, partial(self._done, done))

    def _done(self, done: Callable[[Outcome], None], outcome: Outcome) -> None:
        self._is_running = False
        self.read_total += 1
        self._start()
        done(outcome)


def _read(codec: Compression, data: bytes) -> Outcome:
    """Decompress and parse a push. Runs off the loop."""
    try:
        return read_points(decompress(codec, data))
    except (CorruptCompression, BadMetrics):
        return ErrorCode.INVALID_RECORD
