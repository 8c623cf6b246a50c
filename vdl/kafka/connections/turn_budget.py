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
ones halve what an overloaded server can do with many small requests. Where requests take
`COSTLY_NS` and more that price is nothing beside them, and a turn has `SHORT_NS`: a record passes
through some five turns of three servers before it is acknowledged, and waits for the rest of each.

Who is next is decided by fair queueing (Demers, Keshav and Shenker, 1989) on two levels: each
principal has the same share of the time, however many connections it has, and each of its
connections the same part of that. One that uses less than its own, or is new, does not wait for
those that use all of theirs. Before that, requests of a few bytes have `SMALL_NS` of each turn: who
looks after a server, or begins a connection, is not to wait for a crowd of which nobody knows yet
what it will use.

`SendBudget`: long answers are sent until `ANSWER_BYTES` have left in a turn; the others are sent in
later turns. The loop serves everything else in between. That costs no bandwidth.

Must not know: requests, answers, sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

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
SHORT_NS = 10 * MS
"""A turn goes on beyond this, and beyond each further so long, only while its requests took less
than `COSTLY_NS` each in the mean."""
COSTLY_NS = 1 * MS
"""Five times what a Produce of an overloaded server takes."""
SHARE_NS = 25 * MS
"""For one connection, while others wait."""
SMALL_NS = 5 * MS
"""For those whose request is small, all together, before the others: half of a short turn."""
SMALL_REQUEST_BYTES = 256
LEFT_MAX = 64
"""Places in a line whose owners have left, beside twice as many as wait."""


class Starter(Protocol):
    shared_until_ns: int
    share_ns: int
    """The budget's own: see `_Line`."""
    shared_by: object
    """The budget's own, too: in whose line."""

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


class _Member(Protocol):
    shared_until_ns: int
    share_ns: int


M = TypeVar("M", bound=_Member)


class _Line(Generic[M]):
    """Those that wait, in fair order.

    A line has a clock of its own that goes on as much as each of those that wait has been served.
    `shared_until_ns` of a member: up to when, by that clock, it has used its share; whoever was
    away has nothing in hand. `share_ns`: what it used when it was served last, and is expected to
    use again, but for what was more than `SHARE_NS`. Who is expected to be done first, by that
    clock, is next."""

    __slots__ = ("_number", "_queue", "fair_ns", "places")

    def __init__(self) -> None:
        self.places: dict[M, int] = {}
        """The number of each one's place."""
        self._queue: list[tuple[int, int, M]] = []
        """A heap of (when its share is expected to end, number, who). Some have left."""
        self._number = 0
        self.fair_ns = 0
        """The clock by which they take turns."""

    def join(self, one: M) -> None:
        """It waits from now on."""
        one.shared_until_ns = max(one.shared_until_ns, self.fair_ns)
        self._number += 1
        self.places[one] = self._number
        # If it had more than a share, a request was long, or the process stood still. That is over.
        expected_ns = min(one.share_ns, SHARE_NS)
        heappush(self._queue, (one.shared_until_ns + expected_ns, self._number, one))
        if len(self._queue) > 2 * len(self.places) + LEFT_MAX:
            self._queue = [place for place in self._queue if self._is_taken(place)]
            heapify(self._queue)

    def leave(self, one: M) -> None:
        """It waits no more."""
        del self.places[one]
        if not self.places:
            self._queue.clear()

    def first(self) -> M:
        """Who is next. Somebody waits."""
        while not self._is_taken(self._queue[0]):
            heappop(self._queue)
        return self._queue[0][2]

    def charge(self, one: M, used_ns: int) -> None:
        """It has been served for so long."""
        one.share_ns += used_ns
        one.shared_until_ns += used_ns
        self.fair_ns += used_ns // (len(self.places) + (one not in self.places))

    def _is_taken(self, place: tuple[int, int, M]) -> bool:
        _, number, one = place
        return self.places.get(one) == number


class _Asker:
    """A principal: a member of the line of principals, with the line of its connections."""

    def __init__(self) -> None:
        self.shared_until_ns = self.share_ns = 0
        self.line = _Line[Starter]()


class _Place(NamedTuple):
    asker: _Asker
    """Whose share its turn is part of: after a login, still the one as which it began to wait."""
    since_ns: int
    """Since when its first request is there."""


