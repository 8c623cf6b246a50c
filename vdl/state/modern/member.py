"""A member of a group of the newer protocol, and its reconciliation with its target (KIP-848).

A member is an immutable value: each step makes a new one. Its *assignment* is what it may read and
commit. It moves towards its *target* independently of other members:

    STABLE ──(the target takes partitions away)──▶ UNREVOKED
    UNREVOKED ──(its heartbeat no longer lists them)──▶ STABLE, UNRELEASED
    STABLE ──(partitions of the target still belong to another member)──▶ UNRELEASED

A partition that it must revoke belongs to it until one of its heartbeats no longer lists it. So a
partition belongs to one member at any time, however late heartbeats arrive.

Does not depend on commands, groups, or timers.
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
"""Estimated size of a member in a snapshot, without data chosen by clients."""
JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2
"""Epoch of a static member that left and will return: its partitions are kept for one session."""


class MemberState(IntEnum):
    """Progress of a member towards its target."""

    STABLE = 0
    UNREVOKED = 1
    """It must revoke partitions and has not confirmed that it did."""
    UNRELEASED = 2
    """Part of its target still belongs to another member."""


class ClassicSide(msgspec.Struct, frozen=True, array_like=True):
    """Additional state of a member that uses the classic protocol in such a group."""

    session_timeout_ms: int
    protocols: list[Protocol]


class ModernMember(msgspec.Struct, frozen=True, array_like=True):
    """Immutable state of one member; see the module."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    """Topic names it subscribes to, ascending, without those that its pattern matches."""
    pattern: str | None
    assignor: str | None
    epoch: int = JOINING_EPOCH
    """0 if it has no target yet; -2: see `STATIC_LEAVING_EPOCH`."""
    previous_epoch: int = JOINING_EPOCH
    """Epoch that it may still send: the answer with the current one may have been lost."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    """Partitions that it must revoke and may still read. Disjoint from `assigned`."""
    classic: ClassicSide | None = None

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return True if it has all of its target."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    @property
    def bytes(self) -> int:
        """Estimated size in a snapshot; its assignment is counted with its target."""
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
    """Return the member one step nearer to its target.

    `taken`: partitions that belong to any member. `owned`: the partitions that its heartbeat
    listed; None if it listed none, or if the heartbeat was of an epoch before the current one.
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
    # Partitions that it has just revoked are free for it again, if the target changed meanwhile.
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
    """Return True if the member may still read any of these partitions."""
    return has is None or any(place in has for place in places_of(partitions))
