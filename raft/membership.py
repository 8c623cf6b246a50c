"""Membership of a group, and its changes (paper §6, thesis §4).

A `Membership` is a value: the incoming voters, the outgoing voters while a change is joint, the
learners, and the learners-to-be. The four functions `simple`, `enter_joint`, `leave_joint` and
`restored` return a new one or raise `InvalidConfChange`. Nothing is changed in place.

- *simple*: at most one voter changes, so old and new majorities overlap (thesis §4.1).
- *enter_joint*: any set of changes. Until it is left, decisions need a majority of both the
  incoming and the outgoing voters (paper §6). A voter that is to become a learner stays a voter of
  the outgoing half until the joint configuration is left: it waits in `learners_next`.

A membership takes effect when its entry is *applied*, not when it is appended as in the paper. That
is safe because the log holds at most one unapplied change, and a node with a committed but
unapplied one does not campaign.

The module also encodes a change as an entry's payload. Byte map, little endian::

    0  version (1)   1  transition   2  changes, u16   4  length of context, u32
    8  per change: type u8, node id u64
    …  context

An empty payload is the request to leave a joint configuration.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, assert_never

from ids import NodeId
from raft.errors import InvalidConfChange, MalformedConfChange
from raft.types import (
    NONE,
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfState,
    Payload,
)

_EMPTY: Final[frozenset[NodeId]] = frozenset()
MEMBERSHIPS_SHARED: Final = 1_024
"""Most memberships that are kept to be shared."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Configuration of a group.

    Invariant: learners are not voters of either half; learners_next are outgoing voters and not
    incoming ones; outgoing, learners_next and auto_leave are empty unless joint.
    """

    incoming: frozenset[NodeId] = _EMPTY
    """Voters; while joint, those of the new half."""
    outgoing: frozenset[NodeId] = _EMPTY
    learners: frozenset[NodeId] = _EMPTY
    learners_next: frozenset[NodeId] = _EMPTY
    auto_leave: bool = False

    @property
    def is_joint(self) -> bool:
        """True if decisions need both halves."""
        return bool(self.outgoing)

    @property
    def is_singleton(self) -> bool:
        """True if a single voter decides everything."""
        return len(self.incoming) == 1 and not self.outgoing

    def voters(self) -> frozenset[NodeId]:
        """Return the voters of either half."""
        return self.incoming | self.outgoing

    def members(self) -> frozenset[NodeId]:
        """Return all members that the leader replicates to."""
        return self.incoming | self.outgoing | self.learners

    def conf_state(self) -> ConfState:
        """Return the form used in snapshots and storages.

        Groups with the same members share one value.
        """
        return _conf_state(self)


@lru_cache(maxsize=MEMBERSHIPS_SHARED)
def _conf_state(membership: Membership) -> ConfState:
    return ConfState(
        voters=tuple(sorted(membership.incoming)),
        voters_outgoing=tuple(sorted(membership.outgoing)),
        learners=tuple(sorted(membership.learners)),
        learners_next=tuple(sorted(membership.learners_next)),
        auto_leave=membership.auto_leave,
    )


@lru_cache(maxsize=MEMBERSHIPS_SHARED)
def restored(state: ConfState) -> Membership:
    """Return the membership held by a snapshot or a storage. Raises InvalidConfChange.

    Groups with the same members share one value.
    """
    return _checked(
        Membership(
            incoming=frozenset(state.voters),
            outgoing=frozenset(state.voters_outgoing),
            learners=frozenset(state.learners),
            learners_next=frozenset(state.learners_next),
            auto_leave=state.auto_leave,
        )
    )


def changed(membership: Membership, change: ConfChange) -> Membership:
    """Return the membership after a committed change. Raises InvalidConfChange."""
    if change.leaves_joint:
        return leave_joint(membership)
    if change.enters_joint:
        return enter_joint(membership, change.changes, auto_leave=change.auto_leave)
    return simple(membership, change.changes)


def simple(membership: Membership, changes: Iterable[ConfChangeSingle]) -> Membership:
    """Apply changes that alter at most one voter, effective at once (thesis §4.1).

    Raises InvalidConfChange.
    """
    if membership.is_joint:
        raise InvalidConfChange("can't apply simple config change in joint config")
    after = _with_changes(membership, changes)
    if len(membership.incoming ^ after.incoming) > 1:
        raise InvalidConfChange("more than one voter changed without entering joint config")
    return _checked(after)


def enter_joint(
    membership: Membership, changes: Iterable[ConfChangeSingle], *, auto_leave: bool
) -> Membership:
    """Apply any changes, with the current voters as the outgoing half (paper §6).

    Raises InvalidConfChange.
    """
    if membership.is_joint:
        raise InvalidConfChange("config is already joint")
    if not membership.incoming:
        raise InvalidConfChange("can't make a zero-voter config joint")
    joint = replace(membership, outgoing=membership.incoming, auto_leave=auto_leave)
    return _checked(_with_changes(joint, changes))


def leave_joint(membership: Membership) -> Membership:
    """Keep the incoming half alone; learners_next become learners. Raises InvalidConfChange."""
    if not membership.is_joint:
        raise InvalidConfChange("can't leave a non-joint config")
    return _checked(
        Membership(
            incoming=membership.incoming,
            learners=membership.learners | membership.learners_next,
        )
    )


def _with_changes(membership: Membership, changes: Iterable[ConfChangeSingle]) -> Membership:
    incoming = set(membership.incoming)
    learners = set(membership.learners)
    learners_next = set(membership.learners_next)
    for change in changes:
        node = change.node_id
        if node == NONE:
            continue
        match change.type:
            case ConfChangeType.ADD_NODE:
                incoming.add(node)
                learners.discard(node)
                learners_next.discard(node)
            case ConfChangeType.ADD_LEARNER_NODE:
                incoming.discard(node)
                # An outgoing voter still votes; it becomes a learner when the joint configuration
                # is left.
                (learners_next if node in membership.outgoing else learners).add(node)
            case ConfChangeType.REMOVE_NODE:
                incoming.discard(node)
                learners.discard(node)
                learners_next.discard(node)
            case ConfChangeType.UPDATE_NODE:
                pass
            case _:
                assert_never(change.type)
    if not incoming:
        raise InvalidConfChange("removed all voters")
    return replace(
        membership,
        incoming=frozenset(incoming),
        learners=frozenset(learners),
        learners_next=frozenset(learners_next),
    )


def _checked(membership: Membership) -> Membership:
    """Return the membership if it is valid. Raises InvalidConfChange."""
    if (
        membership.learners & membership.voters()
        or not membership.learners_next <= membership.outgoing
        or membership.learners_next & membership.incoming
        or (membership.auto_leave and not membership.is_joint)
    ):
        raise InvalidConfChange(
            f"an invalid membership: learners that vote, or no joint config to leave: {membership}"
        )
    return membership


# --- The payload of a membership change --------------------------------------------------------

_HEADER: Final = struct.Struct("<BBHI")
_CHANGE: Final = struct.Struct("<BQ")
_VERSION: Final = 1


def encode_conf_change(change: ConfChange) -> bytes:
    """Encode a change as an entry's payload; empty for leaving a joint configuration."""
    if change.leaves_joint and not change.context:
        return b""
    parts = [_HEADER.pack(_VERSION, change.transition, len(change.changes), len(change.context))]
    parts += [_CHANGE.pack(single.type, single.node_id) for single in change.changes]
    parts.append(change.context)
    return b"".join(parts)


def decode_conf_change(data: Payload) -> ConfChange:
    """Decode the change in an entry's payload. Raises MalformedConfChange."""
    if len(data) == 0:
        return ConfChange()
    if len(data) < _HEADER.size:
        raise MalformedConfChange(f"{len(data)} bytes are too short")
    version, transition, count, context_length = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise MalformedConfChange(f"unknown version {version}")
    context_start = _HEADER.size + count * _CHANGE.size
    if len(data) != context_start + context_length:
        raise MalformedConfChange(f"{len(data)} bytes are too short for {count} changes")
    try:
        return ConfChange(
            changes=tuple(
                ConfChangeSingle(ConfChangeType(kind), node_id)
                for kind, node_id in _CHANGE.iter_unpack(data[_HEADER.size : context_start])
            ),
            transition=ConfChangeTransition(transition),
            context=bytes(data[context_start:]),
        )
    except ValueError as error:
        raise MalformedConfChange(str(error)) from error
