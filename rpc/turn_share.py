"""What one link has had of a turn of the loop, and since when something lies unread on it.

A link has its part of a turn; what goes beyond is taken from its next parts. Whether it brings more
than this server handles cannot be told from that: a link may use up its part in each turn, and each
time there was no more. So while it is held up, a mark is set behind all that lies there at a time,
and what lay there has been handled when the mark is passed. How old a mark is, is for how long that
has taken.

Must not know: streams, frames, what a turn is.
"""

from __future__ import annotations

from rpc.reader import CHUNK_BYTES


class TurnShare:
    """See the module. Times are of the loop's monotonic clock, in ns."""

    __slots__ = ("_mark_bytes", "few", "is_refill_due", "left", "mark_ns", "received_bytes")

    def __init__(self, part: int) -> None:
        """`part`: how many messages the link has in a turn, as for `refill`."""
        self.left = part
        """Messages that the link may still bring. Invariant: not above its part."""
        self.few = part * 7 // 8
        """With so many left or less it is to be refilled in the next turn: not in each, that would
        cost more than it is worth."""
        self.is_refill_due = False
        self.received_bytes = 0
        self._mark_bytes = 0
        self.mark_ns = -1
        """When the mark was set; -1: there is none, nothing is held up."""

    def refill(self, part: int) -> None:
        """Another turn has come."""
        self.is_refill_due = False
        self.left = min(part, self.left + part)
        self.few = part * 7 // 8

    def look(self, now_ns: int, *, unread_bytes: int, is_held_up: bool) -> None:
        """`unread_bytes`: how much lies on the link, about; `is_held_up`: and frames that have been
        read wait for their turn besides, of one chunk."""
        if not (unread_bytes or is_held_up):
            self.mark_ns = -1
            return
        # What is held up was read last, and may be from before the mark.
        passed_bytes = self.received_bytes - (CHUNK_BYTES if is_held_up else 0)
        if self.mark_ns < 0 or passed_bytes >= self._mark_bytes:
            self.mark_ns = now_ns
            self._mark_bytes = self.received_bytes + unread_bytes
