"""Budgets of a turn of the loop for receiving, starting and answering large requests.

Moving bytes takes time of the loop: a megabyte costs milliseconds if the system has to provide each
page. Many clients with long requests or large answers may each have a piece ready in every turn,
and a small request would wait for all of them. Each budget therefore serves its connections in
turn, over several turns of the loop.

`ReceiveBudget`: all long requests together get `FRAME_BYTES` in each `FRAME_NS`. When that is used
up, a connection is not read before those ahead of it. While at most `FEW` wait, the budget is
`FEW_BYTES`, because a few producers with large requests are no overload. Requests up to
`SHORT_BYTES`, a few batches of the usual size, are read at once.

`StartBudget`: requests start, and large answers are built, for a part of each turn. The rest waits
for later turns, after a poll of all sockets and timers, so an overloaded server still receives its
peers' messages and runs its timers. Waiting connections take turns of `SHARE_NS`. A connection that
sends more meanwhile is not read, so the backlog is bounded and TCP slows the client down. There are
two such budgets:

* Records (Produce, and Fetch of the usual size) have up to `START_NS` of a turn. A turn has a fixed
  cost: shorter turns halve the throughput of an overloaded server with many small requests. Where
  requests take `COSTLY_NS` and more, that cost is negligible, and a turn has `SHORT_NS`.
* All other requests have the same, unless there were records of another principal in the last
  `OTHERS_NS`. A record passes through about five turns of three servers before it is acknowledged,
  and waits for the rest of each. So the others then have `SLICE_NS` of a turn, or a quarter of what
  the last records had, if that is more: many producers do not stop the heartbeats of groups. While
  a record passes, a slice is followed by a rest of `REST` times its length, in which the loop is
  idle if it has nothing else to do. Where records are few, a rest lasts until the record has
  passed, but not again for `YIELD_EVERY_NS`: so it waits for one slice only. In each rest one
  request of a few bytes may start, of a principal that had neither the slice nor the last such
  request: an administrator does not rest for a crowd. The rest is then longer by the time of that
  request, and `REST` times this: all together have no more of the loop than before. Without
  records there is no rest. Where a turn is long for any reason, a slice, and a part of a long
  request, has at least a `TURN_PARTS`th of it: a client waits for the end of a long request for a
  certain time.

Fair queueing (Demers, Keshav and Shenker, 1989) on two levels decides which request is next. Each
principal has the same share of the time, independent of its number of connections, and each of its
connections has the same part of that share. One that uses less than its share, or is new, does not
wait for those that use all of theirs. Before that, requests of a few bytes have `SMALL_NS` of each
turn: an administrator, or a client that connects, does not wait for a crowd of connections whose
use is still unknown.

`SendBudget`: long answers are sent until `ANSWER_BYTES` have left in a turn; the others are sent in
later turns. The loop serves everything else in between. This costs no bandwidth.

Does not depend on requests, answers or sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from vdl.clock import MS, Clock

SHORT_BYTES = 2 << 20
"""Size up to which a request is read without a budget: twice what clients put into one by
default."""
FRAME_NS = 4 * MS
FRAME_BYTES = 256 << 10
"""64 MiB a second."""
FEW = 4
FEW_BYTES = 1 << 20
"""256 MiB a second."""
READS_PER_TICK = 1
"""Waiting connections that are read when the budget is renewed."""
READ_BYTES_MIN = 4 << 10
"""Smallest read of a connection that finds the budget used up and does not wait yet."""
ANSWER_BYTES = 1 << 20
LONG_ANSWER_BYTES = 64 << 10
"""Answers shorter than this are not limited."""


SLICE_NS = MS // 8
"""Time of a turn for requests beside records of another principal. At least one starts."""
OTHERS_NS = 1_000 * MS
"""A principal whose last record is older than this is absent."""
PASSAGE_NS = 2 * MS
"""Time for which a record passes, as far as loops decide it: on a slow disk it takes longer, and
waits little for a loop."""
YIELD_EVERY_NS = 5 * PASSAGE_NS
REST = 3
"""While a record passes, they rest this many times as long as their slice took."""
REST_NS_MAX = 30 * MS
"""Longest rest: a slice in which the process was stopped is not paid for by those who wait."""
RECORD_PARTS = 4
"""Beside records that use up turns, a slice has this part of the last one."""
TURN_PARTS = 16
"""A slice has at least this part of the last turn of the loop."""
LATE_NS_MAX = 100 * MS
"""Longest turn that counts: a process that was stopped had no other work."""
LOOK_NS = MS // 4
"""Time after which a rest is judged again."""
START_NS = 100 * MS
"""One heartbeat interval, a sixth of the shortest election timeout. Even with all other work of a
turn, no leader loses its leadership because of it."""
SHORT_NS = 10 * MS
"""A turn continues beyond this, and beyond each further such period, only while its requests took
less than `COSTLY_NS` each on average."""
COSTLY_NS = 1 * MS
"""Five times what a Produce of an overloaded server takes."""
SHARE_NS = 25 * MS
"""Time for one connection while others wait."""
SMALL_PARTS = 2
"""Small requests have half of a turn's time, before the others."""
SMALL_REQUEST_BYTES = 256
LEFT_MAX = 64
"""Stale heap entries that a line keeps, beside twice the number of waiting members."""


