"""Fetch for consumers before 0.11: batches are converted to message sets, off the loop.

One response is converted at a time: the work is Python's, and parallel threads would only delay the
loop. The others wait in line, at most one for each connection, because a connection starts no other
request meanwhile. The batches they hold are charged to their accounts of response memory. A
response has at most `BYTES_MAX` of messages plus one message, and at most `RECORDS_MAX` records
plus those of one wrapper, so no conversion takes long. Partitions are read from a varying first
one (`first_of`), so that each gets its turn.

Does not depend on requests, connections or logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from vdl.kafka.host import Compute
from vdl.records.legacy import MAGIC_1_FETCH_VERSION, DownConverted, down_convert

BYTES_MAX = 2 << 20
"""Bytes of messages in a response."""
RECORDS_MAX = 20_000
"""Records in a response. A compressed batch may hold very many in few bytes."""

Outcome = list[DownConverted | None] | BaseException
"""Result of each part in order, None if it was not reached; or an unexpected exception."""


class ToConvert:
    """Batches read from one partition. `first_offset`: first offset that the consumer wants.
    `bytes_max`: bytes of messages; the first one is sent at any size."""

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
        """Responses converted."""

    def first_of(self, count: int) -> int:
        """Return which of `count` partitions is read first. Old consumers always list them in one
        order, and their responses had no total bound: without this, the first partitions would take
        all the room each time."""
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
        """Convert the parts; `done` receives the outcome. `version`: of the Fetch; `bytes_max`: of
        its response."""
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
    """Convert all parts of a response. Runs off the loop."""
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
