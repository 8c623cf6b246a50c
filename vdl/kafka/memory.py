"""What clients make a server hold: requests that are not answered, answers that are not taken.

Each of the two has a bound for the whole server, and each client connection its account with both.
An account is charged *before* memory is taken, so that many connections of one turn cannot all
spend the same room.

Requests (`queued.max.request.bytes`): the frames that are whole and not answered, and the buffers
of those that still arrive. A connection may always have `SMALL_BYTES` under way, which is not
counted, so heartbeats, metadata and small batches go on whatever others do, at no cost. For more it
asks, and without room it is not read. Room for one largest request is kept apart for the one that
waits longest: it is always read to its end, then the next, so requests that are all begun and none
whole can stop nobody.

A request in few bytes may become many objects, so it counts as `decoded_bytes` from when it starts
until it is answered. Without room it does not start, but waits in a line beside that of those to be
read; a sixteenth is kept apart for requests of moderate size. A long poll gives its room back when
such a request waits: it is answered with what there is, and does not hold the largest's room.

Answers (`response.memory_max`): from when an answer is built until the socket has taken it, with
what its slices keep alive. Many long polls may be woken in one turn, so each is charged before the
next one looks for room. Nobody is given all the room there is: a share of what is left, and at most
a small one until the connection has taken more than buffers between a server and a client hold, for
it may never read. A quarter is kept apart for those that have; who stops reading must prove it
again. Without room a request whose answer may be large does not start, and a long poll has to wait.

Somebody who waits has others who hold. Those that do not get on, or too slowly, are given up after
a while, but only while somebody waits: see `Frontend`.

Must not know: requests, answers, sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import islice
from typing import TYPE_CHECKING

from vdl.kafka.wire.runtime import ELEMENTS_MAX

if TYPE_CHECKING:
    from vdl.kafka.wire.produce import ProduceRequest

SMALL_BYTES = 64 << 10
"""What one connection may have under way at any time, in each direction: it is not counted."""
MEDIUM_BYTES = 1 << 20
"""A request that is decoded to no more, such as a Fetch of a thousand partitions, has room kept
apart from that of long ones."""
UNCOUNTED_BYTES = 1 << 10
"""An answer of so few is not counted."""
FIRST_SHARE = 256
"""A connection that has not proved to read gets at most such a part of the room for answers."""
PROOF_SHARES = 16
"""It has proved it when it has taken so many times that part in all."""
SHARE = 8
"""Nobody gets more than such a part of the room that is left."""
WOKEN_MAX = 4
"""So many of those that wait longest are looked at when room is given back; who then waits no more
has the next ones looked at."""

_DECODED_FACTOR = 32
"""Bytes that a byte of a request becomes at most where it is full of small elements: a partition of
a Fetch has 28 on the wire and some 650 while the poll waits, its views and answers included."""
DECODED_FROM_BYTES = SMALL_BYTES // _DECODED_FACTOR
"""A request of no more is decoded to little."""
_ELEMENTS_BYTES_MAX = ELEMENTS_MAX * 650
_PASSED_ON_ELEMENT_BYTES = 256
PARTITIONS_FROM_BYTES = 4 << 10
"""A Produce below that has not many partitions."""
_PARTITION_BYTES = 320


def decoded_bytes(count: int, *, passed_on: bool) -> int:
    """What a request of `count` bytes takes at most beside its frame, decoded and while it is under
    way; 0 if little. `passed_on`: it is mostly bytes that are passed on, once more in a command
    (`Api.passed_on`). Of Produce see `partitions_bytes`."""
    if passed_on:
        decoded = 2 * count
    else:
        decoded = min(_DECODED_FACTOR * count, count + _ELEMENTS_BYTES_MAX)
    return decoded if decoded > SMALL_BYTES else 0


def passed_on_bytes(elements: Sized) -> int:
    """What `decoded_bytes` could not know before such a request was decoded: its elements may be
    small."""
    decoded = _PASSED_ON_ELEMENT_BYTES * len(elements)
    return decoded if decoded > SMALL_BYTES else 0


def partitions_bytes(produce: ProduceRequest) -> int:
    """What a Produce takes for its partitions, beside its frame; 0 if little."""
    count = sum(len(topic.partition_data) for topic in produce.topic_data)
    decoded = _PARTITION_BYTES * count
    return decoded if decoded > SMALL_BYTES else 0


class Memory:
    """One bound: what is used of it, and who waits for room, longest first."""

    __slots__ = ("_waiting", "limit", "peak", "used", "waits")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.waits = 0
        """Times somebody had to wait for room."""
        self._waiting: dict[object, Callable[[], None]] = {}

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def change(self, delta: int) -> None:
        """So much more is held, or less."""
        self.used += delta
        assert self.used >= 0, self.used
        if delta > 0:
            self.peak = max(self.peak, self.used)
        elif delta < 0 and self._waiting and self._has_room():
            self._wake()

    def wait(self, who: object, callback: Callable[[], None]) -> None:
        """`callback`, once, when there may be room. It only notes that; it takes nothing yet. Who
        waits already keeps his place."""
        if who not in self._waiting:
            self.waits += 1
        self._waiting[who] = callback

    def leave(self, who: object) -> None:
        """Waits no more."""
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
        "_moderate", "_starting", "_starts_are_next", "apart", "apart_used", "first", "reserve",
    )  # fmt: skip

    def __init__(self, limit: int, request_bytes_max: int) -> None:
        super().__init__(limit)
        assert request_bytes_max < limit, (request_bytes_max, limit)
        self.reserve = request_bytes_max + SMALL_BYTES
        """Its length and the chunk it began in come to a largest request."""
        self.apart = min(limit - self.reserve, limit // 16)
        """Kept apart for requests that are decoded to little."""
        self.apart_used = 0
        self._starting: dict[object, Callable[[], None]] = {}
        """Who waits for room to start a request. They want much at once: in one line with those
        that arrive piece by piece they would hold those up."""
        self._moderate: dict[object, Callable[[], None]] = {}
        """Those of them that may have what is kept apart. It is no use to the others, who may wait
        longer."""
        self._starts_are_next = False
        """Whose line is looked at first."""
        self.first: object = None
        """Who is read to the end of its request whatever others hold."""

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._starting)

    def may_have(self, who: object, more: int, *, is_alone: bool) -> bool:
        """Whether `who` may have `more` bytes beside what it holds. `is_alone`: it holds nothing
        but the request that arrives; who has others under way waits for their answers, and must
        not stand in line."""
        return self._may_have(who, more, self._waiting, is_alone=is_alone)

    def may_start(self, who: object, more: int) -> bool:
        """Whether `who` may start a request that is decoded to so much."""
        return self._may_have(who, more, self._starting, is_alone=True)

    def wait_to_start(self, who: object, callback: Callable[[], None], more: int) -> None:
        """As `wait`, with a request that is decoded to so much."""
        if who not in self._starting:
            self.waits += 1
        self._starting[who] = callback
        if more <= MEDIUM_BYTES:
            self._moderate[who] = callback

    def leave_arriving(self, who: object) -> None:
        """Waits no more to be read. It may go on waiting to start what has been read."""
        super().leave(who)

    def leave(self, who: object) -> None:
        """Waits no more, for whatever it was."""
        if self._moderate and self._moderate.pop(who, None) is not None:
            self._wake_moderate()
        if self._starting and self._starting.pop(who, None) is not None and self._has_room():
            self._wake()
        super().leave(who)

    def change(self, delta: int) -> None:
        """So much more is held, or less."""
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
        """Whether anybody may have so many bytes more."""
        return self.used + more <= self.limit - self.reserve - self.apart

    def take_apart(self, count: int) -> bool:
        """Take so much of what is kept apart, if there is so much. It goes to `used` as well."""
        if count > MEDIUM_BYTES or self.apart_used + count > self.apart:
            return False
        self.apart_used += count
        return True

    def give_apart(self, count: int) -> None:
        """Give it back."""
        self.apart_used -= count
        assert self.apart_used >= 0, self.apart_used
        self._wake_moderate()

    def _wake_moderate(self) -> None:
        if self.apart_used < self.apart:
            for callback in list(islice(self._moderate.values(), WOKEN_MAX)):
                callback()

    def _has_room(self) -> bool:
        return self.first is None or self.used < self.limit - self.reserve - self.apart

    def finished(self, who: object) -> None:
        """It holds little again: the next one's turn."""
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
        """Of those that wait, who have proved to read. What is kept apart for them is no use to
        others, who may wait longer."""
        self.first = max(limit // FIRST_SHARE, min(SMALL_BYTES, limit // 64))
        """The most that a connection gets which has not proved to read."""
        self.ample = limit // 2
        """While no more is used, everybody gets an answer."""

    def account(self) -> AnswerAccount:
        return AnswerAccount(self)

    def wait_for_room(self, who: AnswerAccount, callback: Callable[[], None]) -> None:
        """See `wait`."""
        self.wait(who, callback)
        if who.has_proved:
            self._proved[who] = callback

    def leave(self, who: object) -> None:
        """Waits no more."""
        if self._waiting:
            self._proved.pop(who, None)
            super().leave(who)

    def _wake(self) -> None:
        for callback in list(islice(self._proved.values(), WOKEN_MAX)):
            callback()
        super()._wake()


class AnswerAccount:
    """One connection's part of the room for answers."""

    __slots__ = ("_memory", "held", "promised", "taken")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.held = 0
        """Charged for answers that wait for the socket."""
        self.promised = 0
        """Charged for the one that is being built, if it is."""
        self.taken = 0
        """Bytes of answers that the socket took, since it last stopped taking them."""

    @property
    def has_proved(self) -> bool:
        """Whether it has shown that it reads."""
        return self.taken >= PROOF_SHARES * self._memory.first

    def limit(self) -> int:
        """How large an answer may be built now; 0: none, wait."""
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

    def promise(self, count: int) -> None:
        """An answer of `count` bytes is being built: instead of what was promised before."""
        change = count - self.promised
        self.promised = count
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
        self.promise(0)
        self.hold(0)
