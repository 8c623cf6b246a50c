"""How fast readers that are far behind are fed while producers are at work.

A reader with gigabytes before it takes whatever it is given: the disk, and the processor of server
and client. Nobody waits for its next megabyte, but somebody does for each acknowledgement. So while
records are being produced here, all reads from disk together get so many bytes a second; as soon as
nobody produces, they get everything.

Must not know: requests, partitions, the disk.
"""

from __future__ import annotations

_SECOND_NS = 1_000_000_000
AT_WORK_NS = _SECOND_NS
"""Producers are at work for so long after a request of theirs."""
WAIT_NS_MAX = _SECOND_NS
"""No read is put off for longer, however many there are: clients give up on their requests."""


class ReaderPace:
    """The pace of one server. Times are of the monotonic clock, in nanoseconds."""

    __slots__ = ("_bytes_per_second", "_free_ns", "produced_ns")

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_ns = 0
        """When all that was asked for so far will have been sent at this pace."""
        self.produced_ns = -AT_WORK_NS
        """When a producer's last request came."""

    def ask(self, bytes_max: int, now_ns: int) -> int:
        """Nanoseconds to wait before `bytes_max` are read; they count as sent."""
        if now_ns - self.produced_ns >= AT_WORK_NS:
            self._free_ns = now_ns
            return 0
        wait_ns = max(0, self._free_ns - now_ns)
        if wait_ns > WAIT_NS_MAX:
            return WAIT_NS_MAX
        self._free_ns = now_ns + wait_ns + self._duration_ns(bytes_max)
        return wait_ns

    def found_less(self, bytes_less: int) -> None:
        """So many bytes that were asked for have not been there."""
        self._free_ns -= self._duration_ns(bytes_less)

    def _duration_ns(self, count: int) -> int:
        return count * _SECOND_NS // self._bytes_per_second
