"""Condition of a server, reported to its peers: CONDITION, one byte of flags, and groups.

Sent when a link comes up and at each change.

    bit 0   the disk is full: it takes no new entries
    bit 1   the server serves no clients: it starts, or stops, or its loop has been late for long
    bit 2   the disk takes entries into the journal but not into segments: they pile up in memory

A server with any of them should not be made leader. Other bits are for later versions and ignored.

If any of its replicas has damaged entries, this follows: a count (u32, little-endian) and group ids
(u64). The first `count` groups have incomplete state: those replicas cannot lead yet. The others
should not lead while a replica without damage can. Servers below `VERSION_OF_DAMAGE` get the flags
alone: some of them refuse more.

Does not depend on a peer's reaction.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ids import GroupId
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

_DISK_FULL = 1
_UNAVAILABLE = 2
_STALLED = 4
_INCOMPLETE = struct.Struct("<I")
_GROUP_BYTES = 8
GROUPS_MAX = 4_096
"""Most groups named."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Reasons why a server should not lead, in general or for some groups."""

    disk_full: bool = False
    unavailable: bool = False
    """It serves no clients: it starts or stops, or its loop has been late for long."""
    stalled: bool = False
    incomplete: tuple[GroupId, ...] = ()
    """Groups whose replicas cannot lead: their state waits for a damaged entry."""
    damaged: tuple[GroupId, ...] = ()
    """Other groups whose replicas have damaged entries."""

    @property
    def may_lead(self) -> bool:
        """True if the server may be made leader of any group."""
        return not (self.disk_full or self.unavailable or self.stalled)


def encode_condition(condition: Condition) -> list[Buffer]:
    """Encode the payload of a CONDITION frame."""
    flags = condition.disk_full * _DISK_FULL | condition.unavailable * _UNAVAILABLE
    flags |= condition.stalled * _STALLED
    groups = (condition.incomplete + condition.damaged)[:GROUPS_MAX]
    if not groups:
        return [bytes([flags])]
    incomplete = min(len(condition.incomplete), len(groups))
    return [bytes([flags]), _INCOMPLETE.pack(incomplete), struct.pack(f"<{len(groups)}Q", *groups)]


def decode_condition(payload: memoryview) -> Condition:
    """Decode a CONDITION payload. Raises MalformedFrame."""
    if not payload:
        raise MalformedFrame("condition")
    flags, behind = payload[0], len(payload) - 1 - _INCOMPLETE.size
    groups: tuple[GroupId, ...] = ()
    incomplete = 0
    if len(payload) > 1:
        count, rest = divmod(behind, _GROUP_BYTES)
        if behind < 0 or rest or count > GROUPS_MAX:
            raise MalformedFrame("condition")
        (incomplete,) = _INCOMPLETE.unpack_from(payload, 1)
        if incomplete > count:
            raise MalformedFrame("condition")
        groups = struct.unpack_from(f"<{count}Q", payload, 1 + _INCOMPLETE.size)
    return Condition(
        disk_full=bool(flags & _DISK_FULL),
        unavailable=bool(flags & _UNAVAILABLE),
        stalled=bool(flags & _STALLED),
        incomplete=groups[:incomplete],
        damaged=groups[incomplete:],
    )
