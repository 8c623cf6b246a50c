"""One wrong clock has no effect; nothing is deleted by a time that has not held for a hold."""

from __future__ import annotations

import random
from typing import Any

import pytest

from vdl.clock import MS
from vdl.logstream.time.agreed_time import BUCKETS, NOTHING_IS_OLD, AgreedTime
from vdl.logstream.time.cluster_time import ClusterTime

TRUE = 1_790_000_000_000
DAY = 86_400_000
HOLD = 60_000
WIDTH = HOLD // BUCKETS
BEAT = 1_000
YEARS_BEHIND = -TRUE + 5_000
"""Error of a clock without a battery, which starts in 1970."""


class Clocks:
    """Server 1 of a cluster: its clock, and the clocks that its peers send.

    Errors are in ms against the true time, by server; `links` are the linked peers.
    """

    def __init__(self, servers: int, *links: int, errors: dict[int, int] | None = None) -> None:
        self.ms = 0
        self.mono_ms = 7_000_000
        self.errors = dict.fromkeys(range(1, servers + 1), 0) | (errors or {})
        self.links = set(links)
        self.agreed = AgreedTime(servers, hold_ms=HOLD)
        for peer in links:
            self.agreed.linked(peer)

    @property
    def now_ns(self) -> int:
        return self.mono_ms * MS

    def wall(self, server: int = 1) -> int:
        return TRUE + self.ms + self.errors[server]

    def beat(self) -> None:
        """Have every linked peer send its clock, in answer to the beat before."""
        self.agreed.look(self.wall(), self.now_ns)
        for peer in sorted(self.links):
            self.agreed.received(
                peer, self.wall(peer), self.now_ns, wall_ms=self.wall(), now_ns=self.now_ns
            )

    def run(self, ms: int) -> None:
        for _ in range(ms // BEAT):
            self.ms += BEAT
            self.mono_ms += BEAT
            self.beat()

    def sleep(self, ms: int) -> None:
        """Let all machines sleep: monotonic clocks stop, and the links' last messages age."""
        self.ms += ms

    def link(self, peer: int) -> None:
        self.links.add(peer)
        self.agreed.linked(peer)

    def unlink(self, peer: int) -> None:
        self.links.discard(peer)
        self.agreed.unlinked(peer)

    @property
    def late(self) -> int:
        """Lag of the stamping time behind the true time."""
        return TRUE + self.ms - self.agreed.now_ms(self.wall(), self.now_ns)

    @property
    def settled_late(self) -> int | None:
        """Lag of the deletion time behind the true time; None while nothing is old."""
        settled = self.agreed.settled_ms(self.now_ns)
        return None if settled == NOTHING_IS_OLD else TRUE + self.ms - settled


@pytest.mark.parametrize("wrong", [1, 2])
@pytest.mark.parametrize("error", [YEARS_BEHIND, -8 * DAY, 8 * DAY, 40_000 * DAY])
def test_one_wrong_clock_of_three_moves_nothing(wrong: int, error: int) -> None:
    """The median is a right clock, whichever clock is wrong."""
    clocks = Clocks(3, 2, 3, errors={wrong: error})
    clocks.run(2 * HOLD)
    assert clocks.late == 0
    assert clocks.settled_late == 0


@pytest.mark.parametrize("wrong", [1, 2])
@pytest.mark.parametrize("error", [YEARS_BEHIND, 8 * DAY])
def test_wrong_clock_beside_a_server_that_is_down_moves_nothing(wrong: int, error: int) -> None:
    """With two of three clocks known the time continues between them."""
    clocks = Clocks(3, 2, 3)
    clocks.run(2 * HOLD)
    clocks.unlink(3)
    clocks.errors[wrong] = error
    clocks.run(3 * HOLD)
    assert abs(clocks.late) <= max(0, error)  # a step of the own clock may make stamps too new
    assert clocks.late <= 0
    assert clocks.settled_late == 0
    clocks.link(3)
    clocks.run(BEAT)
    assert clocks.late == 0
    assert clocks.settled_late == 0


def test_start_beside_a_wrong_clock_stamps_late_and_deletes_nothing_early() -> None:
    """It is unknown which of two clocks is right."""
    for error in (YEARS_BEHIND, 8 * DAY):
        clocks = Clocks(3, 2, errors={2: error})
        clocks.run(2 * HOLD)
        assert clocks.late == min(0, -error)
        assert clocks.settled_late is None or clocks.settled_late == max(0, -error)


def test_nothing_is_old_before_a_hold_has_passed_since_the_start() -> None:
    """The clock may be the only one, or all may have been set wrong together."""
    clocks = Clocks(1)
    clocks.run(HOLD)
    assert clocks.settled_late is None
    clocks.run(BEAT)
    assert clocks.settled_late == 0


def test_only_clock_started_in_1970_is_right_a_hold_after_it_is_corrected() -> None:
    """Without a restart; its earlier time does not matter."""
    clocks = Clocks(1, errors={1: YEARS_BEHIND})
    clocks.run(3 * HOLD)
    clocks.errors[1] = 0
    assert clocks.late == 0
    clocks.run(HOLD - BEAT)
    assert clocks.settled_late == -YEARS_BEHIND
    clocks.run(BEAT + WIDTH)
    assert clocks.settled_late == 0


def test_all_clocks_set_forward_delete_nothing_when_corrected_in_time() -> None:
    """If they are not corrected, their time counts after a hold."""
    clocks = Clocks(3, 2, 3)
    clocks.run(2 * HOLD)
    clocks.errors = dict.fromkeys(clocks.errors, 8 * DAY)
    clocks.run(HOLD - BEAT)
    assert clocks.settled_late == 0
    clocks.errors = dict.fromkeys(clocks.errors, 0)
    clocks.run(2 * HOLD)
    assert clocks.settled_late == 0
    clocks.errors = dict.fromkeys(clocks.errors, 8 * DAY)
    clocks.run(HOLD + BEAT + WIDTH)
    assert clocks.settled_late == -8 * DAY
    clocks.errors = dict.fromkeys(clocks.errors, 0)
    clocks.run(BEAT)
    assert clocks.settled_late == 0
    assert clocks.late == 0


def test_time_that_the_machine_slept_is_made_up_for() -> None:
    """Stamps at once, deletions within a hold. Each sleep counts."""
    for clocks in (Clocks(1), Clocks(3, 2, 3)):
        clocks.run(2 * HOLD)
        for _ in range(3):
            clocks.sleep(8 * DAY)
            assert clocks.late == 0
            clocks.run(BEAT)
            assert clocks.late == 0
            assert clocks.settled_late == 8 * DAY
            clocks.run(HOLD + WIDTH)
            assert clocks.settled_late == 0


def test_what_was_said_before_the_sleep_is_not_believed_after_it() -> None:
    """A heartbeat that was under way when all machines fell asleep carries an old time."""
    clocks = Clocks(3, 2, 3)
    clocks.run(2 * HOLD)
    said = clocks.wall(2)
    echoed_ns = clocks.now_ns
    clocks.sleep(8 * DAY)
    clocks.mono_ms += 1
    for peer in (2, 3):
        clocks.agreed.received(peer, said, echoed_ns, wall_ms=clocks.wall(), now_ns=clocks.now_ns)
    assert clocks.late <= 0


def test_without_a_majority_time_goes_on_and_does_not_jump() -> None:
    """A single clock is no majority."""
    clocks = Clocks(3, 2, 3)
    clocks.run(2 * HOLD)
    clocks.unlink(2)
    clocks.unlink(3)
    clocks.errors[1] = YEARS_BEHIND
    clocks.run(2 * HOLD)
    assert clocks.late == 0
    assert clocks.settled_late == 0


def test_noted_time_is_the_least_while_nothing_is_settled() -> None:
    """The noted time is the minimum.

    A clock that restarts in 1970 does not stamp data that would be decades old once it is right. A
    note that was wrongly ahead does not hold time back for ever.
    """
    clocks = Clocks(1, errors={1: YEARS_BEHIND})
    clocks.agreed.remember(TRUE - DAY)
    clocks.run(HOLD // 2)
    assert clocks.late == DAY + HOLD // 2
    clocks.errors[1] = 0
    clocks.agreed.remember(TRUE + 1_000 * DAY)
    assert clocks.late < -999 * DAY
    clocks.run(2 * HOLD)
    assert clocks.late == 0


def test_only_clock_set_back_decades_does_not_stamp_them() -> None:
    """The minimum is the noted time, for a hold: time to notice and correct the clock."""
    clocks = Clocks(1)
    clocks.run(2 * HOLD)
    clocks.agreed.remember(TRUE + clocks.ms)
    clocks.errors[1] = YEARS_BEHIND
    clocks.run(HOLD - BEAT)
    assert 0 <= clocks.late <= HOLD
    clocks.run(2 * BEAT)
    assert clocks.late == -YEARS_BEHIND


@pytest.mark.parametrize("error", [-8 * DAY, 8 * DAY])
def test_clocks_of_two_that_disagree_beside_one_that_is_away_are_not_sure(error: int) -> None:
    """One of them is wrong, and it is unknown which: the time must not be noted."""
    clocks = Clocks(3, 2, errors={2: error})
    assert not clocks.agreed.is_sure
    clocks.run(HOLD)
    assert not clocks.agreed.is_sure
    clocks.link(3)
    clocks.run(BEAT)
    assert clocks.agreed.is_sure
    assert clocks.late == 0
    clocks.unlink(3)
    clocks.unlink(2)
    assert not clocks.agreed.is_sure


def test_leap_ahead_is_counted_and_a_step_back_is_not() -> None:
    """A leap is noted at once: the next start may have a clock that is behind."""
    for clocks in (Clocks(1), Clocks(3, 2, 3)):
        clocks.run(2 * HOLD)
        assert clocks.agreed.moves_forward == 0
        clocks.sleep(8 * DAY)
        clocks.run(BEAT)
        assert clocks.agreed.moves_forward == 1
        assert clocks.agreed.is_sure
        clocks.errors = dict.fromkeys(clocks.errors, -8 * DAY)
        clocks.run(HOLD)
        assert clocks.agreed.moves_forward == 1


def test_agreed_time_random_walk_keeps_its_bounds() -> None:
    """Compared with the complete history.

    Stamps lie between the bounds. The deletion time is at or below the least `low` of the last
    hold, unless it was right before.
    """
    judged = 0
    for seed in range(40):
        rng = random.Random(seed)
        servers = rng.choice((1, 2, 3, 4, 5))
        majority = servers // 2 + 1
        clocks = Clocks(servers, *range(2, servers + 1))
        lows: list[tuple[int, int]] = []
        settled: int | None = None
        for _ in range(400):
            if rng.random() < 0.03:
                server = rng.randint(1, servers)
                clocks.errors[server] = rng.choice((0, 0, YEARS_BEHIND, -8 * DAY, 8 * DAY))
            if servers > 1 and rng.random() < 0.05:
                peer = rng.randint(2, servers)
                (clocks.unlink if peer in clocks.links else clocks.link)(peer)
            clocks.run(BEAT)
            known = sorted(clocks.errors[s] for s in (1, *clocks.links))
            if len(known) >= majority:
                low, high = known[-majority], known[majority - 1]
                lows.append((clocks.mono_ms, low))
                assert low <= -clocks.late <= high, (seed, clocks.ms)
                if settled is not None:
                    settled = min(settled, high)
            error = None if clocks.settled_late is None else -clocks.settled_late
            # The value of this beat may have been received after the time had risen.
            exact = [low for at, low in lows[:-1] if at >= clocks.mono_ms - HOLD]
            if error is not None and (settled is None or error > settled):
                assert exact, (seed, clocks.ms)
                assert error <= min(exact), (seed, clocks.ms)
            longer = [low for at, low in lows if at >= clocks.mono_ms - HOLD - 2 * WIDTH]
            if len(longer) == (HOLD + 2 * WIDTH) // BEAT + 1:  # a majority all the time
                assert error is not None, (seed, clocks.ms)
                assert error >= min([*longer, high]), (seed, clocks.ms)
                judged += 1
            settled = error
    assert judged > 1_000


def test_memory_is_bounded() -> None:
    """A hold of any length is divided into a fixed number of parts."""
    clocks = Clocks(1)
    clocks.run(10 * HOLD)
    assert len(clocks.agreed._buckets) <= BUCKETS + 3


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields["ahead_ms"]))

    warning = error = info


