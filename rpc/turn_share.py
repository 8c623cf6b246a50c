"""A link's share of a loop turn, and the age of its unread messages.

A link has its part of each turn; messages beyond it are taken from its next parts. That alone does
not show if it brings more than this server handles: a link may use up its part in each turn and
have no backlog. So while the link is held up, a mark is set behind all bytes that are unread at
that time. Those bytes have been handled when the mark is passed. The age of a mark shows how long
that takes.

Does not depend on streams, frames, or turns.
"""

from __future__ import annotations

from rpc.reader import CHUNK_BYTES

DELIVERY_NS = 100_000_000
"""Time in a turn for deliveries of all links; the answers take about as long again."""

SAMPLE = 64
"""Number of messages whose time is representative."""

FEWEST = 32
"""Minimum number of messages that a link delivers in a turn, however slow the server is."""


class TurnPace:
    """Number of messages that all links together deliver in a turn, on a server of any speed.

    A server that gets little of its processor would need seconds for the messages of a usual turn,
    and would send no heartbeats meanwhile. So it delivers what takes `DELIVERY_NS`, by the time of
    the last `SAMPLE` messages. Only deliveries count: fewer messages do not shorten a turn that is
    long for other reasons, but make peers wait. The number shrinks at once, and grows by a quarter
    at most.
    """

    __slots__ = ("_delivered", "_max", "_took_ns", "messages")

    def __init__(self, messages_max: int) -> None:
        self._max = self.messages = messages_max
        self._delivered = self._took_ns = 0

    def delivered(self, messages: int, took_ns: int) -> None:
        """Note that one link delivered these messages in that time."""
        self._delivered += messages
        self._took_ns += took_ns
        if self._delivered >= SAMPLE:
            possible = self._delivered * DELIVERY_NS // max(1, self._took_ns)
            grown = self.messages + self.messages // 4 + 1
            self.messages = min(possible, grown, self._max)
            self._delivered = self._took_ns = 0


class TurnShare:
    """Share of one link; see the module. Times are of the loop's monotonic clock, in ns."""

    __slots__ = ("_mark_bytes", "few", "is_refill_due", "left", "mark_ns", "received_bytes")

    def __init__(self, part: int) -> None:
        """`part`: number of messages the link may deliver per turn, as for `refill`."""
        self.left = part
        """Messages that the link may still deliver. Invariant: not above its part."""
        self.few = part * 7 // 8
        """Threshold of `left` at which a refill is due in the next turn. A refill in every turn
        would cost more than it is worth."""
        self.is_refill_due = False
        self.received_bytes = 0
        self._mark_bytes = 0
        self.mark_ns = -1
        """Time at which the mark was set; -1 if there is none: nothing is held up."""

    def refill(self, part: int) -> None:
        """Add the part of another turn."""
        self.is_refill_due = False
        self.left = min(part, self.left + part)
        self.few = part * 7 // 8

    def look(self, now_ns: int, *, unread_bytes: int, is_held_up: bool) -> None:
        """Update the mark. `unread_bytes`: approximate unread bytes on the link.

        `is_held_up`: frames of up to one chunk have been read and wait for their turn.
        """
        if not (unread_bytes or is_held_up):
            self.mark_ns = -1
            return
        # Frames held up were read last, and may be from before the mark.
        passed_bytes = self.received_bytes - (CHUNK_BYTES if is_held_up else 0)
        if self.mark_ns < 0 or passed_bytes >= self._mark_bytes:
            self.mark_ns = now_ns
            self._mark_bytes = self.received_bytes + unread_bytes
