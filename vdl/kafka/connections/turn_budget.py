"""Budgets of a turn of the loop for receiving, starting and answering large requests.

Moving bytes is work of the loop: a megabyte costs milliseconds where the system has to provide each
page. Many clients with long requests or large answers may each have a piece ready in every turn,
and a small request would wait for all of them. Each budget therefore serves its connections in
turn, over several turns of the loop.

`ReceiveBudget`: all long requests together get `FRAME_BYTES` in each `FRAME_NS`. When that is used
up, a connection is not read before those ahead of it. While at most `FEW` wait, the budget is
`FEW_BYTES`: some producers with large requests are no overload. Requests up to `SHORT_BYTES`, some
batches of the usual size, are read at once.

`StartBudget`: requests start, and large answers are built, for `START_NS` of a turn. The rest waits
for later turns, behind a poll of all sockets and timers: an overloaded server still hears its peers
and its own clock. Waiting connections take turns of `SHARE_NS`. One that sends more meanwhile is
not read, so the backlog is bounded and TCP slows the client down. A turn has a fixed cost: shorter
ones halve what an overloaded server can do. Who is next is decided by fair queueing (Demers, Keshav
and Shenker, 1989): each principal has the same share of the time, however many connections it has,
and each of its connections the same part of that. One that uses less than its own, or is new, does
not wait for those that use all of theirs. Before that, requests of a few bytes
have `SMALL_NS` of each turn: who looks after a server, or begins a connection, is not to wait for a
crowd of which nobody knows yet what it will use.

`SendBudget`: long answers are sent until `ANSWER_BYTES` have left in a turn; the others are sent in
later turns. The loop serves everything else in between. That costs no bandwidth.

Must not know: requests, answers, sockets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Protocol

from vdl.clock import MS, Clock

SHORT_BYTES = 2 << 20
"""Of a request that is read as it comes: twice what clients put into one by default."""
FRAME_NS = 4 * MS
FRAME_BYTES = 256 << 10
"""64 MiB a second."""
FEW = 4
FEW_BYTES = 1 << 20
"""256 MiB a second."""
READS_PER_TICK = 1
"""Waiting connections that are read when the budget is renewed."""
READ_BYTES_MIN = 4 << 10
"""The smallest read of a connection that finds the budget used up and does not wait yet."""
ANSWER_BYTES = 1 << 20
LONG_ANSWER_BYTES = 64 << 10
"""Shorter answers are not limited."""


START_NS = 100 * MS
"""One heartbeat interval, a sixth of the shortest election timeout: with all else that is done in a
turn, no leader loses its leadership for it."""
SHARE_NS = 25 * MS
"""For one connection, while others wait."""
SMALL_NS = 10 * MS
"""For those whose request is small, all together, before the others."""
SMALL_REQUEST_BYTES = 256


class Starter(Protocol):
    shared_until_ns: int
    share_ns: int
    """The budget's own: see `StartBudget`."""

    @property
    def asker(self) -> str:
        """Whose share it uses."""

    def resume_starting(self) -> None:
        """It is this one's turn to have requests started."""


class Sender(Protocol):
    def resume_receiving(self) -> None:
        """It is this one's turn to be read."""


class Receiver(Protocol):
    def resume_sending(self) -> None:
        """It is this one's turn to be sent its answer."""


