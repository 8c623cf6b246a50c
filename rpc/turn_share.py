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

TURN_NS = 200_000_000
"""Duration of a turn at which links deliver less in the next: clients may use half of it."""
FEWEST = 4
"""Minimum number of messages that all links together deliver in a turn."""


class TurnPace:
    """Number of messages that all links together deliver in a turn, on a server of any speed.

    A server that gets little of its processor would need seconds for the messages of a usual turn,
    and would send no heartbeats meanwhile. So the number shrinks with the duration of a turn beyond
    `TURN_NS`, and grows again by a quarter with each turn that takes less than half of that.
    """

    __slots__ = ("_began_ns", "_max", "messages")

    def __init__(self, messages_max: int) -> None:
        self._max = self.messages = messages_max
        self._began_ns = -1

    def turn_began(self, now_ns: int) -> None:
        """Note the time of a turn in which links deliver messages; the first call counts."""
        if self._began_ns < 0:
            self._began_ns = now_ns

    def turn_ended(self, now_ns: int) -> None:
        """Note that the next turn has begun; the first call counts."""
        if self._began_ns < 0:
            return
        took_ns, self._began_ns = now_ns - self._began_ns, -1
        if took_ns > TURN_NS:
            fewest = min(FEWEST, self._max)
            self.messages = max(fewest, self.messages * TURN_NS // took_ns)
        elif took_ns < TURN_NS // 2:
            self.messages = min(self._max, self.messages + self.messages // 4 + 1)


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
