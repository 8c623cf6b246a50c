"""The time base of a server's timers, which runs slower while the server's own loop is late.

A follower takes silence for the death of its leader. But a late server has not listened: its
leader's messages may lie unread, and if servers share a machine the leader is late for the same
reason. A server that is too slow becomes slower by elections. So ticks that pass while the loop is
late count for a quarter: an election timeout grows with the lag, to four times its length at most,
and a dead leader is always replaced. While the loop is in time, ticks are real ticks. Safety does
not depend on either: it is ensured by terms and quorums.

The loop is late from the moment at which a beat of this object should have run until it runs. Beats
are `BEAT_NS` apart; turns may take up to `GRACE_NS`. It also counts as late, from beat to beat,
while more data lie unread than it handles in a turn: its turns are short then, but it has not
listened either.

Does not depend on leaders, or the use of ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vdl.clock import MS, Clock, until_next
from vdl.logstream.options import TICK_NS

BEAT_NS = 100 * MS
"""As often as heartbeats: the loop of an idle server wakes for both together."""
GRACE_NS = 20 * MS
SLOWEST = 4
"""Time runs at least at this fraction (1/4) of real time."""
KEPT = 64
"""Number of late periods kept: more than there are in any timeout."""
NO_BEAT = -1
UNREAD_NS = 70 * MS
"""Data that lie unread for less are a burst, comparable to a turn that takes no longer."""


def nothing_unread() -> int:
    """Return 0, for a server that has no links yet."""
    return 0


class LoopTime:
    """Time base of one server."""

    __slots__ = (
        "_clock",
        "_closed",
        "_due_ns",
        "_is_late",
        "_lately",
        "_leaves_unread",
        "_number",
        "_unread_ns",
        "late_ns",
        "late_total_ns",
        "lost_ns",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unread_ns = nothing_unread
        self._closed = False
        self._due_ns = clock.now_ns() + BEAT_NS
        """Time at which the next beat should run; while the loop is late: end of the accounted
        time."""
        self._is_late = False
        self._leaves_unread = False
        """State at the last beat."""
        self._number = NO_BEAT
        """Number of the interval of the last beat."""
        self._lately: deque[tuple[int, int, int]] = deque(maxlen=KEPT)
        """(start, end, lost time) of the last periods in which the loop was late."""
        self.lost_ns = 0
        """Lag of this time behind the clock. Invariant: grows by less than the clock does."""
        self.late_total_ns = 0
        """Total lateness of the loop."""
        self.late_ns = 0
        """Recent lateness of the loop: that of the latest beat, or the remainder of an earlier one,
        less a quarter with each beat."""

    def start(self, unread_ns: Callable[[], int] = nothing_unread) -> None:
        """Start to beat. `unread_ns`: see `rpc.streams.Transport.unread_ns`."""
        self._unread_ns = unread_ns
        now_ns = self._clock.now_ns()
        wait_ns = until_next(now_ns, BEAT_NS)
        self._due_ns = now_ns + wait_ns
        self._clock.call_later(wait_ns, self._beat)

    def close(self) -> None:
        """Stop beating."""
        self._closed = True

    def tick(self) -> int:
        """Return the present tick."""
        now_ns = self._clock.now_ns()
        if self._is_late or now_ns - self._due_ns >= GRACE_NS:
            self._look()
        return (now_ns - self.lost_ns) // TICK_NS

    def age_ns(self, then_ns: int) -> int:
        """Return how long ago a moment of the clock was, in this time."""
        now_ns = self._clock.now_ns()
        if self._is_late or now_ns - self._due_ns >= GRACE_NS:
            self._look()
        age_ns = now_ns - then_ns
        for start_ns, end_ns, lost_ns in reversed(self._lately):
            if end_ns <= then_ns:
                break
            if start_ns < then_ns:
                lost_ns = lost_ns * (end_ns - then_ns) // (end_ns - start_ns)
            age_ns -= lost_ns
        return age_ns

    def delay_ns(self, tick: int) -> int:
        """Return how long until a tick begins, if the loop is in time from now on.

        While it leaves data unread, up to a beat more, so that it is not woken repeatedly in vain.
        """
        left_ns = max(0, tick * TICK_NS + self.lost_ns - self._clock.now_ns())
        if self._leaves_unread:
            left_ns += min((SLOWEST - 1) * left_ns, BEAT_NS)
        return left_ns

    def _look(self) -> int:
        """Account for the lateness until now. Return the present time."""
        now_ns = self._clock.now_ns()
        late_ns = now_ns - self._due_ns
        if late_ns > 0 and (self._is_late or late_ns >= GRACE_NS):
            lost_ns = late_ns - late_ns // SLOWEST
            if not self._is_late:
                self._is_late = True
                self._lately.append((self._due_ns, now_ns, 0))
                # Ticks within the grace were given out as real ones: this time never runs back.
                lost_ns = min(lost_ns, late_ns - GRACE_NS)
            start_ns, _, before_ns = self._lately.pop()
            self._lately.append((start_ns, now_ns, before_ns + lost_ns))
            self.lost_ns += lost_ns
            self.late_total_ns += late_ns
            self._due_ns = now_ns
        return now_ns

    def _beat(self) -> None:
        if self._closed:
            return
        self.beat()
        self._clock.call_later(until_next(self._clock.now_ns(), BEAT_NS), self._beat)

    def beat(self) -> None:
        """Account for the lateness of the loop, once an interval.

        Work that the loop does at each beat calls it first: its own time is no lateness.
        """
        number = self._clock.now_ns() // BEAT_NS
        if number == self._number:
            return
        self._number = number
        now_ns = self._look()
        late_ns = now_ns - self._lately[-1][0] if self._is_late else 0
        self.late_ns = max(late_ns, self.late_ns - self.late_ns // 4 - 1, 0)
        self._leaves_unread = self._unread_ns() >= UNREAD_NS
        if self._leaves_unread and not self._is_late:
            self._lately.append((now_ns, now_ns, 0))
        self._is_late = self._leaves_unread
        self._due_ns = now_ns + (0 if self._leaves_unread else until_next(now_ns, BEAT_NS))