class ReceiveBudget:
    """The pace of one server's reading."""

    __slots__ = ("_clock", "_given", "_is_ticking", "_waiting", "left")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Sender, None] = {}
        """In the order in which they are read."""
        self._is_ticking = False
        self._given = self.left = FEW_BYTES
        """Bytes that may be read until the next tick, and what is left of them."""

    def __len__(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    def took(self, sender: Sender, count: int) -> bool:
        """`count` bytes of a long request were read. False: wait for `resume_receiving`."""
        self.left -= count
        if not self._is_ticking:
            self._is_ticking = True
            self._clock.call_later(FRAME_NS, self._tick)
        if self.left > 0:
            return True
        self._waiting[sender] = None
        return False

    def leave(self, sender: Sender) -> None:
        """It waits no more."""
        self._waiting.pop(sender, None)

    def _tick(self) -> None:
        self._is_ticking = self.left < self._given or bool(self._waiting)
        self._given = self.left = FEW_BYTES if len(self._waiting) <= FEW else FRAME_BYTES
        if self._is_ticking:
            self._clock.call_later(FRAME_NS, self._tick)
        for sender in list(islice(self._waiting, READS_PER_TICK)):
            del self._waiting[sender]
            sender.resume_receiving()


class StartBudget:
    """The pace of one server's requests.

    Turns are given out by a clock of its own that goes on as much as each of those that wait has
    been served. `shared_until_ns` of a connection: up to when, by that clock, it has used its
    share; whoever was away has nothing in hand. `share_ns`: what it used when it was served last,
    and is expected to use again, but for what was more than `SHARE_NS`. Who is expected to be done
    first, by that clock, is served next. The weight of a connection is one part of its asker's
    connections that wait: it is charged as many times what it used."""

    __slots__ = (
        "_askers",
        "_clock",
        "_end_ns",
        "_fair_ns",
        "_is_armed",
        "_latest_ns",
        "_number",
        "_queue",
        "_served",
        "_served_asker",
        "_served_from_ns",
        "_small",
        "_turn_has_ended",
        "_waiting",
        "started_ns",
        "until_ns",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Starter, tuple[int, int, str]] = {}
        """The number of each one's place in the queue, since when its first request is there, and
        its asker."""
        self._askers: Counter[str] = Counter()
        """How many of each asker's wait."""
        self._queue: list[tuple[int, int, Starter]] = []
        """A heap of (when its share is expected to end, number, who). Some have left."""
        self._small: deque[tuple[int, Starter]] = deque()
        """Those of them whose request is small, in the order of their arrival."""
        self._number = 0
        self._fair_ns = 0
        """The clock by which they take turns."""
        self._latest_ns = 0
        """The latest `shared_until_ns`."""
        self._served: Starter | None = None
        self._served_asker = ""
        self._served_from_ns = 0
        self._is_armed = False
        """Whether `_next_turn` will be called."""
        self._end_ns = 0
        """While those that wait are served: until when; else 0."""
        self._turn_has_ended = True
        """A turn has ended since `until_ns` was set."""
        self.started_ns = 0
        """When the last request started, or large answer was built: for sessions to set."""
        self.until_ns = 0
        """Until then requests start unasked. A session that finds `started_ns` at or behind it asks
        `may_start`. So the common case is one comparison, and a turn may be a little longer."""

    def __len__(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    def oldest_ns(self) -> int:
        """The longest wait of a queued request (ns); 0: none waits. Not cheap: for checks."""
        if not self._waiting:
            return 0
        return self._clock.now_ns() - min(since_ns for _, since_ns, _ in self._waiting.values())

    def may_start(self, starter: Starter, since_ns: int, *, is_small: bool = False) -> bool:
        """Whether its next request, which arrived at `since_ns`, may start; if not,
        `resume_starting` is called in a later turn."""
        if not self._waiting:
            if self.started_ns < self._end_ns:
                self.until_ns = self._end_ns  # the only one that is served: the turn is all its
                return True
            if self._turn_has_ended and not self._end_ns:
                self._turn_has_ended = False
                self.until_ns = self._clock.now_ns() + START_NS
                self._behind_the_next_look(self._end_turn)
                return True
        if starter is self._served:
            self._count(self._clock.now_ns())
        starter.shared_until_ns = max(starter.shared_until_ns, self._fair_ns)
        self._number += 1
        asker = starter.asker
        self._waiting[starter] = self._number, since_ns, asker
        self._askers[asker] += 1
        if is_small:
            self._small.append((self._number, starter))
        # If it had more than a share, a request was long, or the process stood still. That is over.
        expected_ns = min(starter.share_ns, SHARE_NS) * self._askers[asker]
        heappush(self._queue, (starter.shared_until_ns + expected_ns, self._number, starter))
        if not self._end_ns:
            self.until_ns = 0  # who comes now waits behind this one
            self._arm()
        return False

    def leave(self, starter: Starter) -> None:
        """It waits no more."""
        place = self._waiting.pop(starter, None)
        if place is None:
            return
        _, _, asker = place
        self._askers[asker] -= 1
        if not self._askers[asker]:
            del self._askers[asker]

    def _end_turn(self) -> None:
        self._turn_has_ended = True

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._behind_the_next_look(self._next_turn)

    def _behind_the_next_look(self, fn: Callable[[], None]) -> None:
        """Have `fn` called behind the next look at the files. A turn may have several ends, and
        timers run behind the look in which they are set: hence one more."""
        clock = self._clock

        def looked() -> None:
            clock.call_later(1, fn)

        clock.call_later(1, looked)

    def _next_turn(self) -> None:
        self._is_armed = False
        now_ns = self._clock.now_ns()
        self._end_ns = end_ns = now_ns + START_NS
        small, small_end_ns = self._small, now_ns + SMALL_NS
        for _ in range(len(small)):  # not those that come meanwhile
            if now_ns >= small_end_ns:
                break
            number, starter = small.popleft()
            if self._is_in_line(starter, number):
                now_ns = self._serve(starter, now_ns, small_end_ns)
        while self._waiting and now_ns < end_ns:
            _, number, starter = heappop(self._queue)
            if self._is_in_line(starter, number):
                now_ns = self._serve(starter, now_ns, min(now_ns + SHARE_NS, end_ns))
        self._end_ns = self.until_ns = 0
        if self._waiting:
            self._arm()
        else:
            self._queue.clear()
            small.clear()
            self._fair_ns = self._latest_ns  # nobody begins with a debt

    def _is_in_line(self, starter: Starter, number: int) -> bool:
        """Whether it still has this place: it was not served, and has not left."""
        return starter in self._waiting and self._waiting[starter][0] == number

    def _serve(self, starter: Starter, now_ns: int, until_ns: int) -> int:
        """It is its turn. The time when that is over."""
        _, _, self._served_asker = self._waiting[starter]
        self.leave(starter)
        self.started_ns, self.until_ns = now_ns, until_ns
        self._served, self._served_from_ns, starter.share_ns = starter, now_ns, 0
        starter.resume_starting()
        now_ns = self._clock.now_ns()
        self._count(now_ns)
        self._served = None
        return now_ns

    def _count(self, now_ns: int) -> None:
        """The one that is served has been, until now."""
        starter = self._served
        assert starter is not None, "nobody is served"
        used_ns = now_ns - self._served_from_ns
        self._served_from_ns = now_ns
        starter.share_ns += used_ns
        asker, askers = self._served_asker, self._askers
        starter.shared_until_ns += used_ns * (askers[asker] + (starter not in self._waiting))
        self._latest_ns = max(self._latest_ns, starter.shared_until_ns)
        self._fair_ns += used_ns // (len(askers) + (asker not in askers))


class SendBudget:
    """The pace of one server's answers."""

    __slots__ = ("_clock", "_is_over", "_left", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Receiver, None] = {}
        """In the order in which their answers leave."""
        self._left = ANSWER_BYTES
        """Bytes that may still leave in this turn."""
        self._is_over = True
        """Whether no next turn was asked for yet."""

    def __len__(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting)

    def may_send(self, receiver: Receiver) -> bool:
        """Whether a long answer may be sent now; if not, `resume_sending` is called in a later
        turn."""
        if self._left > 0:
            return True
        self._waiting[receiver] = None
        return False

    def sent(self, count: int) -> None:
        """`count` bytes of a long answer have left."""
        self._left -= count
        if self._is_over:
            self._is_over = False
            self._clock.call_later(1, self._next_turn)  # behind the next look at the files

    def leave(self, receiver: Receiver) -> None:
        """It waits no more."""
        self._waiting.pop(receiver, None)

    def _next_turn(self) -> None:
        self._is_over = True
        self._left = ANSWER_BYTES
        while self._waiting and self._left > 0:
            receiver = next(iter(self._waiting))
            del self._waiting[receiver]
            receiver.resume_sending()
