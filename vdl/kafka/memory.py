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

from collections.abc import Callable
from itertools import islice

SMALL_BYTES = 64 << 10
"""What one connection may have under way at any time, in each direction: it is not counted."""
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

    __slots__ = ("first", "reserve")

    def __init__(self, limit: int, request_bytes_max: int) -> None:
        super().__init__(limit)
        assert request_bytes_max < limit, (request_bytes_max, limit)
        self.reserve = request_bytes_max + SMALL_BYTES
        """Its length and the chunk it began in come to a largest request."""
        self.first: object = None
        """Who is read to the end of its request whatever others hold."""

    def may_have(self, who: object, more: int, *, is_alone: bool) -> bool:
        """Whether `who` may have `more` bytes beside what it holds. `is_alone`: it holds nothing
        but the request that arrives; who has others under way waits for their answers, and must
        not stand in line."""
        if self.used + more <= self.limit - self.reserve:
            return True
        if self.first is None and is_alone and next(iter(self._waiting), who) is who:
            self.first = who
        return self.first is who

    def _has_room(self) -> bool:
        return self.first is None or self.used < self.limit - self.reserve

    def finished(self, who: object) -> None:
        """It holds little again: the next one's turn."""
        if self.first is who:
            self.first = None
            self._wake()


class AnswerMemory(Memory):
    """The bound of answers."""

    __slots__ = ("ample", "first")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.first = max(limit // FIRST_SHARE, min(SMALL_BYTES, limit // 64))
        """The most that a connection gets which has not proved to read."""
        self.ample = limit // 2
        """While no more is used, everybody gets an answer."""

    def account(self) -> AnswerAccount:
        return AnswerAccount(self)


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

    def limit(self) -> int:
        """How large an answer may be built now; 0: none, wait."""
        memory = self._memory
        room = memory.limit - memory.used
        has_proved = self.taken >= PROOF_SHARES * memory.first
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
        self._memory.wait(self, callback)

    def stop_waiting(self) -> None:
        self._memory.leave(self)

    def close(self) -> None:
        """The connection is gone."""
        self._memory.leave(self)
        self.promise(0)
        self.hold(0)