class Clock:
    """The clock of `Clocks`, with the interface of a server's clock."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks

    def wall_ms(self) -> int:
        return self.clocks.wall()

    def now_ns(self) -> int:
        return self.clocks.now_ns


def test_disagreeing_clock_is_logged_once_by_how_much() -> None:
    """It is logged again only after it agreed."""
    clocks = Clocks(3)
    log = Log()
    time = ClusterTime(Clock(clocks), voters=(1, 2, 3), own=1, hold_ms=HOLD, log=log)  # type: ignore[arg-type]
    for peer in (2, 3):
        time.linked(peer)

    def beat() -> None:
        clocks.run(BEAT)
        time.look()
        for peer in (2, 3):
            time.received(peer, clocks.wall(peer), clocks.now_ns)
        time.look()

    for error in (0, 59_000, -8 * DAY, -8 * DAY, 0, 61_000):
        clocks.errors[1] = error
        beat()
    assert log.lines == [
        ("clock_disagrees", -8 * DAY),
        ("clock_agrees", 0),
        ("clock_disagrees", 61_000),
    ]
    assert time.ahead_ms == 61_000
    del log.lines[:]
    for error in (59_999, 60_001, 59_999, 60_001, 31_000):
        clocks.errors[1] = error
        beat()
    assert log.lines == [], "it stands at the limit, or nearly"
    clocks.errors[1] = 29_000
    beat()
    assert log.lines == [("clock_agrees", 29_000)]


def test_clock_of_an_added_server_does_not_count() -> None:
    """The clocks are those of the birth record, so that any two majorities overlap."""
    agreed = AgreedTime(3, counts_own=False, hold_ms=HOLD)
    for peer in (1, 2, 3):
        agreed.linked(peer)
    agreed.look(TRUE + DAY, 0)
    assert not agreed.is_sure
    agreed.received(1, TRUE, 0, wall_ms=TRUE + DAY, now_ns=0)
    assert not agreed.is_sure
    agreed.received(2, TRUE, 0, wall_ms=TRUE + DAY, now_ns=0)
    assert agreed.is_sure
    assert agreed.now_ms(TRUE + DAY, 0) == TRUE
    assert agreed.ahead_ms == DAY
