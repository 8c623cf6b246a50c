"""A member of a group of the newer protocol, and how it comes to its target (KIP-848).

A member is a value: each step makes another one. It has an *assignment*: what it may read, and
commit. It moves towards its *target* by itself:

    STABLE ──(the target takes something away)──▶ UNREVOKED
    UNREVOKED ──(its heartbeat no longer names it)──▶ STABLE, UNRELEASED
    STABLE ──(what it is to get still belongs to another one)──▶ UNRELEASED

What it has to give up belongs to it until a heartbeat showed it gone. So a partition belongs to one
member at any time, however late anybody's heartbeats are.

Must not know: commands, groups, timers.
"""

from __future__ import annotations

from collections.abc import Container
from enum import IntEnum

import msgspec

from vdl.state.commands import Protocol
from vdl.state.modern.partitions import (
    NO_PARTITIONS,
    Partitions,
    Place,
    partitions_of,
    places_of,
    stored_bytes,
)
from vdl.state.table import text_bytes

MEMBER_BYTES = 96
"""What a member takes in a snapshot beside what clients choose."""
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""A static member that went and will be back: its partitions wait for it, for a session."""


class MemberState(IntEnum):
    """How far a member is on the way to its target."""

    STABLE = 0
    UNREVOKED = 1
    """It was told to give something up, and has not shown that it did."""
    UNRELEASED = 2
    """Something of its target still belongs to another member."""


class ClassicSide(msgspec.Struct, frozen=True, array_like=True):
    """What is known besides of a member that speaks the classic protocol in such a group."""

    session_timeout_ms: int
    protocols: list[Protocol]


class ModernMember(msgspec.Struct, frozen=True, array_like=True):
    """See the module."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    """Names it subscribes to, ascending; not those that its pattern matches."""
    pattern: str | None
    assignor: str | None
    epoch: int = JOINING_EPOCH
    """0: it has no target yet. -2: see `STATIC_LEAVING_EPOCH`."""
    previous_epoch: int = JOINING_EPOCH
    """The answer that told it its present epoch may have been lost: it may come back with this."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    """What it is to give up and may still read. Disjoint from `assigned`."""
    classic: ClassicSide | None = None

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether it has all of its target."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    @property
    def bytes(self) -> int:
        """What it takes in a snapshot, about; its assignment is counted with its target."""
        size = MEMBER_BYTES
        for text in (self.member_id, self.client_id, self.client_host):
            size += text_bytes(text)
        for maybe in (self.instance_id, self.rack_id, self.pattern, self.assignor):
            size += text_bytes(maybe or "")
        size += sum(2 + text_bytes(topic) for topic in self.topics)
        size += stored_bytes(self.revoking)
        if self.classic is not None:
            for protocol in self.classic.protocols:
                size += 8 + text_bytes(protocol.name) + len(protocol.metadata)
        return size


def reconciled(
    member: ModernMember,
    *,
    target: Partitions,
    target_epoch: int,
    taken: Container[Place],
    owned: Partitions | None,
) -> ModernMember:
    """The member one step nearer to its target.

    `taken`: partitions that belong to anybody. `owned`: what its heartbeat said it has, None when
    it did not say, or when that was said of an epoch before its present one.
    """
    if member.is_reconciled(target_epoch):
        return member
    has = frozenset(places_of(owned)) if owned is not None else None
    if member.state is MemberState.UNREVOKED and _has_any(has, member.revoking):
        return member
    wanted = frozenset(places_of(target))
    present = frozenset(places_of(member.assigned))
    kept = present & wanted
    given_up = partitions_of(present - wanted)
    if given_up and _has_any(has, given_up):
        return msgspec.structs.replace(
            member,
            state=MemberState.UNREVOKED,
            assigned=partitions_of(kept),
            revoking=given_up,
        )
    # What it has given up itself is free for it again, should the target have changed meanwhile.
    own = frozenset(places_of(member.revoking))
    free = {place for place in wanted - kept if place in own or place not in taken}
    waits = len(kept) + len(free) < len(wanted)
    return msgspec.structs.replace(
        member,
        state=MemberState.UNRELEASED if waits else MemberState.STABLE,
        epoch=target_epoch,
        previous_epoch=member.epoch if member.epoch != target_epoch else member.previous_epoch,
        assigned=partitions_of(kept | free),
        revoking=NO_PARTITIONS,
    )


def _has_any(has: frozenset[Place] | None, partitions: Partitions) -> bool:
    """Whether the member may still read any of these."""
    return has is None or any(place in has for place in places_of(partitions))
