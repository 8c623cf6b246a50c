"""A server's clock whose time of day can be set, as an operator or NTP does.

Timers and timeouts use monotonic time, which nothing can set: sessions, elections and requests are
not affected. What ages by the time of day is: records, offsets, tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from vdl.clock import Timer
from vdl.server.loop import LoopClock, TurnLoop


class SetClock:
    """`vdl.clock.Clock` with an offset."""

    def __init__(self, loop: TurnLoop, ahead_ms: int = 0) -> None:
        self._clock = LoopClock(loop)
        self.ahead_ms = ahead_ms
        """Milliseconds by which the time of day is ahead of the machine's."""

    def now_ns(self) -> int:
        """See `Clock.now_ns`."""
        return self._clock.now_ns()

    def work_ns(self) -> int:
        """See `Clock.work_ns`."""
        return self._clock.work_ns()

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return self._clock.wall_ms() + self.ahead_ms

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer:
        """See `Clock.call_later`."""
        return self._clock.call_later(delay_ns, fn)

    def call_soon(self, fn: Callable[[], None]) -> None:
        """See `Clock.call_soon`."""
        self._clock.call_soon(fn)