class StartBudget:
    """The pace of one server's requests.

    The principal that is first in its line is served, and of its connections the one that is first
    in theirs. Both are charged what was used. A principal that does not wait is remembered until
    the clock of its line has passed what it has used, or nobody waits."""

    __slots__ = (
        "_askers",
        "_began_ns",
        "_clock",
        "_end_ns",
        "_is_armed",
        "_line",
        "_served",
        "_served_asker",
        "_served_from_ns",
        "_small",
        "_starts_before",
        "_turn_has_ended",
        "_waiting",
        "started_ns",
        "starts",
        "until_ns",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Starter, _Place] = {}
        self._line = _Line[_Asker]()
        """Those with connections that wait."""
        self._askers: dict[str, _Asker] = {}
        """Those that wait, or have used more than their share, by name."""
        self._small: deque[tuple[_Place, Starter]] = deque()
        """Those that wait whose request is small, in the order of their arrival. Some have left."""
        self._served: Starter | None = None
        self._served_asker: _Asker | None = None
        self._served_from_ns = 0
        self._is_armed = False
        """Whether `_next_turn` will be called."""
        self._end_ns = 0
        """While those that wait are served: until when, unless the turn goes on; else 0."""
        self._began_ns = self._starts_before = 0
        """When the turn's first request started, and how many had before."""
        self._turn_has_ended = True
        """A turn has ended since `until_ns` was set."""
        self.started_ns = 0
        """When the last request started, or large answer was built: for sessions to set."""
        self.starts = 0
        """How often that was, likewise."""
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
        return self._clock.now_ns() - min(place.since_ns for place in self._waiting.values())

    def may_start(self, starter: Starter, since_ns: int, *, is_small: bool = False) -> bool:
        """Whether its next request, which arrived at `since_ns`, may start; if not,
        `resume_starting` is called in a later turn."""
        if not self._waiting:
            if self.started_ns < self._end_ns:
                self.until_ns = self._end_ns  # the only one that is served: the turn is all its
                return True
            now_ns = self._clock.now_ns()
            if self._end_ns:
                if self._goes_on(now_ns):
                    self.until_ns = self._end_ns = self._later_ns(now_ns)
                    return True
            elif self._turn_has_ended:
                self._turn_has_ended = False
                self._begin(now_ns)
                self.until_ns = now_ns + SHORT_NS
                self._behind_the_next_look(self._end_turn)
                return True
            elif self._goes_on(now_ns):
                self.until_ns = self._later_ns(now_ns)
                return True
        if starter is self._served:
            self._count(self._clock.now_ns())
            starter.share_ns = SHARE_NS  # it has more, and the turn may be what ends
        asker = self._askers.get(starter.asker)
        if asker is None:
            asker = self._askers[starter.asker] = _Asker()
        if starter.shared_by is not asker:
            # Lines have clocks of their own: what it used in another one says nothing here.
            starter.shared_by, starter.shared_until_ns = asker, 0
        asker.line.join(starter)
        if asker not in self._line.places:
            self._line.join(asker)
        place = self._waiting[starter] = _Place(asker, since_ns)
        if is_small:
            self._small.append((place, starter))
        if not self._end_ns:
            self.until_ns = 0  # who comes now waits behind this one
            self._arm()
        return False

    def leave(self, starter: Starter) -> None:
        """It waits no more."""
        place = self._waiting.pop(starter, None)
        if place is None:
            return
        asker = place.asker
        asker.line.leave(starter)
        if not asker.line.places and asker in self._line.places:
            self._line.leave(asker)

    def _begin(self, now_ns: int) -> None:
        """The requests of a turn begin."""
        self._began_ns, self._starts_before = now_ns, self.starts

    def _goes_on(self, now_ns: int) -> bool:
        """Whether the turn has more time: it has not had all, and its requests are small."""
        used_ns = now_ns - self._began_ns
        return used_ns < min(START_NS, (self.starts - self._starts_before) * COSTLY_NS)

    def _later_ns(self, now_ns: int) -> int:
        """Until when it goes on, to begin with."""
        return min(now_ns + SHORT_NS, self._began_ns + START_NS)

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
        self._begin(now_ns)
        self._end_ns = now_ns + SHORT_NS
        small, small_end_ns = self._small, now_ns + SMALL_NS
        for _ in range(len(small)):  # not those that come meanwhile
            if now_ns >= small_end_ns:
                break
            place, starter = small.popleft()
            if self._waiting.get(starter) is place:
                now_ns = self._serve(starter, now_ns, now_ns + 1)  # it starts one request
        is_first = True
        while self._waiting:
            if now_ns >= self._end_ns:
                if not (is_first or self._goes_on(now_ns)):
                    break
                # One request at least, whatever the small ones took.
                self._end_ns = now_ns + 1 if is_first else self._later_ns(now_ns)
            is_first = False
            starter = self._line.first().line.first()
            now_ns = self._serve(starter, now_ns, min(now_ns + SHARE_NS, self._end_ns))
        self._end_ns = self.until_ns = 0
        if self._waiting:
            self._arm()
            fair_ns = self._line.fair_ns
            self._askers = {
                name: asker
                for name, asker in self._askers.items()
                if asker.line.places or asker.shared_until_ns > fair_ns
            }
        else:
            small.clear()
            self._askers.clear()  # nobody begins with a debt

    def _serve(self, starter: Starter, now_ns: int, until_ns: int) -> int:
        """It is its turn. The time when that is over."""
        asker = self._waiting[starter].asker
        self.leave(starter)
        if asker in self._line.places:
            self._line.leave(asker)
        self.started_ns, self.until_ns = now_ns, until_ns
        self._served, self._served_asker, self._served_from_ns = starter, asker, now_ns
        starter.share_ns = asker.share_ns = 0
        starter.resume_starting()
        now_ns = self._clock.now_ns()
        self._count(now_ns)
        self._served = self._served_asker = None
        if asker.line.places:
            self._line.join(asker)  # perhaps anew: now it is known what was used
        return now_ns

    def _count(self, now_ns: int) -> None:
        """The one that is served has been, until now."""
        starter, asker = self._served, self._served_asker
        assert starter is not None, "nobody is served"
        assert asker is not None, "it is served as somebody's"
        used_ns = now_ns - self._served_from_ns
        self._served_from_ns = now_ns
        asker.line.charge(starter, used_ns)
        self._line.charge(asker, used_ns)


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
