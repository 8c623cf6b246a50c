"""Bounds on the memory that clients make a server hold: unanswered requests, answers not yet sent.

Each of the two has one bound for the whole server. Each connection has an account with both. An
account is charged *before* memory is taken, so connections of one turn cannot spend the same room
twice.

Requests (`queued.max.request.bytes`). Counted are whole frames that are not answered, and the
buffers of frames that still arrive. `SMALL_BYTES` of each connection are not counted: heartbeats,
metadata and small batches are never held up, and cost nothing here. A connection that needs more
asks first, and is not read while there is no room. A reserve holds one largest request. It belongs
to the connection that has waited longest, until its request is whole, then to the next: requests
that are all incomplete cannot block one another.

A small request may decode to many objects. It counts as `decoded_bytes`, the most that the schema
of its version allows (`codegen/held.py`), from its start until its answer. Without room it is not
started; it waits in a queue of its own. A sixteenth of the bound is reserved for requests of
moderate size. While a request waits, long polls that hold memory are answered early.

Answers (`response.memory_max`). Counted from when an answer is built until the socket has taken it,
with all memory that its slices keep alive. Each answer is charged before the next one looks for
room, because one turn may wake many long polls. A connection gets a share of the free room, and
only a small one until it has taken more bytes than the buffers between server and client hold: it
may never read. A quarter is reserved for connections that have. Without room, a request with a
large answer is not started, and a long poll waits.

While a connection waits for room, those that hold room and make no progress are closed after a
while: see `Frontend`.

Must not know: requests, answers, sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import islice
from typing import TYPE_CHECKING

from vdl.kafka.wire.registry import HELD, VERSIONS
from vdl.kafka.wire.runtime import ELEMENTS_MAX

if TYPE_CHECKING:
    from vdl.kafka.wire.produce import ProduceRequest

SMALL_BYTES = 64 << 10
"""Bytes of one connection, in each direction, that are not counted."""
MEDIUM_BYTES = 4 << 20
"""Requests that decode to no more, such as a Fetch of a thousand partitions, have a reserve."""
UNCOUNTED_BYTES = 1 << 10
"""Answers of no more are not counted."""
FIRST_SHARE = 256
"""A connection that has not proved to read gets at most 1/256 of the room for answers."""
PROOF_SHARES = 16
"""It has proved it when it has taken 16 times as much in all."""
SHARE = 8
"""A connection gets at most an eighth of the free room."""
WOKEN_MAX = 4
"""When room is freed, the connections that have waited longest are tried, this many at a time."""

DECODED_FROM_BYTES = 512
"""A request of no more is decoded to little: no byte of a request becomes more than 128."""
_ELEMENTS_BYTES_MAX = ELEMENTS_MAX * 650
_TEXT_FACTOR = 4
"""Text of which one character needs four bytes has four for each."""
_PASSED_ON_ELEMENT_BYTES = 256
PARTITIONS_FROM_BYTES = 4 << 10
"""A Produce below that has not many partitions."""
_PARTITION_BYTES = 320


def decoded_bytes(count: int, api_key: int, version: int, *, passed_on: bool) -> int:
    """What a request of `count` bytes takes at most beside its frame, decoded and while it is under
    way; 0 if little. `passed_on`: it is mostly bytes that are passed on, once more in a command
    (`Api.passed_on`). Of Produce see `partitions_bytes`."""
    if passed_on:
        decoded = 2 * count
    else:
        factors, (first, last) = HELD[api_key], VERSIONS[api_key]
        # A version that is not known is answered without being decoded.
        factor = factors[version - first] if first <= version <= last else 1
        decoded = min(factor * count, _TEXT_FACTOR * count + _ELEMENTS_BYTES_MAX)
    return decoded if decoded > SMALL_BYTES else 0


def passed_on_bytes(elements: Sized) -> int:
    """What `decoded_bytes` could not know before such a request was decoded: its elements may be
    small."""
    decoded = _PASSED_ON_ELEMENT_BYTES * len(elements)
    return decoded if decoded > SMALL_BYTES else 0


def partitions_bytes(produce: ProduceRequest) -> int:
    """What a Produce takes for its topics and partitions, beside its frame; 0 if little."""
    count = len(produce.topic_data)
    for topic in produce.topic_data:
        count += len(topic.partition_data)
    decoded = _PARTITION_BYTES * count
    return decoded if decoded > SMALL_BYTES else 0


class Memory:
    """One bound: bytes used, and a queue for room, longest wait first."""

    __slots__ = ("_waiting", "limit", "peak", "used", "waits")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.waits = 0
        """How often a connection had to wait for room."""
        self._waiting: dict[object, Callable[[], None]] = {}

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def change(self, delta: int) -> None:
        """`delta` bytes more are held, or fewer."""
        self.used += delta
        assert self.used >= 0, self.used
        if delta > 0:
            self.peak = max(self.peak, self.used)
        elif delta < 0 and self._waiting and self._has_room():
            self._wake()

    def wait(self, who: object, callback: Callable[[], None]) -> None:
        """Queue for room: `callback` runs whenever there may be some, until `leave`. It must only
        note that. A second call keeps the place in the queue."""
        if who not in self._waiting:
            self.waits += 1
        self._waiting[who] = callback

    def leave(self, who: object) -> None:
        """Leave the queue."""
        if self._waiting and self._waiting.pop(who, None) is not None and self._has_room():
            self._wake()

    def _has_room(self) -> bool:
        """Whether it is worth a look of those that wait."""
        return self.used < self.limit

    def _wake(self) -> None:
        for callback in list(islice(self._waiting.values(), WOKEN_MAX)):
            callback()


class RequestMemory(Memory):
    """The bound of requests. `reserve` of it is kept for `first`."""

    __slots__ = (
        "_moderate",
        "_starting",
        "_starts_are_next",
        "first",
        "moderate_reserve",
        "moderate_used",
        "reserve",
    )  # fmt: skip

    def __init__(self, limit: int, request_bytes_max: int) -> None:
        super().__init__(limit)
        assert request_bytes_max < limit, (request_bytes_max, limit)
        self.reserve = request_bytes_max + SMALL_BYTES
        """Its length and the chunk it began in come to a largest request."""
        self.moderate_reserve = min(limit - self.reserve, limit // 16)
        """Bytes that only requests of moderate size may take."""
        self.moderate_used = 0
        self._starting: dict[object, Callable[[], None]] = {}
        """Waiting for room to start a request. They need much at once, so they have a queue of
        their own: in one queue they would block requests that arrive piece by piece."""
        self._moderate: dict[object, Callable[[], None]] = {}
        """Those of `_starting` that may take the moderate reserve. The others may wait longer."""
        self._starts_are_next = False
        """Which queue is tried first."""
        self.first: object = None
        """The connection that owns the reserve: it is read to the end of its request."""

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._starting)

    def may_have(self, who: object, more: int, *, is_alone: bool) -> bool:
        """Whether `who` may take `more` bytes. `is_alone`: it holds only the request that arrives.
        A connection with other requests under way waits for their answers, not in the queue."""
        return self._may_have(who, more, self._waiting, is_alone=is_alone)

    def may_start(self, who: object, more: int) -> bool:
        """Whether `who` may start a request that decodes to `more` bytes."""
        return self._may_have(who, more, self._starting, is_alone=True)

    def wait_to_start(self, who: object, callback: Callable[[], None], more: int) -> None:
        """As `wait`, for a request that decodes to `more` bytes."""
        if who not in self._starting:
            self.waits += 1
        self._starting[who] = callback
        if more <= MEDIUM_BYTES:
            self._moderate[who] = callback

    def leave_arriving(self, who: object) -> None:
        """Leave the queue of reading; it may still wait to start a request."""
        super().leave(who)

    def leave(self, who: object) -> None:
        """Leave all queues."""
        if self._moderate and self._moderate.pop(who, None) is not None:
            self._wake_moderate()
        if self._starting and self._starting.pop(who, None) is not None and self._has_room():
            self._wake()
        super().leave(who)

    def change(self, delta: int) -> None:
        """`delta` bytes more are held, or fewer."""
        super().change(delta)
        if delta < 0 and self._starting and not self._waiting and self._has_room():
            self._wake()

    def _wake(self) -> None:
        lines = [self._waiting, self._starting]
        if self._starts_are_next:
            lines.reverse()
        for line in lines:
            for callback in list(islice(line.values(), WOKEN_MAX)):
                callback()

    def _may_have(
        self, who: object, more: int, line: dict[object, Callable[[], None]], *, is_alone: bool
    ) -> bool:
        if self.has_room_for(more):
            return True
        if not is_alone:
            return False  # also who is first: else it would be for as long as it has requests
        if self.first is None and next(iter(line), who) is who:
            self.first = who
        return self.first is who

    def has_room_for(self, more: int) -> bool:
        """Whether `more` bytes are free for any connection."""
        return self.used + more <= self.limit - self.reserve - self.moderate_reserve

    def take_moderate(self, count: int) -> bool:
        """Take `count` bytes of the moderate reserve, if it has them. They count as `used`, too."""
        if count > MEDIUM_BYTES or self.moderate_used + count > self.moderate_reserve:
            return False
        self.moderate_used += count
        return True

    def return_moderate(self, count: int) -> None:
        """Return bytes of the moderate reserve."""
        self.moderate_used -= count
        assert self.moderate_used >= 0, self.moderate_used
        self._wake_moderate()

    def _wake_moderate(self) -> None:
        if self.moderate_used < self.moderate_reserve:
            for callback in list(islice(self._moderate.values(), WOKEN_MAX)):
                callback()

    def _has_room(self) -> bool:
        return self.first is None or self.used < self.limit - self.reserve - self.moderate_reserve

    def finished(self, who: object) -> None:
        """It holds little again: the reserve goes to the next connection."""
        if self.first is who:
            self.first = None
            self._starts_are_next = not self._starts_are_next
            self._wake()


class AnswerMemory(Memory):
    """The bound of answers."""

    __slots__ = ("_proved", "ample", "first")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._proved: dict[object, Callable[[], None]] = {}
        """Waiting connections that have proved to read: only they may take the reserve."""
        self.first = max(limit // FIRST_SHARE, min(SMALL_BYTES, limit // 64))
        """The most that a connection gets which has not proved to read."""
        self.ample = limit // 2
        """While no more is used, every connection may have an answer built."""

    def account(self) -> AnswerAccount:
        return AnswerAccount(self)

    def wait_for_room(self, who: AnswerAccount, callback: Callable[[], None]) -> None:
        """See `wait`."""
        self.wait(who, callback)
        if who.has_proved:
            self._proved[who] = callback

    def leave(self, who: object) -> None:
        """Leave the queue."""
        if self._waiting:
            self._proved.pop(who, None)
            super().leave(who)

    def _wake(self) -> None:
        for callback in list(islice(self._proved.values(), WOKEN_MAX)):
            callback()
        super()._wake()


class AnswerAccount:
    """One connection's part of the room for answers."""

    __slots__ = ("_memory", "held", "reserved", "taken")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.held = 0
        """Charged for answers that wait for the socket."""
        self.reserved = 0
        """Charged for the one that is being built, if it is."""
        self.taken = 0
        """Bytes of answers that the socket took, since it last stopped taking them."""

    @property
    def has_proved(self) -> bool:
        """Whether it has shown that it reads."""
        return self.taken >= PROOF_SHARES * self._memory.first

    def limit(self) -> int:
        """Bytes that an answer may have now; 0: none, wait."""
        memory = self._memory
        room = memory.limit - memory.used
        has_proved = self.taken >= PROOF_SHARES * memory.first  # as above, without a call
        if not has_proved:
            room -= memory.limit // 4
        if room <= 0:
            return 0
        share = room // SHARE
        if not has_proved and share > memory.first:
            return memory.first
        return share if share >= SMALL_BYTES else min(room, SMALL_BYTES)

    def reserve(self, count: int) -> None:
        """Reserve `count` bytes for the answer that is being built, in place of what was before."""
        change = count - self.reserved
        self.reserved = count
        if change:
            self._memory.change(change)

    def hold(self, count: int) -> None:
        """`count` bytes of answers wait for the socket."""
        change = count - self.held
        self.held = count
        if change:
            self._memory.change(change)

    def wait(self, callback: Callable[[], None]) -> None:
        """`callback` when there may be room."""
        self._memory.wait_for_room(self, callback)

    def stop_waiting(self) -> None:
        self._memory.leave(self)

    def close(self) -> None:
        """The connection is gone."""
        self._memory.leave(self)
        self.reserve(0)
        self.hold(0)
