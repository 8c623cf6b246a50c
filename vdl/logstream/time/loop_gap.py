"""Gaps in the loop: times in which this process did not run, and others may have been elected.

A process that was stopped (SIGSTOP, a virtual machine that was moved, a laptop that slept) does not
know so when it continues. It assumes that it still leads its groups until its timers show that it
has not heard from a majority; requests that clients sent in the meantime may be handled before
that. So after a gap of an election timeout nothing is read from a group before a quorum has
answered again (§8, thesis §6.4).

A gap is found by the next check. Checks are made ten times a second, and before each read. The
monotonic clock stops while a machine sleeps: the wall clock has then gained on it. If the wall
clock was set, a quorum is queried in vain.

A process that leaves received data unread for that long is in the same position: that counts as one
gap more, repeatedly while it lasts. A quorum's answer is among the unread data too, so the next gap
counts after twice the time for which data lie unread.

Does not depend on leaders, or how a quorum is queried.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.clock import MS, Clock
from vdl.logstream.time.loop_time import nothing_unread

ASK_NS = 50 * MS
"""Reads check too often to query the unread time on each check."""


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
        """Create the detector. `limit_ns`: time between two checks that is a gap."""
        self._clock = clock
        self._limit_ns = limit_ns
        self._last_ns = clock.now_ns()
        self._ahead_ns = clock.wall_ms() * MS - self._last_ns
        self._ask_ns = self._last_ns
        """Time of the next query of the unread time."""
        self._unread_gap_ns = -1 << 62
        """Time at which unread data last counted as a gap."""
        self.count = 0
        """Number of gaps."""
        self.unread_ns: Callable[[], int] = nothing_unread
        """See `rpc.streams.Transport.unread_ns`. Set once, when the host starts."""

    def look(self) -> int:
        """Check for a gap. Return the number of gaps until now."""
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
