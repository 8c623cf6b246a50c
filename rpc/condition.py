"""What a server tells its peers about itself: CONDITION, one byte of flags.

Sent when a link comes up and at each change. Bit 0: its disk is full, so it takes no new entries.
Bit 1: it is about to stop. Bit 2: its disk takes entries into the journal but none out of it into
segments, so that they pile up in memory. With any of them it should not be made leader. Other bits
are for later versions and are not looked at.

Must not know: what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_DISK_FULL = 1
_STOPPING = 2
_STALLED = 4


@dataclass(frozen=True, slots=True)
class Condition:
    """What can be the matter with a server."""

    disk_full: bool = False
    stopping: bool = False
    stalled: bool = False

    @property
    def may_lead(self) -> bool:
        return not (self.disk_full or self.stopping or self.stalled)


def encode_condition(condition: Condition) -> list[Buffer]:
    """The payload of a CONDITION frame."""
    flags = condition.disk_full * _DISK_FULL | condition.stopping * _STOPPING
    return [bytes([flags | condition.stalled * _STALLED])]


def decode_condition(payload: memoryview) -> Condition:
    """Raises MalformedFrame."""
    if len(payload) != 1:
        raise MalformedFrame("condition")
    flags = payload[0]
    return Condition(
        disk_full=bool(flags & _DISK_FULL),
        stopping=bool(flags & _STOPPING),
        stalled=bool(flags & _STALLED),
    )
