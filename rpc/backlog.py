"""Limit of a stream's unsent bytes, behind which urgent frames wait.

No frame overtakes bytes that a stream has taken. A socket takes megabytes: a third of a second on a
link of 100 Mbit/s. So a stream is limited to what its link carries in `BACKLOG_NS`. The rate is
measured while there is more to send than the stream takes: bytes that left, divided by the time
that took. A stream that ran dry could have carried more by an unknown amount, so the limit is
doubled. That also covers a late loop: the stream must hold enough to keep the link busy until the
loop runs again.

Does not depend on the content of the bytes.
"""

from __future__ import annotations

from typing import Final

BACKLOG_NS: Final = 50_000_000
"""Time in which the bytes in a stream should leave."""
BACKLOG_BYTES_MIN: Final = 64 << 10
"""Lower bound, however slow the link: less would mean many small writes."""
BACKLOG_BYTES_MAX: Final = 16 << 20
"""Upper bound, as much as a link holds (`PeerLimits.in_flight_bytes_max`): in effect no limit."""
BACKLOG_BYTES_FIRST: Final = 256 << 10
"""Initial limit: 50 ms of 40 Mbit/s."""

_KEPT = 3  # in quarters: weight of the known rate when a lower one is measured
_PARTS = 4
_TOLD = 4
"""A measurement counts only if at least this fraction (1/4) of the limit has left."""


class Backlog:
    """Limit for one stream; see the module. Times are of the monotonic clock, in nanoseconds."""

    __slots__ = ("_since_ns", "_unsent_bytes", "bytes_max")

    def __init__(self) -> None:
        self.bytes_max = BACKLOG_BYTES_FIRST
        """Bytes that the stream may hold."""
        self._since_ns = -1
        self._unsent_bytes = 0

    @property
    def is_bounded(self) -> bool:
        """True if the link is so slow that the stream must be limited."""
        return self.bytes_max < BACKLOG_BYTES_MAX

    def full(self, unsent_bytes: int, now_ns: int) -> None:
        """Start a measurement: the stream is full. Nothing is written until `drained`."""
        self._since_ns = now_ns
        self._unsent_bytes = unsent_bytes

    def drained(self, unsent_bytes: int, now_ns: int) -> None:
        """Finish a measurement: the stream takes bytes again.

        Has no effect without `full` before, as for a stream that was not open yet.
        """
        left = self._unsent_bytes - unsent_bytes
        if self._since_ns < 0:
            return
        if not unsent_bytes:
            self.ran_dry()
        elif now_ns > self._since_ns and left >= self.bytes_max // _TOLD:
            measured = left * BACKLOG_NS // (now_ns - self._since_ns)
            if measured < self.bytes_max:
                # One stall, as TCP has them after a loss, is not a slow link.
                measured = (_KEPT * self.bytes_max + measured) // _PARTS
            # A link does not become fast at once either: bytes leave in bursts.
            measured = min(measured, 2 * self.bytes_max)
            self.bytes_max = min(max(measured, BACKLOG_BYTES_MIN), BACKLOG_BYTES_MAX)
        self._since_ns = -1

    def ran_dry(self) -> None:
        """Double the limit: all bytes have left, and it could have been more."""
        self.bytes_max = min(2 * self.bytes_max, BACKLOG_BYTES_MAX)
