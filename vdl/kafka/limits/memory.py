"""Bounds on the memory that clients make a server hold: unanswered requests, unsent answers.

Each of the two has one bound for the whole server. Each connection has an account with both. An
account is charged *before* memory is taken, so connections of one turn cannot spend the same room
twice.

Requests (`queued.max.request.bytes`). Whole frames that are not answered count, and the buffers of
frames that still arrive. `SMALL_BYTES` of each connection do not count: heartbeats, metadata and
small batches are never delayed, and cost nothing here. A connection that needs more must obtain it
first, and is not read while there is no room. A reserve has room for one request of the maximum
size. It belongs to the connection that has waited longest, until its request is whole, then to the
next. So incomplete requests cannot block one another.

A small request may decode to many objects. It counts as `decoded_bytes`, the maximum that the
schema of its version allows (`codegen/held.py`), from its start until its answer. Without room it
is not started; it waits in a separate queue. A sixteenth of the bound is reserved for requests of
moderate size. While a request waits, long polls that hold memory are answered early.

Of both, a principal holds at most `SHARE_TIMES` times what it leaves free (`vdl/kafka/shares.py`):
one alone has three quarters, so another one always finds room. What is freed is offered to each
principal that waits, not only to those that wait longest. The reserve is outside of the shares,
because it is for one request.

Answers (`response.memory_max`). An answer counts from the time it is built until the socket has
taken it, with all memory that its slices keep alive. Each answer is charged before the next one
checks for room, because one turn may wake many long polls. A connection gets a share of the free
room. It gets only a small one until it has taken more bytes than the buffers between server and
client hold, because it may never read. A quarter is reserved for connections that have. Without
room, a request with a large answer is not started, and a long poll waits.

While a connection waits for room, those that hold room and make no progress are closed after a
while: see `Frontend`.

Does not depend on requests, answers or sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import islice
from typing import TYPE_CHECKING

from vdl.kafka.shares import Shares
from vdl.kafka.wire.registry import HELD, VERSIONS
from vdl.kafka.wire.runtime import ELEMENTS_MAX

if TYPE_CHECKING:
    from vdl.kafka.wire.produce import ProduceRequest

SMALL_BYTES = 64 << 10
"""Bytes of one connection, in each direction, that are not counted."""
MEDIUM_BYTES = 4 << 20
"""Decoded size up to which requests may use the moderate reserve, such as a Fetch of a thousand
partitions."""
UNCOUNTED_BYTES = 1 << 10
"""Size up to which answers are not counted."""
FIRST_SHARE = 256
"""A connection that has not proven to read gets at most 1/256 of the room for answers."""
PROOF_SHARES = 16
"""It has proven it when it has taken 16 times as much in all."""
SHARE = 8
"""A connection gets at most an eighth of the free room."""
SHARE_TIMES = 3
WOKEN_MAX = 4
"""When room is freed, up to this number of connections are tried at a time, longest wait first."""

DECODED_FROM_BYTES = 512
"""Size up to which a request decodes to little: no byte of a request becomes more than 128."""
_ELEMENTS_BYTES_MAX = ELEMENTS_MAX * 650
_TEXT_FACTOR = 4
"""A text in which one character needs four bytes takes four for every character."""
_PASSED_ON_ELEMENT_BYTES = 256
PARTITIONS_FROM_BYTES = 4 << 10
"""A Produce below this size does not have many partitions."""
_PARTITION_BYTES = 320


def decoded_bytes(count: int, api_key: int, version: int, *, passed_on: bool) -> int:
    """Return the maximum that a request of `count` bytes takes beside its frame; 0 if little.

    That is its decoded form, and what it takes while it is under way. `passed_on`: it consists
    mostly of bytes that are copied into a command (`Api.passed_on`). For Produce see
    `partitions_bytes`.
    """
    if passed_on:
        decoded = 2 * count
    else:
        factors, (first, last) = HELD[api_key], VERSIONS[api_key]
        # An unknown version is answered without being decoded.
        factor = factors[version - first] if first <= version <= last else 1
        decoded = min(factor * count, _TEXT_FACTOR * count + _ELEMENTS_BYTES_MAX)
    return decoded if decoded > SMALL_BYTES else 0


def passed_on_bytes(elements: Sized) -> int:
    """Return the bytes that `decoded_bytes` cannot estimate: a request that is passed on may have
    many small elements."""
    decoded = _PASSED_ON_ELEMENT_BYTES * len(elements)
    return decoded if decoded > SMALL_BYTES else 0


def partitions_bytes(produce: ProduceRequest) -> int:
    """Return the bytes that a Produce takes for its topics and partitions; 0 if little."""
    count = len(produce.topic_data)
    for topic in produce.topic_data:
        count += len(topic.partition_data)
    decoded = _PARTITION_BYTES * count
    return decoded if decoded > SMALL_BYTES else 0


class Memory:
    """One bound: bytes in use, and a queue for room, longest wait first."""

    __slots__ = ("_waiting", "limit", "peak", "used", "waits")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.waits = 0
        """Number of times that a connection had to wait for room."""
        self._waiting: dict[object, Callable[[], None]] = {}

    @property
    def waiting(self) -> int:
        """Number of connections that wait for room."""
        return len(self._waiting)

    def change(self, delta: int) -> None:
        """Change the bytes in use by `delta`."""
        self.used += delta
        assert self.used >= 0, self.used
        if delta > 0:
            self.peak = max(self.peak, self.used)
        elif delta < 0 and self._waiting and self._has_room():
            self._wake()

    def wait(self, who: object, callback: Callable[[], None]) -> None:
        """Queue for room: `callback` runs whenever there may be some, until `leave`.

        The callback must only note that. A second call keeps the place in the queue.
        """
        if who not in self._waiting:
            self.waits += 1
        self._waiting[who] = callback

    def leave(self, who: object) -> None:
        """Leave the queue."""
        if self._waiting and self._waiting.pop(who, None) is not None and self._has_room():
            self._wake()

    def _has_room(self) -> bool:
        """Return True if waiting connections should check for room."""
        return self.used < self.limit

    def _wake(self) -> None:
        for callback in list(islice(self._waiting.values(), WOKEN_MAX)):
            callback()


class RequestMemory(Memory):
    """Bound of requests. Its `reserve` is kept for `first`."""

    __slots__ = (
        "_askers",
        "_first_asker",
        "_first_bytes",
        "_lines",
        "_moderate",
        "_moderate_shares",
        "_starting",
        "_starts_are_next",
        "first",
        "moderate_reserve",
        "reserve",
        "shares",
    )

    def __init__(self, limit: int, request_bytes_max: int) -> None:
        super().__init__(limit)
        assert request_bytes_max < limit, (request_bytes_max, limit)
        self.reserve = request_bytes_max + SMALL_BYTES
        """Room for a request of the maximum size, with its length and the chunk in which it
        began."""
        self.moderate_reserve = min(limit - self.reserve, limit // 16)
        """Bytes that only requests of moderate size may take."""
        self.shares = Shares(limit - self.reserve - self.moderate_reserve, SHARE_TIMES)
        """Bytes in use by principal."""
        self._moderate_shares = Shares(self.moderate_reserve, SHARE_TIMES)
        self._lines: dict[str, dict[object, Callable[[], None]]] = {}
        """Waiting connections of each principal."""
        self._askers: dict[object, str] = {}
        """Principal of each waiting connection."""
        self._starting: dict[object, Callable[[], None]] = {}
        """Connections that wait for room to start a request. They need much at once, so they have a
        separate queue: in one queue they would block requests that arrive piece by piece."""
        self._moderate: dict[object, Callable[[], None]] = {}
        """Members of `_starting` that may take the moderate reserve. The others may wait longer."""
        self._starts_are_next = False
        """True if the queue of starts is tried first."""
        self.first: object = None
        """Connection that owns the reserve: it is read to the end of its request."""
        self._first_asker = ""
        self._first_bytes = 0
        """Bytes that it was given without room for them, and its principal."""

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._starting)

    def may_have(self, who: object, more: int, asker: str = "", *, is_alone: bool) -> bool:
        """Return True if `who`, a connection of `asker`, may take `more` bytes.

        `is_alone`: it holds only the arriving request. A connection with other requests under way
        waits for their answers, not in the queue.
        """
        return self._may_have(who, more, asker, self._waiting, is_alone=is_alone)

    def may_start(self, who: object, more: int, asker: str = "") -> bool:
        """Return True if `who` may start a request that decodes to `more` bytes."""
        return self._may_have(who, more, asker, self._starting, is_alone=True)

    def wait(self, who: object, callback: Callable[[], None], asker: str = "") -> None:
        super().wait(who, callback)
        self._join_line(who, callback, asker)

    def wait_to_start(
        self, who: object, callback: Callable[[], None], more: int, asker: str = ""
    ) -> None:
        """As `wait`, for a request that decodes to `more` bytes."""
        if who not in self._starting:
            self.waits += 1
        self._starting[who] = callback
        self._join_line(who, callback, asker)
        if more <= MEDIUM_BYTES:
            self._moderate[who] = callback

    def leave_arriving(self, who: object) -> None:
        """Leave the queue for reading; `who` may still wait to start a request."""
        if self._askers and who not in self._starting:
            self._leave_line(who)
        super().leave(who)

    def take(self, asker: str, delta: int) -> None:
        """Change the bytes in use by `delta`, on behalf of `asker`."""
        self.shares.change(asker, delta)
        self.change(delta)

    def _join_line(self, who: object, callback: Callable[[], None], asker: str) -> None:
        if self._askers.get(who, asker) != asker:
            self._leave_line(who)  # it has logged in
        self._askers[who] = asker
        self._lines.setdefault(asker, {})[who] = callback

    def _leave_line(self, who: object) -> None:
        asker = self._askers.pop(who, None)
        if asker is not None:
            line = self._lines[asker]
            del line[who]
            if not line:
                del self._lines[asker]

    def leave(self, who: object) -> None:
        """Leave all queues."""
        if self._askers:
            self._leave_line(who)
        if self._moderate and self._moderate.pop(who, None) is not None:
            self._wake_moderate()
        if self._starting and self._starting.pop(who, None) is not None and self._has_room():
            self._wake()
        super().leave(who)

    def change(self, delta: int) -> None:
        """Change the bytes in use by `delta`."""
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
        if len(self._askers) > WOKEN_MAX:
            self._wake_each_principal()

    def _wake_each_principal(self) -> None:
        """Let the connection that has waited longest of each principal check for room, some at a
        time. Those that wait longest of all may be of one that has its share."""
        for asker in list(islice(self._lines, WOKEN_MAX)):
            line = self._lines[asker] = self._lines.pop(asker)  # the others are next
            next(iter(line.values()))()

    def _may_have(
        self,
        who: object,
        more: int,
        asker: str,
        line: dict[object, Callable[[], None]],
        *,
        is_alone: bool,
    ) -> bool:
        if self.has_room_for(more, asker):
            return True
        if not is_alone:
            # even if it is first: otherwise it would stay first as long as it has requests
            return False
        if self.first is None and next(iter(line), who) is who:
            self.first, self._first_asker = who, asker
        if self.first is not who:
            return False
        self._first_bytes += more
        return True

    def has_room_for(self, more: int, asker: str = "") -> bool:
        """Return True if `more` bytes are free for any connection of a principal."""
        shares, beyond = self.shares, self.in_reserve
        if self.used - beyond + more > shares.limit:
            return False
        left = shares.limit - (shares.used - beyond) - more
        held = shares.held(asker) + more - (beyond if asker == self._first_asker else 0)
        return held <= SHARE_TIMES * left

    @property
    def in_reserve(self) -> int:
        """Bytes of the reserve in use. They take no room from the others."""
        return min(self._first_bytes, self.reserve)

    @property
    def moderate_used(self) -> int:
        """Bytes of the moderate reserve in use."""
        return self._moderate_shares.used

    def take_moderate(self, count: int, asker: str = "") -> bool:
        """Take `count` bytes of the moderate reserve if it has them for this principal. They count
        as `used`, too."""
        shares = self._moderate_shares
        is_first = not shares.held(asker) and shares.used + count <= shares.limit
        if count > MEDIUM_BYTES or not (is_first or shares.may_take(asker, count)):
            return False
        shares.change(asker, count)
        return True

    def return_moderate(self, count: int, asker: str = "") -> None:
        """Return bytes of the moderate reserve."""
        self._moderate_shares.change(asker, -count)
        self._wake_moderate()

    def _wake_moderate(self) -> None:
        if self.moderate_used < self.moderate_reserve:
            for callback in list(islice(self._moderate.values(), WOKEN_MAX)):
                callback()
            if len(self._moderate) > WOKEN_MAX:
                self._wake_each_principal()

    def _has_room(self) -> bool:
        return self.first is None or self.used - self.in_reserve < self.shares.limit

    def finished(self, who: object) -> None:
        """Pass the reserve on to the next connection, because `who` holds little again."""
        if self.first is who:
            self.first = None
            self._first_bytes = 0
            self._starts_are_next = not self._starts_are_next
            self._wake()


class AnswerMemory(Memory):
    """Bound of answers."""

    __slots__ = ("_proved", "ample", "first")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._proved: dict[object, Callable[[], None]] = {}
        """Waiting connections that have proven to read: only they may take the reserve."""
        self.first = max(limit // FIRST_SHARE, min(SMALL_BYTES, limit // 64))
        """Maximum bytes of a connection that has not proven to read."""
        self.ample = limit // 2
        """Bytes in use up to which every connection may have an answer built."""

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
    """One connection's account of the room for answers."""

    __slots__ = ("_memory", "held", "reserved", "taken")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.held = 0
        """Bytes charged for answers that wait for the socket."""
        self.reserved = 0
        """Bytes charged for the answer that is being built, if any."""
        self.taken = 0
        """Bytes of answers that the socket took since it last stopped taking them."""

    @property
    def has_proved(self) -> bool:
        """True if the connection has proven that it reads."""
        return self.taken >= PROOF_SHARES * self._memory.first

    def limit(self) -> int:
        """Return the bytes that an answer may have now; 0 if it must wait."""
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
        """Reserve `count` bytes for the answer being built, in place of the last reservation."""
        change = count - self.reserved
        self.reserved = count
        if change:
            self._memory.change(change)

    def hold(self, count: int) -> None:
        """Charge `count` bytes of answers that wait for the socket, in place of the last charge."""
        change = count - self.held
        self.held = count
        if change:
            self._memory.change(change)

    def wait(self, callback: Callable[[], None]) -> None:
        """Queue for room; `callback` runs when there may be some."""
        self._memory.wait_for_room(self, callback)

    def stop_waiting(self) -> None:
        self._memory.leave(self)

    def close(self) -> None:
        """Release everything, because the connection is gone."""
        self._memory.leave(self)
        self.reserve(0)
        self.hold(0)
