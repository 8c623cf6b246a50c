"""Gaps in the loop: times in which this process did nothing, and others may have been elected.

A process that was stopped (SIGSTOP, a virtual machine that was moved, a laptop that slept) knows
nothing of it when it goes on. It believes to lead what it led, until its timers have told it that
it has not heard from a majority; and what clients sent meanwhile may be looked at before that. So
after a gap of an election timeout nothing is read from a group before a quorum has answered again
(§8, thesis §6.4).

A gap is found by whoever looks first. Looks are ten times a second, and before each read. The
monotonic clock stands while a machine sleeps: then the wall clock has gained on it. If somebody set
the wall clock, a quorum is asked in vain.

A process that leaves unread what has come for as long as that knows as little: that counts as one
gap more, again and again while it lasts. A quorum's answer lies there, too, so the next one counts
after twice the time for which things lie unread.

Must not know: who leads, how a quorum is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.clock import MS, Clock
from vdl.logstream.time.loop_time import nothing_unread

ASK_NS = 50 * MS
"""Reads look too often to ask each time what lies unread."""


class LoopGaps:
    """The gaps of one server's loop."""

    __slots__ = (
        "_ahead_ns",
        "_ask_ns",
        "_clock",
        "_last_ns",
        "_limit_ns",
        "_unread_gap_ns",
        "count",
        "unread_ns",
    )

    def __init__(self, clock: Clock, *, limit_ns: int) -> None:
        """`limit_ns`: so long a time between two looks is a gap."""
        self._clock = clock
        self._limit_ns = limit_ns
        self._last_ns = clock.now_ns()
        self._ahead_ns = clock.wall_ms() * MS - self._last_ns
        self._ask_ns = self._last_ns
        """When it is to be asked again what lies unread."""
        self._unread_gap_ns = -1 << 62
        """When things left unread last counted as a gap."""
        self.count = 0
        """How many there were."""
        self.unread_ns: Callable[[], int] = nothing_unread
        """See `rpc.streams.Transport.unread_ns`. Set once, when the host starts."""

    def look(self) -> int:
        """How many gaps there were until now."""
        now_ns = self._clock.now_ns()
        ahead_ns = self._clock.wall_ms() * MS - now_ns
        passed_ns = now_ns - self._last_ns + max(0, ahead_ns - self._ahead_ns)
        if passed_ns >= self._limit_ns:
            self.count += 1
        elif now_ns >= self._ask_ns:
            self._ask_ns = now_ns + ASK_NS
            unread_ns = self.unread_ns()
            if unread_ns >= self._limit_ns and now_ns - self._unread_gap_ns >= 2 * unread_ns:
                self.count += 1
                self._unread_gap_ns = now_ns
        self._last_ns = now_ns
        self._ahead_ns = ahead_ns
        return self.count
