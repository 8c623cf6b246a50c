"""Whether this server has more to do than it can: it says so, once when it begins and once when it
is over.

An overloaded server is slow at everything, and slow in saying why. What tells is its loop: if it is
late for a good part of the time, whatever asks too much of it, then timers, heartbeats and answers
are late as well. The state begins when the loop was late for `BEGINS_PERCENT` of the last
`WINDOW_NS`, and ends when it was for less than `ENDS_PERCENT`, so that it does not flap.

Must not know: what makes it late, what is done about it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from vdl.clock import MS, Clock
from vdl.log import Log
from vdl.logstream.elections import Elections
from vdl.logstream.loop_time import LoopTime

WINDOW_NS: Final = 2_000 * MS
BEGINS_PERCENT: Final = 40
ENDS_PERCENT: Final = 5


class Overload:
    """The state of one server. `look` is to be called some ten times a second."""

    __slots__ = (
        "_clock",
        "_elections",
        "_log",
        "_looks",
        "_loop_time",
        "_since_ns",
        "is_overloaded",
        "late_percent",
        "times",
    )

    def __init__(
        self, clock: Clock, *, loop_time: LoopTime, elections: Elections, log: Log
    ) -> None:
        self._clock = clock
        self._loop_time = loop_time
        self._elections = elections
        self._log = log
        self._looks: deque[tuple[int, int]] = deque([(clock.now_ns(), 0)])
        """(when, nanoseconds the loop had been late in all by then), of the window."""
        self._since_ns = 0
        self.is_overloaded = False
        self.late_percent = 0
        """For how much of the window the loop was late."""
        self.times = 0
        """How often the state began."""

    def look(self) -> None:
        """Measure, and tell when the state has changed."""
        now_ns, late_ns = self._clock.now_ns(), self._loop_time.late_total_ns
        looks = self._looks
        looks.append((now_ns, late_ns))
        while len(looks) > 2 and looks[1][0] <= now_ns - WINDOW_NS:
            looks.popleft()
        since_ns, before_ns = looks[0]
        # What has not been watched for a whole window yet counts as in time.
        watched_ns = max(now_ns - since_ns, WINDOW_NS)
        self.late_percent = (late_ns - before_ns) * 100 // watched_ns
        if not self.is_overloaded and self.late_percent >= BEGINS_PERCENT:
            self.is_overloaded = True
            self.times += 1
            self._since_ns = now_ns
            self._log.warning(
                "overloaded",
                loop_late_percent=self.late_percent,
                elections_waiting=self._elections.waiting,
                meaning="this server has more to do than it can: it answers late",
            )
        elif self.is_overloaded and self.late_percent < ENDS_PERCENT:
            self.is_overloaded = False
            self._log.info("overload_ended", seconds=(now_ns - self._since_ns) // (1_000 * MS))

    def problem(self) -> str:
        """What people are told; empty while all is well."""
        if not self.is_overloaded:
            return ""
        text = f"overloaded: its loop was late for {self.late_percent} % of the last 2 s"
        waiting = self._elections.waiting
        return f"{text}; {waiting} partitions wait to be elected" if waiting else text
