"""Requests beside records are slowed and not starved: two budgets of one loop, on virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from vdl.clock import MS, Timer
from vdl.kafka.connections.turn_budget import (
    OTHERS_NS,
    PASSAGE_NS,
    REST,
    REST_NS_MAX,
    SLICE_NS,
    StartBudget,
)

PRODUCE_NS: Final = MS // 5
WORK_NS: Final = MS // 10
TURN_NS: Final = MS // 20
"""Time of a turn beside requests."""
SECOND: Final = 1_000 * MS
PRODUCER = "producer"


class Due:
    def cancel(self) -> None:
        raise AssertionError("no timer of a budget is cancelled")


class Loop:
    """A loop that runs its timers once a turn; time passes as requests take it."""

    def __init__(self) -> None:
        self.ns = SECOND
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.records = StartBudget(self)
        self.work = StartBudget(self, self._since_record_ns, self.records)
        self.produced_ns = -OTHERS_NS
        self.turns: list[int] = []
        """Time that each turn's work requests took."""

    def now_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return self.ns // MS

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer:
        self._count += 1
        heapq.heappush(self._timers, (self.ns + delay_ns, self._count, fn))
        return Due()

    def call_soon(self, fn: Callable[[], None]) -> None:
        self.call_later(1, fn)

    def turn(self) -> None:
        due = []
        while self._timers and self._timers[0][0] <= self.ns:
            due.append(heapq.heappop(self._timers)[2])
        began_ns = self.ns
        for fn in due:
            fn()
        self.turns.append(self.ns - began_ns)
        self.ns += TURN_NS

    def _since_record_ns(self, asker: str) -> int:
        return OTHERS_NS if asker == PRODUCER else min(OTHERS_NS, self.ns - self.produced_ns)


class Connection:
    """A connection that has one request at a time."""

    shared_until_ns = share_ns = 0
    shared_by: object = None

    def __init__(self, loop: Loop, asker: str, *, is_record: bool = False) -> None:
        self.loop = loop
        self.asker = asker
        self.is_record = is_record
        self.takes_ns = PRODUCE_NS if is_record else WORK_NS
        self.budget = loop.records if is_record else loop.work
        self.asked_ns = -1
        self._in_line = False
        self.waits_ns: list[int] = []

    def ask(self) -> None:
        if self.asked_ns < 0:
            self.asked_ns = self.loop.ns
            self._start()

    def resume_starting(self) -> None:
        self._in_line = False
        self._start()

    def _start(self) -> None:
        loop, budget = self.loop, self.budget
        if self._in_line or self.asked_ns < 0:
            return
        if budget.started_ns >= budget.until_ns and not budget.may_start(
            self, self.asked_ns, is_small=not self.is_record
        ):
            self._in_line = True
            return
        budget.started_ns = loop.ns
        budget.starts += 1
        if self.is_record:
            loop.produced_ns = loop.ns
        self.waits_ns.append(loop.ns - self.asked_ns)
        loop.ns += self.takes_ns
        self.asked_ns = -1


def busy_with_records(loop: Loop) -> None:
    """Have a record in each turn, as of a producer that never rests."""
    loop.produced_ns = loop.ns


def test_heartbeats_beside_many_producers_are_answered() -> None:
    """For few producers and for more than one turn takes, each with its next request ready."""
    for count in (5, 50, 1_000):
        loop = Loop()
        producers = [Connection(loop, PRODUCER, is_record=True) for _ in range(count)]
        members = [Connection(loop, "group") for _ in range(300)]
        next_ns = [loop.ns + number * SECOND // len(members) for number in range(len(members))]
        end_ns = loop.ns + 5 * SECOND
        while loop.ns < end_ns:
            for producer in producers:
                producer.ask()
            for number, member in enumerate(members):
                if loop.ns >= next_ns[number]:
                    next_ns[number] += SECOND
                    member.ask()
            loop.turn()
        waits = [wait for member in members for wait in member.waits_ns]
        assert len(waits) >= 4 * len(members)
        assert max(waits) < SECOND


def test_rest_does_not_grow_with_a_pause_of_the_process() -> None:
    loop = Loop()
    members = [Connection(loop, "group") for _ in range(20)]
    members[5].takes_ns = 4 * SECOND
    while not members[5].waits_ns:
        busy_with_records(loop)
        for member in members:
            member.ask()
        loop.turn()
    paused_ns = loop.ns
    started = sum(len(member.waits_ns) for member in members)
    while sum(len(member.waits_ns) for member in members) == started:
        busy_with_records(loop)
        loop.turn()
    assert loop.ns - paused_ns < 2 * REST_NS_MAX


def test_requests_of_a_producer_lengthen_no_turn_of_others() -> None:
    """Those behind it in the line have a slice, as if it had not been first."""
    loop = Loop()
    crowd = [Connection(loop, "crowd") for _ in range(400)]
    own = Connection(loop, PRODUCER)
    end_ns = loop.ns + SECOND
    while loop.ns < end_ns:
        busy_with_records(loop)
        for connection in (own, *crowd):
            connection.ask()
        loop.turn()
    assert len(own.waits_ns) > 100
    assert max(loop.turns) <= SLICE_NS + 3 * WORK_NS


def test_lone_record_has_its_passage_for_itself() -> None:
    """Others start no slice while it passes, only what was due. Where
    records always pass, they have a part of each turn, as above."""
    loop = Loop()
    crowd = [Connection(loop, "group") for _ in range(20)]

    def started_until(end_ns: int) -> int:
        before = sum(len(one.waits_ns) for one in crowd)
        while loop.ns < end_ns:
            for one in crowd:
                one.ask()
            loop.turn()
        return sum(len(one.waits_ns) for one in crowd) - before

    loop.produced_ns = loop.ns
    started = []
    for _ in range(10):
        started_until(loop.ns + 20 * MS)
        loop.produced_ns = loop.ns
        started.append(started_until(loop.ns + PASSAGE_NS))
    assert max(started) <= 1, started


def test_small_request_that_starts_in_a_rest_is_paid_for() -> None:
    """Even one that takes long takes no time from others, however often its principal asks."""
    loop = Loop()
    crowd = [Connection(loop, "crowd") for _ in range(20)]
    lone = Connection(loop, "lone")
    lone.takes_ns = 2 * MS
    next_ns, at_once = loop.ns + 10 * MS, 0
    began_ns = loop.ns
    while loop.ns < began_ns + 4 * SECOND:
        busy_with_records(loop)
        for one in crowd:
            one.ask()
        if lone.asked_ns < 0 and loop.ns >= next_ns:
            lone.ask()
            at_once += lone.asked_ns < 0
            next_ns = loop.ns + MS
        loop.turn()
    lone_ns, crowd_ns = (
        sum(one.takes_ns * len(one.waits_ns) for one in ones) for ones in ([lone], crowd)
    )
    assert at_once > 0
    assert lone_ns + crowd_ns <= 1.05 / (1 + REST) * (loop.ns - began_ns)
    assert lone_ns <= 1.05 * crowd_ns
