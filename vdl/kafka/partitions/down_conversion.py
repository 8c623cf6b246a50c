"""Fetch for consumers before 0.11: what was read becomes message sets, off the loop.

One answer is converted at a time: the work is Python's, and threads beside one another would only
delay the loop. The others wait in line; a connection asks for nothing else meanwhile, so it has one
place. What they hold is charged to their accounts of answers as what was read. An answer has at
most `BYTES_MAX` of messages and one more, and of records `RECORDS_MAX` and a wrapper's, so none
takes long. A partition that is not looked at for that is the first one at another time.

Must not know: requests, connections, logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from vdl.kafka.host import Compute
from vdl.records.legacy import MAGIC_1_FETCH_VERSION, DownConverted, down_convert

BYTES_MAX = 2 << 20
"""Of messages in an answer."""
RECORDS_MAX = 20_000
"""In an answer. Compressed, so many more fit its bytes."""

Outcome = list[DownConverted | None] | BaseException
"""Of each part, in their order, None where it was not looked at; or what should not be."""


class ToConvert:
    """What was read of one partition. `first_offset`: of what its consumer wants. `bytes_max`: of
    messages; the first one is sent whatever its size."""

    __slots__ = ("buffers", "bytes_max", "first_offset")

    def __init__(self, buffers: Sequence[memoryview], first_offset: int, bytes_max: int) -> None:
        self.buffers = buffers
        self.first_offset = first_offset
        self.bytes_max = bytes_max


class DownConversion:
    """The conversions of one server."""

    __slots__ = ("_compute", "_is_running", "_turns", "_waiting", "converted")

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._waiting: deque[tuple[Callable[[], Outcome], Callable[[Outcome], None]]] = deque()
        self._is_running = False
        self._turns = 0
        self.converted = 0
        """Answers."""

    def first_of(self, count: int) -> int:
        """Which of so many partitions is read first. Old consumers always name them in one order,
        and answers had no bound as a whole then: the first ones must not take all of it each time.
        """
        self._turns += 1
        return (self._turns * 0x9E3779B1 & 0xFFFFFFFF) * count >> 32

    def convert(
        self,
        parts: list[ToConvert],
        done: Callable[[Outcome], None],
        *,
        version: int,
        bytes_max: int,
    ) -> None:
        """`done` gets the outcome. `version`: of the Fetch; `bytes_max`: of its answer."""
        magic = 1 if version >= MAGIC_1_FETCH_VERSION else 0
        self._waiting.append((partial(_convert_all, parts, magic, bytes_max), done))
        self._start()

    def _start(self) -> None:
        if self._waiting and not self._is_running:
            job, done = self._waiting.popleft()
            self._is_running = True
            self._compute(job, partial(self._done, done))

    def _done(self, done: Callable[[Outcome], None], outcome: Outcome) -> None:
        self._is_running = False
        self.converted += 1
        self._start()
        done(outcome)


def _convert_all(parts: list[ToConvert], magic: int, bytes_max: int) -> list[DownConverted | None]:
    """Off the loop."""
    left = bytes_max
    records_left = RECORDS_MAX
    outcome: list[DownConverted | None] = []
    for part in parts:
        if outcome and (left <= 0 or records_left <= 0):
            outcome.append(None)
            continue
        converted = down_convert(
            part.buffers,
            magic=magic,
            first_offset=part.first_offset,
            bytes_max=min(part.bytes_max, left),
            records_max=records_left,
        )
        left -= converted.bytes
        records_left -= converted.records
        outcome.append(converted)
    return outcome