class Starter(Protocol):
    """A connection as `StartBudget` uses it."""

    shared_until_ns: int
    share_ns: int
    """Fields of the budget: see `_Line`."""
    shared_by: object
    """Field of the budget: the principal in whose line it waits."""

    @property
    def asker(self) -> str:
        """Name of the principal whose share it uses."""

    def resume_starting(self) -> None:
        """Start requests: it is this one's turn."""


Resume = Callable[[], None]
"""Called when it is a connection's turn to receive or to send."""


class ReceiveBudget:
    """Budget for reading long requests on one server."""

    __slots__ = ("_clock", "_given", "_is_ticking", "_waiting", "left")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Resume, None] = {}
        """Waiting connections, in the order in which they are read."""
        self._is_ticking = False
        self._given = self.left = FEW_BYTES
        """Bytes that may be read until the next tick, and the rest of them."""

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self._waiting)

    def took(self, resume: Resume, count: int) -> bool:
        """Count `count` bytes read of a long request. Return False to wait for `resume`."""
        self.left -= count
        if not self._is_ticking:
            self._is_ticking = True
            self._clock.call_later(FRAME_NS, self._tick)
        if self.left > 0:
            return True
        self._waiting[resume] = None
        return False

    def leave(self, resume: Resume) -> None:
        """Remove a connection from those that wait."""
        self._waiting.pop(resume, None)

    def _tick(self) -> None:
        self._is_ticking = self.left < self._given or bool(self._waiting)
        self._given = self.left = FEW_BYTES if len(self._waiting) <= FEW else FRAME_BYTES
        if self._is_ticking:
            self._clock.call_later(FRAME_NS, self._tick)
        for resume in list(islice(self._waiting, READS_PER_TICK)):
            del self._waiting[resume]
            resume()


class _Member(Protocol):
    """A member of a `_Line`."""

    shared_until_ns: int
    share_ns: int


M = TypeVar("M", bound=_Member)


class _Line(Generic[M]):
    """Queue of waiting members in fair order.

    A line has a virtual clock that advances by as much as each waiting member has been served.
    `shared_until_ns` of a member is the virtual time up to which it has used its share; absence
    earns no credit. `share_ns` is the time it used when it was served last, and is expected to use
    again, capped at `SHARE_NS`. The member that is expected to finish first in virtual time is
    next.
    """

    __slots__ = ("_number", "_queue", "fair_ns", "places")

    def __init__(self) -> None:
        self.places: dict[M, int] = {}
        """Place number of each waiting member."""
        self._queue: list[tuple[int, int, M]] = []
        """Heap of (expected end of its share, place number, member). Some entries are stale."""
        self._number = 0
        self.fair_ns = 0
        """Virtual clock of the line."""

    def join(self, one: M) -> None:
        """Let a member wait from now on."""
        one.shared_until_ns = max(one.shared_until_ns, self.fair_ns)
        self._number += 1
        self.places[one] = self._number
        # A longer share last time was a long request, or a pause of the process; it is not expected
        # again.
        expected_ns = min(one.share_ns, SHARE_NS)
        heappush(self._queue, (one.shared_until_ns + expected_ns, self._number, one))
        if len(self._queue) > 2 * len(self.places) + LEFT_MAX:
            self._queue = [place for place in self._queue if self._is_taken(place)]
            heapify(self._queue)

    def leave(self, one: M) -> None:
        """Remove a waiting member."""
        del self.places[one]
        if not self.places:
            self._queue.clear()

    def first(self) -> M:
        """Return the next member. At least one must wait."""
        while not self._is_taken(self._queue[0]):
            heappop(self._queue)
        return self._queue[0][2]

    def charge(self, one: M, used_ns: int) -> None:
        """Charge a member that was served for `used_ns`."""
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
    """Place of a waiting connection."""

    asker: _Asker
    """Principal whose share is used. After a login it stays the one under which it began to
    wait."""
    since_ns: int
    """Arrival time of its first request."""


