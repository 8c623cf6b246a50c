"""The time that a server's timers go by: it runs slower while the server's own loop is late.

A follower takes silence for the death of its leader. But whoever is late itself has not listened:
what its leader said may lie unread, and where servers share a machine the leader is late for the
same reason. A server that is too slow and then elects is slower still. So ticks that pass while the
loop is late count for a quarter: an election timeout grows with the lag, to four times itself at
the most, and a leader that is truly dead is always replaced. While the loop is in time, ticks are
real ticks. Nothing that must hold depends on either: terms and quorums see to that.

The loop is late from the moment at which a beat of this object should have run until it runs. Beats
are `BEAT_NS` apart; up to `GRACE_NS` is how long turns may take. It is late, too, from beat to beat
while more lies unread than it handles in a turn: then its turns are short, and it has not listened
all the same.

Must not know: who leads, what ticks are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vdl.clock import MS, Clock
from vdl.logstream.options import TICK_NS

BEAT_NS = 50 * MS
GRACE_NS = 20 * MS
SLOWEST = 4
"""Time runs at one part in so many at the least."""
KEPT = 64
"""So many times of being late are known: more than there are in any time-out."""
UNREAD_NS = BEAT_NS + GRACE_NS
"""What lies unread for less is a burst, as a turn is that takes no longer."""


def nothing_unread() -> int:
    """Of a server that has no links yet."""
    return 0


class LoopTime:
    """See the module."""

    __slots__ = (
        "_clock",
        "_closed",
        "_due_ns",
        "_is_late",
        "_lately",
        "_leaves_unread",
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
        """When the next beat should run; while the loop is late: up to when it is accounted for."""
        self._is_late = False
        self._leaves_unread = False
        """At the last beat."""
        self._lately: deque[tuple[int, int, int]] = deque(maxlen=KEPT)
        """(start, end, what this time lost of it) of the last times the loop was late."""
        self.lost_ns = 0
        """How far this time is behind the clock. Invariant: grows by less than the clock does."""
        self.late_total_ns = 0
        """For how long the loop has been late in all."""
        self.late_ns = 0
        """How late the loop has been lately: the latest beat's lateness, or what is left of an
        earlier one's, an eighth less with each beat."""

    def start(self, unread_ns: Callable[[], int] = nothing_unread) -> None:
        """Begin to beat. `unread_ns`: see `rpc.streams.Transport.unread_ns`."""
        self._unread_ns = unread_ns
        self._due_ns = self._clock.now_ns() + BEAT_NS
        self._clock.call_later(BEAT_NS, self._beat)

    def close(self) -> None:
        """Beat no more."""
        self._closed = True

    def tick(self) -> int:
        """The present tick."""
        now_ns = self._clock.now_ns()
        if self._is_late or now_ns - self._due_ns >= GRACE_NS:
            self._look()
        return (now_ns - self.lost_ns) // TICK_NS

    def age_ns(self, then_ns: int) -> int:
        """How long ago a moment of the clock was, by this time."""
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
        """How long until a tick begins, if the loop is in time from now on. While it leaves things
        unread, up to a beat more: it must not be woken again and again for nothing."""
        left_ns = max(0, tick * TICK_NS + self.lost_ns - self._clock.now_ns())
        if self._leaves_unread:
            left_ns += min((SLOWEST - 1) * left_ns, BEAT_NS)
        return left_ns

    def _look(self) -> int:
        """Account for the lateness until now, which it returns."""
        now_ns = self._clock.now_ns()
        late_ns = now_ns - self._due_ns
        if late_ns > 0 and (self._is_late or late_ns >= GRACE_NS):
            if not self._is_late:
                self._is_late = True
                self._lately.append((self._due_ns, now_ns, 0))
            start_ns, _, before_ns = self._lately.pop()
            lost_ns = late_ns - late_ns // SLOWEST
            self._lately.append((start_ns, now_ns, before_ns + lost_ns))
            self.lost_ns += lost_ns
            self.late_total_ns += late_ns
            self._due_ns = now_ns
        return now_ns

    def _beat(self) -> None:
        if self._closed:
            return
        now_ns = self._look()
        late_ns = now_ns - self._lately[-1][0] if self._is_late else 0
        self.late_ns = max(late_ns, self.late_ns - self.late_ns // 8 - 1, 0)
        self._leaves_unread = self._unread_ns() >= UNREAD_NS
        if self._leaves_unread and not self._is_late:
            self._lately.append((now_ns, now_ns, 0))
        self._is_late = self._leaves_unread
        self._due_ns = now_ns if self._leaves_unread else now_ns + BEAT_NS
        self._clock.call_later(BEAT_NS, self._beat)
