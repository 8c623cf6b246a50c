"""One consumer group of the classic protocol: its members, its generation, its state.

    EMPTY ──join──▶ PREPARING_REBALANCE ──all joined──▶ COMPLETING_REBALANCE ──sync──▶ STABLE
      ▲                  │    ▲                                │                         │
      └──nobody left─────┘    └────────join, leave, expiry─────┴─────────────────────────┘

A *static* member (KIP-345) names itself by an instance id and keeps its place over a restart, under
a new member id. A *pending* member (KIP-394) was given a member id and has not come back with it.

Must not know: commands, timers, who waits for an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

import msgspec

from vdl.errors import ErrorCode
from vdl.state.commands import Protocol


class GroupState(IntEnum):
    """Where a group stands. A group that does not exist is Kafka's Dead."""

    EMPTY = 0
    """No members; perhaps committed offsets, perhaps pending members."""
    PREPARING_REBALANCE = 1
    """Members are asked to join the next generation."""
    COMPLETING_REBALANCE = 2
    """The generation is set; its leader's assignment is awaited."""
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
    """In order of preference; not empty."""
    assignment: bytes = b""
    """Of the current generation; empty until the leader has synced."""
    joined: bool = False
    """In PREPARING_REBALANCE: it has asked to be part of the next generation."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its subscription under the chosen protocol; empty if it does not support that."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""


class StoredGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group as it is stored. Members in their order, which decides the next leader."""

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
    """See the module. Changed by `vdl.state.consumer_groups` alone.

    Invariant: EMPTY has no members; COMPLETING_REBALANCE and STABLE have a leader who is a member
    and a protocol all members support; `joined` is set in PREPARING_REBALANCE only.
    """

    __slots__ = (
        "changed_ms",
        "generation",
        "group_id",
        "held",
        "leader",
        "members",
        "pending",
        "protocol_name",
        "protocol_type",
        "state",
        "static_members",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        """Empty: nobody ever joined; offsets are committed by members of no group."""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.held = False
        """The first rebalance waits for more members until the coordinator says so (KIP-134)."""
        self.changed_ms = now_ms
        """Wall time of the last change of `state`."""
        self.members: dict[str, Member] = {}
        """By member id, in the order they were added."""
        self.static_members: dict[str, str] = {}
        """Instance id → member id. Derived from `members`."""
        self.pending: dict[str, int] = {}
        """Member id given out and not used yet → session timeout (ms)."""

    # --- questions ---------------------------------------------------------------------------
    @property
    def rebalance_timeout_ms(self) -> int:
        """How long members have to join: what the most patient of them asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Everybody is there, also those who have only been given an id yet."""
        return not self.pending and all(member.joined for member in self.members.values())

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Whether this is a member; another one may have taken its instance id (KIP-345)."""
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
        """Whether a member with these protocols fits: at least one is everybody's."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        if protocol_type != self.protocol_type:
            return False
        common = self.common_protocols()
        return any(protocol.name in common for protocol in protocols)

    def common_protocols(self) -> set[str]:
        """Names of the protocols all members support."""
        members = iter(self.members.values())
        common = {protocol.name for protocol in next(members).protocols}
        for member in members:
            common.intersection_update(protocol.name for protocol in member.protocols)
        return common

    def select_protocol(self) -> str:
        """The common protocol most members prefer; of equals, what the first member prefers."""
        common = self.common_protocols()
        assert common, self.group_id
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(p.name for p in member.protocols if p.name in common)] += 1
        most = max(votes.values())
        first = next(iter(self.members.values()))
        return next(
            protocol.name
            for protocol in [*first.protocols, *_protocols(self.members.values())]
            if votes[protocol.name] == most
        )

    # --- changes ---------------------------------------------------------------------------
    def add(self, member: Member) -> None:
        """A new member, at the end of the line."""
        assert member.member_id not in self.members, member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, member.group_instance_id
            self.static_members[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        """Take a member out; the leader's place may become vacant."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = None
        return member

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change the state."""
        self.state = state
        self.changed_ms = now_ms

    # --- storing ---------------------------------------------------------------------------
    def stored(self) -> StoredGroup:
        """A value that holds everything."""
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
    """The group that `stored` was made from."""
    group = ConsumerGroup(stored.group_id, stored.changed_ms)
    group.state = GroupState(stored.state)
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type
    group.protocol_name = stored.protocol_name
    group.leader = stored.leader
    group.held = stored.held
    for member in stored.members:
        group.add(member)
    group.pending = dict(stored.pending)
    return group


def _protocols(members: Iterable[Member]) -> Iterable[Protocol]:
    for member in members:
        yield from member.protocols
