"""One group of the newer protocol: members, targets, and who has which partition (KIP-848).

The group's *epoch* grows when a member comes, goes or changes what it subscribes to, and when what
is subscribed to changes. For the newest epoch the coordinator's leader computes each member's
*target*; `assignment_epoch` says which epoch the targets are of. Members move towards their targets
one by one (`member.py`), nobody waits for everybody.

Must not know: commands, timers, how targets are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from vdl.state.commands import ResolvedPattern, SubscribedTopic
from vdl.state.modern.member import ModernMember
from vdl.state.modern.partitions import (
    NO_PARTITIONS,
    Partitions,
    Place,
    partitions_of,
    places_of,
    stored_bytes,
)
from vdl.state.table import text_bytes

GROUP_BYTES = 64
TOPIC_BYTES = 24
"""What a topic that is subscribed to takes in a snapshot beside its name."""


class ModernState(Enum):
    """Kafka's names of where such a group stands. A group that does not exist is Dead."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StoredModernGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group as it is stored. Members in the order they came."""

    group_id: str
    epoch: int
    assignment_epoch: int
    changed_ms: int
    members: list[ModernMember]
    targets: list[tuple[str, Partitions]]
    topics: list[SubscribedTopic]
    patterns: list[ResolvedPattern]


class ModernGroup:
    """See the module. Changed by `vdl.state.modern.groups` alone.

    Invariant: `owners` has each member's assigned and revoking partitions, and no partition is in
    those of two; no member's epoch is above the assignment's; every target is a member's.
    """

    __slots__ = (
        "assignment_epoch",
        "bytes",
        "changed_ms",
        "epoch",
        "group_id",
        "members",
        "owners",
        "patterns",
        "static_members",
        "targets",
        "topics",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.changed_ms = now_ms
        """Wall time at which the last member went, or the first one came."""
        self.members: dict[str, ModernMember] = {}
        """By member id, in the order they came."""
        self.static_members: dict[str, str] = {}
        """Instance id → member id. Derived."""
        self.targets: dict[str, Partitions] = {}
        """By member id. A member without one came after the targets were computed."""
        self.topics: dict[str, SubscribedTopic] = {}
        self.patterns: dict[str, list[str]] = {}
        self.owners: dict[Place, str] = {}
        """Partition → the member that may read it. Derived."""
        self.bytes = GROUP_BYTES + text_bytes(group_id)
        """What it takes in a snapshot, about. Targets count twice: assignments will be as large."""

    # --- questions ---------------------------------------------------------------------------
    @property
    def state(self) -> ModernState:
        """Costs a look at each member."""
        if not self.members:
            return ModernState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ModernState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled(epoch) for member in self.members.values()):
            return ModernState.STABLE
        return ModernState.RECONCILING

    def topic_names(self) -> set[str]:
        """What members subscribe to, by name and as their patterns matched last."""
        names: set[str] = set()
        for member in self.members.values():
            names.update(member.topics)
            if member.pattern:
                names.update(self.patterns.get(member.pattern, ()))
        return names

    def names_of(self, member: ModernMember) -> set[str]:
        """What one member subscribes to."""
        found = set(member.topics)
        if member.pattern:
            found.update(self.patterns.get(member.pattern, ()))
        return found

    # --- changes -----------------------------------------------------------------------------
    def put(self, member: ModernMember) -> None:
        """A member comes, or takes the next step."""
        before = self.members.get(member.member_id)
        if before is not None:
            self.bytes -= before.bytes
            self._release(before)
            if before.instance_id not in (None, member.instance_id):
                # It is to be had by others: its member has another name from now on.
                del self.static_members[before.instance_id]
        self.members[member.member_id] = member
        self.bytes += member.bytes
        if member.instance_id is not None:
            owner = self.static_members.setdefault(member.instance_id, member.member_id)
            assert owner == member.member_id, (self.group_id, member.instance_id, owner)
        for partitions in (member.assigned, member.revoking):
            for place in places_of(partitions):
                owner = self.owners.setdefault(place, member.member_id)
                assert owner == member.member_id, (self.group_id, place, owner, member.member_id)

    def remove(self, member_id: str) -> ModernMember:
        """A member goes; what it had is free."""
        member = self.members.pop(member_id)
        self.bytes -= member.bytes
        self._release(member)
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        self.set_target(member_id, None)
        return member

    def _release(self, member: ModernMember) -> None:
        for partitions in (member.assigned, member.revoking):
            for place in places_of(partitions):
                del self.owners[place]

    def set_target(self, member_id: str, target: Partitions | None) -> None:
        """What a member is to have; None: it has no target."""
        before = self.targets.pop(member_id, None)
        if before is not None:
            self.bytes -= target_bytes(before)
        if target is not None:
            self.targets[member_id] = target
            self.bytes += target_bytes(target)

    def set_topics(self, topics: list[SubscribedTopic], patterns: list[ResolvedPattern]) -> None:
        """What the targets were computed from."""
        self.bytes -= subscription_bytes(list(self.topics.values()), self._resolved())
        self.topics = {topic.name: topic for topic in topics}
        self.patterns = {one.pattern: one.topics for one in patterns}
        self.bytes += subscription_bytes(topics, patterns)

    def target(self, member_id: str) -> Partitions:
        """What a member is to have."""
        return self.targets.get(member_id, NO_PARTITIONS)

    # --- storing -----------------------------------------------------------------------------
    def _resolved(self) -> list[ResolvedPattern]:
        return [ResolvedPattern(pattern, names) for pattern, names in sorted(self.patterns.items())]

    def stored(self) -> StoredModernGroup:
        """A value that holds everything."""
        return StoredModernGroup(
            group_id=self.group_id,
            epoch=self.epoch,
            assignment_epoch=self.assignment_epoch,
            changed_ms=self.changed_ms,
            members=list(self.members.values()),
            targets=sorted(self.targets.items()),
            topics=[self.topics[name] for name in sorted(self.topics)],
            patterns=self._resolved(),
        )


def group_from(stored: StoredModernGroup) -> ModernGroup:
    """The group that `stored` was made from."""
    group = ModernGroup(stored.group_id, stored.changed_ms)
    group.epoch = stored.epoch
    group.assignment_epoch = stored.assignment_epoch
    for member in stored.members:
        group.put(member)
    for member_id, target in stored.targets:
        group.set_target(member_id, target)
    group.set_topics(stored.topics, stored.patterns)
    return group


def target_bytes(target: Partitions) -> int:
    """What a target takes, with the assignment that follows it."""
    return 2 * (8 + stored_bytes(target))


def subscription_bytes(topics: list[SubscribedTopic], patterns: list[ResolvedPattern]) -> int:
    """What they take in a snapshot, about."""
    size = sum(TOPIC_BYTES + text_bytes(topic.name) for topic in topics)
    for one in patterns:
        size += 8 + text_bytes(one.pattern) + sum(2 + text_bytes(name) for name in one.topics)
    return size


def changed_targets(
    present: Mapping[str, Partitions], targets: Mapping[str, set[Place]]
) -> list[tuple[str, Partitions]]:
    """Of computed targets, those that members do not have yet, by member id."""
    found = []
    for member_id, places in sorted(targets.items()):
        target = partitions_of(places)
        if present.get(member_id) != target:
            found.append((member_id, target))
    return found
