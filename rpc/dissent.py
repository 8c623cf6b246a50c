"""A replica that cannot follow the receiver as leader of its group: DISSENT.

Sent in answer to the leader's messages, at most once a second for a group. Little-endian:

    0   group         u64
    8   replica       u64  the sender's
    16  reason        u8   1: it has lost durable data; 2: other entries are committed in it
    17  first offset  u64  reason 2: of the records that are committed in it from the first entry
    25  end offset    u64  on that is known to differ; [first, end)

Servers below `VERSION_OF_BOOTS` are sent none: they would end the link.

Does not depend on the leader's reaction.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from ids import GroupId, NodeId, Offset
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_DISSENT: Final = Struct("<QQBQQ")


class Reason(IntEnum):
    """Reason why it cannot follow. On the wire: never reuse a number."""

    LOST = 1
    DIVERGED = 2


_REASONS = {reason.value: reason for reason in Reason}


class Dissenting(NamedTuple):
    """One replica that cannot follow, with its reason."""

    group: GroupId
    replica: NodeId
    reason: Reason
    first_offset: Offset = Offset(0)
    end_offset: Offset = Offset(0)


def encode_dissent(dissenting: Dissenting) -> list[Buffer]:
    """Encode the payload of a DISSENT frame."""
    return [_DISSENT.pack(*dissenting)]


def decode_dissent(payload: memoryview) -> Dissenting:
    """Decode a DISSENT payload. Raises MalformedFrame."""
    if len(payload) != _DISSENT.size:
        raise MalformedFrame("dissent", len(payload))
    group, replica, code, first_offset, end_offset = _DISSENT.unpack(payload)
    reason = _REASONS.get(code)
    if reason is None:
        raise MalformedFrame("dissent: unknown reason", code)
    return Dissenting(group, replica, reason, first_offset, end_offset)
