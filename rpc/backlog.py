"""How many unsent bytes a stream may hold: urgent frames wait behind them.

Nothing overtakes what a stream has taken. A socket takes megabytes: a third of a second on a link
of 100 Mbit/s. So a stream is limited to what its link carries in `BACKLOG_NS`. The rate is measured
while there is more to send than the stream takes: bytes that left, divided by the time that took. A
stream that has run dry could have carried more by an unknown amount, so the rate is doubled. That
also covers a loop that is late: it must leave enough for the link to carry until it runs again.

Must not know: what the bytes are.
"""

from __future__ import annotations

from typing import Final

BACKLOG_NS: Final = 50_000_000
"""How long the bytes in a stream may take to leave."""
BACKLOG_BYTES_MIN: Final = 64 << 10
"""However slow the link: less would be many small writes."""
BACKLOG_BYTES_MAX: Final = 16 << 20
"""As much as a link holds (`PeerLimits.in_flight_bytes_max`): no limit any more."""
BACKLOG_BYTES_FIRST: Final = 256 << 10
"""Before anything is known: 50 ms of 40 Mbit/s."""

_KEPT = 3  # of four parts of the rate known, when a lower one is measured
_PARTS = 4
_TOLD = 4
"""Of what the stream may hold, the part that has to leave before the time it took says anything."""


class Backlog:
    """See the module. Times are of the monotonic clock, in nanoseconds."""

    __slots__ = ("_since_ns", "_unsent_bytes", "bytes_max")

    def __init__(self) -> None:
        self.bytes_max = BACKLOG_BYTES_FIRST
        """What the stream may hold."""
        self._since_ns = -1
        self._unsent_bytes = 0

    @property
    def is_bounded(self) -> bool:
        """Whether the link is so slow that anything has to be done."""
        return self.bytes_max < BACKLOG_BYTES_MAX

    def full(self, unsent_bytes: int, now_ns: int) -> None:
        """The stream takes no more; so much has not left. Nothing is written until `drained`."""
        self._since_ns = now_ns
        self._unsent_bytes = unsent_bytes

    def drained(self, unsent_bytes: int, now_ns: int) -> None:
        """The stream takes bytes again; so much has not left yet. That says nothing without `full`
        before, as where it was not open yet."""
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
            # Nor does a link become fast at once: bytes leave in lumps.
            measured = min(measured, 2 * self.bytes_max)
            self.bytes_max = min(max(measured, BACKLOG_BYTES_MIN), BACKLOG_BYTES_MAX)
        self._since_ns = -1

    def ran_dry(self) -> None:
        """All that the stream took has left: it could have been more."""
        self.bytes_max = min(2 * self.bytes_max, BACKLOG_BYTES_MAX)
