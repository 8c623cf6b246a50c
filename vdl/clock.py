"""Time as a value: the one door through which `vdl` learns what time it is.

Everything above the event loop asks a `Clock`; a real server gives it the loop's clock, the
simulator its own virtual one. Monotonic time drives timers and deadlines, wall time only stamps
what users see. Must not know: what the timers are for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MS = 1_000_000
"""Nanoseconds in a millisecond."""

NEVER = 1 << 62
"""A deadline, in nanoseconds, that is never reached."""


class Timer(Protocol):
    """A callback that has been scheduled and can be taken back."""

    def cancel(self) -> None:
        """Do not run it; without effect once it ran."""


class Clock(Protocol):
    """What a loop offers to the code it drives."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds; never runs backwards, also over a wall-clock jump."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump."""

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer:
        """Run `fn` on the loop after `delay_ns`."""

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Run `fn` on the loop's next turn."""
