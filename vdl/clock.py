"""Time as a value: the only source of time for `vdl`.

Everything above the event loop uses a `Clock`; a real server passes the loop's clock, the simulator
its virtual one. Monotonic time drives timers and deadlines; wall time only stamps what users see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

MS = 1_000_000
"""Nanoseconds in a millisecond."""

NEVER = 1 << 62
"""A deadline, in nanoseconds, that is never reached."""


def until_next(now_ns: int, interval_ns: int) -> int:
    """Return the time from now to the next multiple of an interval.

    Timers of intervals that divide each other wake their loop together, and so do those of all
    servers of a machine.
    """
    return interval_ns - now_ns % interval_ns


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the callback. No effect after it ran."""


class Clock(Protocol):
    """Interface of a loop to the code it drives."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds, which never decrease, even if the wall clock jumps."""

    def work_ns(self) -> int:
        """As `now_ns`, for the time that work takes: it also advances in a simulated turn."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 UTC, which may jump."""

    def call_later(self, delay_ns: int, fn: Callable[[], None]) -> Timer:
        """Run `fn` on the loop after `delay_ns`."""

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Run `fn` on the loop's next turn."""
