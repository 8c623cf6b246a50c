"""One group of the newer protocol: members, targets, and partition ownership (KIP-848).

The group's *epoch* grows when a member joins, leaves or changes its subscription, and when
subscribed topics change. For the newest epoch the coordinator's leader computes each member's
*target*; `assignment_epoch` is the epoch that the targets belong to. Members move towards their
targets one by one (`member.py`), without a barrier for the whole group.

Does not depend on commands, on timers, or on how targets are computed.
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
"""Estimated size of a subscribed topic in a snapshot, without its name."""


class ModernState(Enum):
    """Kafka's names of the group's states. A group that does not exist is Dead."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StoredModernGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group as stored. Members in the order in which they joined."""

    group_id: str
    epoch: int
    assignment_epoch: int
    changed_ms: int
    members: list[ModernMember]
    targets: list[tuple[str, Partitions]]
    topics: list[SubscribedTopic]
    patterns: list[ResolvedPattern]


class ModernGroup:
    """State of one group; see the module. Changed only by `vdl.state.modern.groups`.

    Invariant: `owners` has each member's assigned and revoking partitions, and no partition belongs
    to two members; no member's epoch is above the assignment's; every target belongs to a member.
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
        """Wall time at which the last member left, or the first one joined."""
        self.members: dict[str, ModernMember] = {}
        """By member id, in the order in which they joined."""
        self.static_members: dict[str, str] = {}
        """Instance id → member id. Derived."""
        self.targets: dict[str, Partitions] = {}
        """By member id. A member without a target joined after the targets were computed."""
        self.topics: dict[str, SubscribedTopic] = {}
        self.patterns: dict[str, list[str]] = {}
        self.owners: dict[Place, str] = {}
        """Partition → the member that may read it. Derived."""
        self.bytes = GROUP_BYTES + text_bytes(group_id)
        """Estimated size in a snapshot. Targets count twice: assignments become as large."""

    # --- queries -----------------------------------------------------------------------------
    @property
    def state(self) -> ModernState:
        """State of the group. The cost is proportional to the number of members."""
        if not self.members:
            return ModernState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ModernState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled(epoch) for member in self.members.values()):
            return ModernState.STABLE
        return ModernState.RECONCILING

    def topic_names(self) -> set[str]:
        """Return all subscribed topics, by name and as matched last by patterns."""
        names: set[str] = set()
        for member in self.members.values():
            names.update(member.topics)
            if member.pattern:
                names.update(self.patterns.get(member.pattern, ()))
        return names

    # --- changes -----------------------------------------------------------------------------
    def put(self, member: ModernMember) -> None:
        """Add a member, or replace it by its next value."""
        before = self.members.get(member.member_id)
        if before is not None:
            self.bytes -= before.bytes
            self._release(before)
            if before.instance_id not in (None, member.instance_id):
                # Another member may use the instance id: this one has a different one from now on.
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
        """Remove a member and release its partitions."""
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
        """Set a member's target; None removes it."""
        before = self.targets.pop(member_id, None)
        if before is not None:
            self.bytes -= target_bytes(before)
        if target is not None:
            self.targets[member_id] = target
            self.bytes += target_bytes(target)

    def set_topics(self, topics: list[SubscribedTopic], patterns: list[ResolvedPattern]) -> None:
        """Set the topics and patterns that the targets were computed from."""
        self.bytes -= subscription_bytes(list(self.topics.values()), self._resolved())
        self.topics = {topic.name: topic for topic in topics}
        self.patterns = {one.pattern: one.topics for one in patterns}
        self.bytes += subscription_bytes(topics, patterns)

    def target(self, member_id: str) -> Partitions:
        """Return a member's target."""
        return self.targets.get(member_id, NO_PARTITIONS)

    # --- storing -----------------------------------------------------------------------------
    def _resolved(self) -> list[ResolvedPattern]:
        return [ResolvedPattern(pattern, names) for pattern, names in sorted(self.patterns.items())]

    def stored(self) -> StoredModernGroup:
        """Return a value that holds everything."""
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
    """Return the group that `stored` was made from."""
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
    """Return the estimated size of a target and of the assignment that follows it."""
    return 2 * (8 + stored_bytes(target))


def subscription_bytes(topics: list[SubscribedTopic], patterns: list[ResolvedPattern]) -> int:
    """Return the estimated size of topics and patterns in a snapshot."""
    size = sum(TOPIC_BYTES + text_bytes(topic.name) for topic in topics)
    for one in patterns:
        size += 8 + text_bytes(one.pattern) + sum(2 + text_bytes(name) for name in one.topics)
    return size


def changed_targets(
    present: Mapping[str, Partitions], targets: Mapping[str, set[Place]]
) -> list[tuple[str, Partitions]]:
    """Return the computed targets that differ from the present ones, by member id."""
    found = []
    for member_id, places in sorted(targets.items()):
        target = partitions_of(places)
        if present.get(member_id) != target:
            found.append((member_id, target))
    return found
