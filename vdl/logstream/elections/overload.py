"""Detection of overload on this server, logged when it begins and when it ends.

An overloaded server is slow at everything, including its reports. Its loop shows it: if it is late
for a large part of the time, for any reason, then timers, heartbeats and answers are late too.
Clients in large numbers do not make the loop late, because their requests wait instead; a request
that has waited for `WAIT_NS` counts the same. The state begins when either was so for
`BEGINS_PERCENT` of the last `WINDOW_NS`, and ends when it was for less than `ENDS_PERCENT`, so that
it does not flap.

A loop that is late by an election timeout at every check, for `LATE_NS` without a break, is a
different case. Its clients wait longer for each answer than a failover takes: its leaderships are
better elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from vdl.clock import MS, NEVER
from vdl.logstream.elections.campaigns import Campaigns
from vdl.logstream.options import TICK_NS
from vdl.logstream.state import HostState

WINDOW_NS: Final = 2_000 * MS
BEGINS_PERCENT: Final = 40
ENDS_PERCENT: Final = 5
WAIT_NS: Final = 250 * MS
LATE_NS: Final = 60_000 * MS
"""A minute: the load of mass elections or of clients at a start is over by then."""


class Overload:
    """The overload state of one server. `look` must be called some ten times a second."""

    __slots__ = (
        "_campaigns",
        "_clock",
        "_late_limit_ns",
        "_late_since_ns",
        "_log",
        "_looks",
        "_loop_time",
        "_since_ns",
        "_state",
        "_waited_total_ns",
        "is_overloaded",
        "late_percent",
        "times",
        "wait_ms",
        "waited_percent",
    )

    def __init__(self, state: HostState, campaigns: Campaigns) -> None:
        self._state = state
        self._clock = state.clock
        self._loop_time = state.loop_time
        self._campaigns = campaigns
        self._log = state.log
        self._looks: deque[tuple[int, int, int]] = deque([(state.clock.now_ns(), 0, 0)])
        """(time, total ns of lateness of the loop, total ns in which requests waited too long), of
        the window."""
        self._late_limit_ns = state.options.election_ticks * TICK_NS
        self._late_since_ns = NEVER
        """Check at which the loop was first seen late by that much, if it has been at all checks
        since."""
        self._since_ns = 0
        self._waited_total_ns = 0
        self.wait_ms = 0
        """Longest wait of a request at the last check."""
        self.is_overloaded = False
        self.late_percent = 0
        """Percentage of the window for which the loop was late."""
        self.waited_percent = 0
        """Percentage of the window for which a client's request waited too long."""
        self.times = 0
        """Number of times the state began."""

    def look(self) -> None:
        """Measure, and log a change of the state."""
        now_ns, late_ns = self._clock.now_ns(), self._loop_time.late_total_ns
        is_late = self._loop_time.late_ns >= self._late_limit_ns
        self._late_since_ns = min(self._late_since_ns, now_ns) if is_late else NEVER
        looks = self._looks
        wait_ns = self._state.front.request_wait_ns()
        self.wait_ms = wait_ns // MS
        if wait_ns >= WAIT_NS:
            self._waited_total_ns += now_ns - looks[-1][0]
        looks.append((now_ns, late_ns, self._waited_total_ns))
        while len(looks) > 2 and looks[1][0] <= now_ns - WINDOW_NS:
            looks.popleft()
        since_ns, late_before_ns, waited_before_ns = looks[0]
        # Time that was not watched yet counts as in time.
        watched_ns = max(now_ns - since_ns, WINDOW_NS)
        self.late_percent = (late_ns - late_before_ns) * 100 // watched_ns
        self.waited_percent = (self._waited_total_ns - waited_before_ns) * 100 // watched_ns
        percent = max(self.late_percent, self.waited_percent)
        if not self.is_overloaded and percent >= BEGINS_PERCENT:
            self.is_overloaded = True
            self.times += 1
            self._since_ns = now_ns
            self._log.warning(
                "overloaded",
                loop_late_percent=self.late_percent,
                request_wait_ms=self.wait_ms,
                elections_waiting=self._campaigns.waiting,
                meaning="the server has more work than it can do, and its responses are late",
            )
        elif self.is_overloaded and percent < ENDS_PERCENT:
            self.is_overloaded = False
            self._log.info("overload_ended", seconds=(now_ns - self._since_ns) // (1_000 * MS))

    @property
    def is_late_for_long(self) -> bool:
        """True if the loop was late by an election timeout at each check of the last minute."""
        return self._clock.now_ns() - self._late_since_ns >= LATE_NS

    def problem(self) -> str:
        """Return the description for operators; empty if there is no problem."""
        if not self.is_overloaded:
            return ""
        text = f"the event loop was late for {self.late_percent} % of the last 2 s"
        if self.waited_percent >= ENDS_PERCENT:
            text += f"; requests wait to start, currently {self.wait_ms / 1_000:.1f} s"
        if waiting := self._campaigns.waiting:
            text += f"; {waiting} partitions wait for an election"
        return text
