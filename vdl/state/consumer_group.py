"""One consumer group of the classic protocol: its members, its generation, its state.

    EMPTY ──join──▶ PREPARING_REBALANCE ──all joined──▶ COMPLETING_REBALANCE ──sync──▶ STABLE
      ▲                  │    ▲                                │                         │
      └─no members left──┘    └────────join, leave, expiry─────┴─────────────────────────┘

The cost of a join does not depend on the number of members: properties of all members are counted.
Only the end of a rebalance visits each member.

A *static* member (KIP-345) has an instance id and keeps its place across a restart, under a new
member id. A *pending* member (KIP-394) was given a member id and has not joined with it yet.

Does not depend on commands, timers, or pending requests.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from operator import attrgetter
from typing import TypeVar

import msgspec

from vdl.errors import ErrorCode
from vdl.state.commands import Protocol
from vdl.state.table import text_bytes, texts_bytes

Counted = TypeVar("Counted")

GROUP_BYTES = 64
"""Estimated size of a group in a snapshot, without names. Likewise for members and pending ids."""
MEMBER_BYTES = 96
PENDING_BYTES = 16

_name_of = attrgetter("name")


class GroupState(IntEnum):
    """State of a group. A group that does not exist is Kafka's Dead."""

    EMPTY = 0
    """No members; there may be committed offsets and pending members."""
    PREPARING_REBALANCE = 1
    """Members must join the next generation."""
    COMPLETING_REBALANCE = 2
    """The generation is set; the leader's assignment is awaited."""
    STABLE = 3


class Member(msgspec.Struct, array_like=True):
    """One member, as it last joined."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[Protocol]
    """In order of preference; not empty. Changed only by the group, which counts them."""
    assignment: bytes = b""
    """Assignment of the current generation; empty until the leader has synced."""
    joined: bool = False
    """In PREPARING_REBALANCE: True if it has joined the next generation. Changed by the group."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return its subscription under the chosen protocol; empty if it does not support it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""


class StoredGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group as stored. The order of members decides the next leader."""

    group_id: str
    state: int
    generation: int
    protocol_type: str
    protocol_name: str | None
    leader: str | None
    held: bool
    changed_ms: int
    members: list[Member]
    pending: list[tuple[str, int]]


class ConsumerGroup:
    """State of one classic group; see the module. Changed only by `vdl.state.consumer_groups`.

    Invariant: EMPTY has no members; COMPLETING_REBALANCE and STABLE have a leader that is a member,
    and a protocol that all members support; `joined` is set in PREPARING_REBALANCE only.
    """

    __slots__ = (
        "bytes",
        "changed_ms",
        "generation",
        "group_id",
        "held",
        "joined_count",
        "leader",
        "members",
        "pending",
        "preferences",
        "protocol_name",
        "protocol_type",
        "state",
        "static_members",
        "supporters",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        """Empty if no member ever joined: offsets are committed without membership."""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.held = False
        """True while the first rebalance waits for more members, until `CompleteJoin` (KIP-134)."""
        self.changed_ms = now_ms
        """Wall time of the last change of `state`."""
        self.members: dict[str, Member] = {}
        """By member id, in the order they were added."""
        self.static_members: dict[str, str] = {}
        """Instance id → member id. Derived from `members`, as are the fields below."""
        self.joined_count = 0
        """Number of members with `joined` set."""
        self.supporters: dict[str, int] = {}
        """Protocol name → number of members that support it; never 0."""
        self.preferences: dict[tuple[str, ...], int] = {}
        """Protocol names in order of preference → number of members with exactly these; never 0.

        There are few entries: members of a group are mostly configured alike.
        """
        self.pending: dict[str, int] = {}
        """Unused member id → session timeout (ms). Changed by `expect` and `expect_no_more`."""
        self.bytes = GROUP_BYTES + text_bytes(group_id)
        """Estimated size in a snapshot; data chosen by clients is counted in full."""

    # --- queries -----------------------------------------------------------------------------
    @property
    def rebalance_timeout_ms(self) -> int:
        """Time that members have to join: the largest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """True if all members have joined and none is pending."""
        return not self.pending and self.joined_count == len(self.members)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return NONE for a member whose instance id no other member has taken over (KIP-345)."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def supports(self, protocol_type: str, protocols: list[Protocol]) -> bool:
        """Return True if all members support at least one of these protocols of a new member."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        if protocol_type != self.protocol_type:
            return False
        return any(self._is_common(protocol) for protocol in protocols)

    def select_protocol(self) -> str:
        """Return the common protocol that most members prefer.

        On a tie, the first member's preference decides.
        """
        first = next(iter(self.members.values()))
        common = {protocol.name: None for protocol in first.protocols if self._is_common(protocol)}
        assert common, self.group_id
        if len(common) == 1:
            return next(iter(common))
        votes: Counter[str] = Counter()
        for names, members in self.preferences.items():
            votes[next(name for name in names if name in common)] += members
        return max(common, key=votes.__getitem__)

    def _is_common(self, protocol: Protocol) -> bool:
        """Return True if all members support the protocol."""
        return self.supporters.get(protocol.name) == len(self.members)

    # --- changes ---------------------------------------------------------------------------
    def add(self, member: Member) -> None:
        """Add a new member, as the last one."""
        assert member.member_id not in self.members, member.member_id
        self.members[member.member_id] = member
        self.bytes += member_bytes(member)
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, member.group_instance_id
            self.static_members[member.group_instance_id] = member.member_id
        self.joined_count += member.joined
        self._count_protocols(member, 1)

    def remove(self, member_id: str) -> Member:
        """Remove a member. If it was the leader, the group has none afterwards."""
        member = self.members.pop(member_id)
        self.bytes -= member_bytes(member)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = None
        self.joined_count -= member.joined
        self._count_protocols(member, -1)
        return member

    def join(self, member: Member) -> None:
        """Mark a member as joined to the next generation. It may have joined already."""
        self.joined_count += not member.joined
        member.joined = True

    def begin_generation(self) -> None:
        """Clear all assignments and joins for a new generation."""
        for member in self.members.values():
            member.joined = False
            self.bytes -= len(member.assignment)
            member.assignment = b""
        self.joined_count = 0

    def set_protocols(self, member: Member, protocols: list[Protocol]) -> None:
        """Set the protocols that a member supports."""
        self._count_protocols(member, -1)
        self.bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set a member's assignment in this generation."""
        self.bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def expect(self, member_id: str, session_timeout_ms: int) -> None:
        """Add a pending member id."""
        if member_id not in self.pending:
            self.bytes += PENDING_BYTES + text_bytes(member_id)
        self.pending[member_id] = session_timeout_ms

    def expect_no_more(self, member_id: str) -> bool:
        """Remove a pending member id. Return False if there was none."""
        if self.pending.pop(member_id, None) is None:
            return False
        self.bytes -= PENDING_BYTES + text_bytes(member_id)
        return True

    def _count_protocols(self, member: Member, change: int) -> None:
        names: tuple[str, ...] = tuple(map(_name_of, member.protocols))
        _add_to(self.preferences, names, change)
        # A client may list a protocol twice.
        for name in dict.fromkeys(names):
            _add_to(self.supporters, name, change)

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change the state."""
        self.state = state
        self.changed_ms = now_ms

    # --- storing ---------------------------------------------------------------------------
    def stored(self) -> StoredGroup:
        """Return a value that holds everything."""
        return StoredGroup(
            group_id=self.group_id,
            state=int(self.state),
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader,
            held=self.held,
            changed_ms=self.changed_ms,
            members=list(self.members.values()),
            pending=list(self.pending.items()),
        )


def group_from(stored: StoredGroup) -> ConsumerGroup:
    """Return the group that `stored` was made from."""
    group = ConsumerGroup(stored.group_id, stored.changed_ms)
    group.state = GroupState(stored.state)
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type
    group.protocol_name = stored.protocol_name
    group.leader = stored.leader
    group.held = stored.held
    for member in stored.members:
        group.add(member)
    for member_id, session_timeout_ms in stored.pending:
        group.expect(member_id, session_timeout_ms)
    return group


def protocols_bytes(protocols: list[Protocol]) -> int:
    """Return the estimated size of protocols in a snapshot."""
    size = 8 * len(protocols) + texts_bytes(*map(_name_of, protocols))
    for protocol in protocols:
        size += len(protocol.metadata)
    return size


def member_bytes(member: Member) -> int:
    """Return the estimated size of a member in a snapshot."""
    return (
        MEMBER_BYTES
        + texts_bytes(
            member.member_id,
            member.group_instance_id or "",
            member.client_id,
            member.client_host,
        )
        + len(member.assignment)
        + protocols_bytes(member.protocols)
    )


def _add_to(counts: dict[Counted, int], key: Counted, change: int) -> None:
    """Add `change` to a count and remove a count of 0, because clients choose the keys."""
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