class StartBudget:
    """Budget for starting requests and building large answers on one server.

    The first principal of its line is served, and of its connections the first one of their line.
    Both are charged for the time used. A principal that does not wait is kept until the clock of
    its line has passed what it has used, or until no request waits.
    """

    __slots__ = (
        "_askers",
        "_began_ns",
        "_clock",
        "_due_ns",
        "_end_ns",
        "_is_armed",
        "_is_beside",
        "_late_ns",
        "_line",
        "_long_ns",
        "_may_yield",
        "_one_may_pass",
        "_passer",
        "_records",
        "_rested_for",
        "_rests_until_ns",
        "_served",
        "_served_asker",
        "_served_from_ns",
        "_short_ns",
        "_since_record_ns",
        "_small",
        "_starts_before",
        "_turn_has_ended",
        "_waiting",
        "_yields_again_ns",
        "passed_from_ns",
        "started_ns",
        "starts",
        "turn_ns",
        "until_ns",
    )

    def __init__(
        self,
        clock: Clock,
        since_record_ns: Callable[[str], int] | None = None,
        records: StartBudget | None = None,
    ) -> None:
        """`since_record_ns`: returns the time since a record of another principal than this one
        passed here; None: the requests are records. `records`: the budget of records."""
        self._clock = clock
        self._since_record_ns = since_record_ns
        self._records = records
        self._is_beside = False
        """True if there were records of another principal than the first in line lately."""
        self.turn_ns = 0
        """Time that requests had of the last turn."""
        self._due_ns = self._late_ns = 0
        """Time at which `_next_turn` should run, and how late it ran last: what else the loop did
        in that turn."""
        self._rests_until_ns = 0
        self._one_may_pass = False
        """True if a small request may start in the present rest."""
        self._rested_for: set[str] = set()
        """Principals that had the last slice, or whose request started in the rest before it."""
        self._passer: str | None = None
        """Principal whose request started since the last slice."""
        self.passed_from_ns = 0
        """Time when it started; 0 once it is paid for. See `pay_for_pass`."""
        self._yields_again_ns = 0
        """Time from which they may rest for a whole passage again."""
        self._may_yield = False
        """True if no record passed at one time since they last did. Where one always passes, they
        would never be served."""
        self._short_ns, self._long_ns = SHORT_NS, START_NS
        """Time in each turn, and the same while requests are cheap."""
        self._waiting: dict[Starter, _Place] = {}
        self._line = _Line[_Asker]()
        """Principals with waiting connections."""
        self._askers: dict[str, _Asker] = {}
        """Principals that wait or have used more than their share, by name."""
        self._small: deque[tuple[_Place, Starter]] = deque()
        """Waiting connections with a small request, in the order of their arrival. Some have
        left."""
        self._served: Starter | None = None
        self._served_asker: _Asker | None = None
        self._served_from_ns = 0
        self._is_armed = False
        """True if `_next_turn` is scheduled."""
        self._end_ns = 0
        """End of service in the current turn, unless the turn is extended; 0 while no one is
        served."""
        self._began_ns = self._starts_before = 0
        """Time when the turn's first request started, and the value of `starts` before it."""
        self._turn_has_ended = True
        """True if a turn has ended since `until_ns` was set."""
        self.started_ns = 0
        """Time when the last request started or large answer was built. Set by sessions."""
        self.starts = 0
        """Number of such starts. Set by sessions."""
        self.until_ns = 0
        """Time until which requests start without `may_start`. A session calls it once
        `started_ns` has reached this. So the common case is one comparison, and a turn may be a
        little longer."""

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self._waiting)

    def oldest_ns(self) -> int:
        """Return the longest wait of a queued request (ns); 0 if none waits. Costly; for checks."""
        if not self._waiting:
            return 0
        return self._clock.now_ns() - min(place.since_ns for place in self._waiting.values())

    @property
    def part_ns(self) -> int:
        """Time that a part of a long request may take."""
        if self._is_beside:
            return self._short_ns
        return max(SLICE_NS, (self.turn_ns + self._late_ns) // TURN_PARTS)

    def may_start(self, starter: Starter, since_ns: int, *, is_small: bool = False) -> bool:
        """Return True if the next request, which arrived at `since_ns`, may start.

        If not, `resume_starting` is called in a later turn.
        """
        if self.passed_from_ns:
            self.pay_for_pass()
        if is_small and self._may_pass(starter.asker):
            return True
        if not self._waiting:
            if self.started_ns < self._end_ns:
                self.until_ns = self._end_ns  # the only one served may use the whole turn
                return True
            now_ns = self._clock.now_ns()
            if self._end_ns:
                if self._goes_on(now_ns):
                    self.until_ns = self._end_ns = self._later_ns(now_ns)
                    return True
            elif self._is_beside and now_ns < self._rests_until_ns:
                pass  # `_next_turn` judges if it starts now
            elif self._turn_has_ended:
                self._turn_has_ended = False
                self._look_at_others(starter.asker)
                self._began_ns, self._starts_before = now_ns, self.starts
                self.until_ns = now_ns + self._short_ns
                self._behind_the_next_look(self._end_turn)
                return True
            elif self._goes_on(now_ns):
                self.until_ns = self._later_ns(now_ns)
                return True
        if starter is self._served:
            self._count(self._clock.now_ns())
            starter.share_ns = SHARE_NS  # it has more; perhaps only the turn ends its service
        asker = self._askers.get(starter.asker)
        if asker is None:
            asker = self._askers[starter.asker] = _Asker()
        if starter.shared_by is not asker:
            # Virtual clocks of two lines are not comparable.
            starter.shared_by, starter.shared_until_ns = asker, 0
        asker.line.join(starter)
        if asker not in self._line.places:
            self._line.join(asker)
        place = self._waiting[starter] = _Place(asker, since_ns)
        if is_small:
            self._small.append((place, starter))
        if not self._end_ns:
            self.until_ns = 0  # later requests queue behind this one
            self._arm()
        return False

    def _may_pass(self, asker: str) -> bool:
        """Return True for the first small request in a rest, of a principal that had neither the
        slice before nor the last such request."""
        if not self._one_may_pass or self._end_ns or asker in self._rested_for:
            return False
        now_ns = self._clock.now_ns()
        if now_ns >= self._rests_until_ns:
            return False
        self._one_may_pass = False
        self._passer, self.passed_from_ns = asker, now_ns
        self._clock.call_soon(self.pay_for_pass)
        return True

    def pay_for_pass(self) -> None:
        """Lengthen the rest, and charge the principal, for the request that started in it.

        Called when the loop does something else: by sessions before the next start of any kind, if
        `passed_from_ns` is set. Only the first call has an effect.
        """
        name, from_ns = self._passer, self.passed_from_ns
        if name is None or not from_ns:
            return
        used_ns, self.passed_from_ns = self._clock.now_ns() - from_ns, 0
        self._rests_until_ns += used_ns + min(REST * used_ns, REST_NS_MAX)
        line, asker = self._line, self._askers.get(name)
        if asker is None:
            asker = self._askers[name] = _Asker()
        waits = asker in line.places
        if waits:
            line.leave(asker)
        asker.shared_until_ns = max(asker.shared_until_ns, line.fair_ns)
        asker.share_ns = 0
        line.charge(asker, used_ns)
        if waits:
            line.join(asker)

    def leave(self, starter: Starter) -> None:
        """Remove a waiting connection."""
        place = self._waiting.pop(starter, None)
        if place is None:
            return
        asker = place.asker
        asker.line.leave(starter)
        if not asker.line.places and asker in self._line.places:
            self._line.leave(asker)

    def _goes_on(self, now_ns: int) -> bool:
        """Return True if the turn has time left and its requests are cheap enough to extend it."""
        used_ns = now_ns - self._began_ns
        return used_ns < min(self._long_ns, (self.starts - self._starts_before) * COSTLY_NS)

    def _later_ns(self, now_ns: int) -> int:
        """Return the next end of an extended turn."""
        return min(now_ns + self._short_ns, self._began_ns + self._long_ns)

    def _end_turn(self) -> None:
        self._turn_has_ended = True
        if not self._waiting:
            self.turn_ns = self.started_ns - self._began_ns

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            if self._since_record_ns is not None:
                # A slice is short, and timers run behind the end of a turn.
                self._call_next_turn(self._clock.now_ns(), 1)
            else:
                self._behind_the_next_look(self._next_turn)

    def _call_next_turn(self, now_ns: int, delay_ns: int) -> None:
        self._due_ns = now_ns + delay_ns
        self._clock.call_later(delay_ns, self._next_turn)

    def _behind_the_next_look(self, fn: Callable[[], None]) -> None:
        """Call `fn` after the next poll of the sockets.

        Timers run after the poll in which they are set, and a turn may have several ends. So a
        second timer is needed.
        """
        clock = self._clock

        def looked() -> None:
            clock.call_later(1, fn)

        clock.call_later(1, looked)

    def _next_turn(self) -> None:
        self._is_armed = False
        self.pay_for_pass()
        began_ns = now_ns = self._clock.now_ns()
        if self._due_ns:
            self._late_ns = min(now_ns - self._due_ns, LATE_NS_MAX)
        if self._waiting:
            since_ns = self._look_at_others(self._line.first().line.first().asker)
            if since_ns < PASSAGE_NS:
                if self._may_yield and now_ns >= self._yields_again_ns:
                    self._may_yield, self._yields_again_ns = False, now_ns + YIELD_EVERY_NS
                    passed_ns = now_ns - since_ns + PASSAGE_NS
                    self._rests_until_ns = max(self._rests_until_ns, passed_ns)
                rest_ns = self._rests_until_ns - now_ns
                if rest_ns > 0:
                    self._is_armed = True
                    self._call_next_turn(now_ns, min(rest_ns, LOOK_NS))
                    return
            else:
                self._may_yield = True
        self._began_ns, self._starts_before = now_ns, self.starts
        self._end_ns = now_ns + self._short_ns
        is_slice = bool(self._waiting)
        if is_slice:
            self._rested_for.clear()
            if self._passer is not None:
                self._rested_for.add(self._passer)
                self._passer = None
        small, small_end_ns = self._small, now_ns + self._short_ns // SMALL_PARTS
        for _ in range(len(small)):  # not those that arrive meanwhile
            if now_ns >= small_end_ns:
                break
            place, starter = small.popleft()
            if self._waiting.get(starter) is place:
                self._judge(starter)
                small_end_ns = min(small_end_ns, began_ns + self._short_ns // SMALL_PARTS)
                now_ns = self._serve(starter, now_ns, now_ns + 1)  # it starts one request
        is_first = True
        while self._waiting:
            if now_ns >= self._end_ns:
                if not (is_first or self._goes_on(now_ns)):
                    break
                # Serve at least one request, even if the small ones used up the turn.
                self._end_ns = now_ns + 1 if is_first else self._later_ns(now_ns)
            starter = self._line.first().line.first()
            self._judge(starter)
            self._end_ns = min(self._end_ns, began_ns + self._long_ns)
            if is_first:
                self._end_ns = max(self._end_ns, now_ns + 1)
            is_first = False
            now_ns = self._serve(starter, now_ns, min(now_ns + SHARE_NS, self._end_ns))
        self._end_ns = self.until_ns = 0
        self.turn_ns = now_ns - began_ns
        if self._since_record_ns is not None:
            self._rests_until_ns = now_ns + min(REST * self.turn_ns, REST_NS_MAX)
            self._one_may_pass = is_slice and self._is_beside
        if self._waiting:
            self._arm()
            # A turn may be short: the principals are not looked at in each.
            if len(self._askers) > 2 * len(self._line.places) + LEFT_MAX:
                fair_ns = self._line.fair_ns
                self._askers = {
                    name: asker
                    for name, asker in self._askers.items()
                    if asker.line.places or asker.shared_until_ns > fair_ns
                }
        else:
            small.clear()
            self._askers.clear()  # the next crowd starts without debts

    def _judge(self, starter: Starter) -> None:
        """Shorten the turn if there were records of another principal than this one.

        The first in line may be the one that sends records.
        """
        if self._since_record_ns is not None and not self._is_beside:
            self._look_at_others(starter.asker)

    def _look_at_others(self, asker: str) -> int:
        """Choose the length of a turn in which `asker` is first. Return the time since a record of
        another principal."""
        since_ns = OTHERS_NS
        if self._since_record_ns is not None:
            since_ns = self._since_record_ns(asker)
            self._is_beside = since_ns < OTHERS_NS
            if self._is_beside:
                records_ns = 0 if self._records is None else self._records.turn_ns
                self._short_ns = self._long_ns = max(
                    SLICE_NS, records_ns // RECORD_PARTS, self._late_ns // TURN_PARTS
                )
            else:
                self._short_ns, self._long_ns = SHORT_NS, START_NS
        return since_ns

    def _serve(self, starter: Starter, now_ns: int, until_ns: int) -> int:
        """Serve a connection whose turn it is. Return the time when that is over."""
        asker = self._waiting[starter].asker
        self.leave(starter)
        if asker in self._line.places:
            self._line.leave(asker)
        self.started_ns, self.until_ns = now_ns, until_ns
        self._served, self._served_asker, self._served_from_ns = starter, asker, now_ns
        starter.share_ns = asker.share_ns = 0
        self._rested_for.add(starter.asker)
        starter.resume_starting()
        now_ns = self._clock.now_ns()
        self._count(now_ns)
        self._served = self._served_asker = None
        if asker.line.places:
            self._line.join(asker)  # perhaps again, now that its use is known
        return now_ns

    def _count(self, now_ns: int) -> None:
        """Charge the served connection and its principal for the time until now."""
        starter, asker = self._served, self._served_asker
        assert starter is not None, "no connection is served"
        assert asker is not None, "the principal is set while a connection is served"
        used_ns = now_ns - self._served_from_ns
        self._served_from_ns = now_ns
        asker.line.charge(starter, used_ns)
        self._line.charge(asker, used_ns)


class SendBudget:
    """Budget for sending long answers on one server."""

    __slots__ = ("_clock", "_is_over", "_left", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Resume, None] = {}
        """Waiting connections, in the order in which their answers are sent."""
        self._left = ANSWER_BYTES
        """Bytes that may still be sent in this turn."""
        self._is_over = True
        """True if no next turn is scheduled."""

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self._waiting)

    def may_send(self, resume: Resume) -> bool:
        """Return True if a long answer may be sent now.

        If not, `resume` is called in a later turn.
        """
        if self._left > 0:
            return True
        self.wait(resume)
        return False

    def wait(self, resume: Resume) -> None:
        """Call `resume` in a later turn. Use: after `sent`."""
        self._waiting[resume] = None

    def sent(self, count: int) -> None:
        """Count `count` bytes of a long answer as sent."""
        self._left -= count
        if self._is_over:
            self._is_over = False
            self._clock.call_later(1, self._next_turn)  # after the next poll of the sockets

    def leave(self, resume: Resume) -> None:
        """Remove a waiting connection."""
        self._waiting.pop(resume, None)

    def _next_turn(self) -> None:
        self._is_over = True
        self._left = ANSWER_BYTES
        while self._waiting and self._left > 0:
            resume = next(iter(self._waiting))
            del self._waiting[resume]
            resume()
