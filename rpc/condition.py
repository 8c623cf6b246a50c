"""What a server tells its peers about itself: CONDITION, one byte of flags.

Sent when a link comes up and at each change. Bit 0: its disk is full, so it takes no new entries
and should not be made leader. Other bits are for later versions and are not looked at.

Must not know: what follows from it.
"""

from __future__ import annotations

from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_DISK_FULL = 1


def encode_condition(*, disk_full: bool) -> list[Buffer]:
    """The payload of a CONDITION frame."""
    return [bytes([_DISK_FULL if disk_full else 0])]


def decode_condition(payload: memoryview) -> bool:
    """Whether the peer's disk is full. Raises MalformedFrame."""
    if len(payload) != 1:
        raise MalformedFrame("condition")
    return bool(payload[0] & _DISK_FULL)
