"""Share groups of one coordinator: their members and assignments (KIP-932).

A partition may be read by several members, so a member can start to read it without another one
revoking it. A group's epoch grows when a member joins, leaves or changes its subscription, and when
a topic is created, deleted or extended. The assignment follows from members and topics alone. A
member in the group's epoch has its assignment; one in an older epoch gets the new one with its next
heartbeat. So heartbeats that change nothing are not commands.

The assignment distributes partitions evenly. With more members than partitions each partition has
several members; with fewer, each member has several partitions. Every subscribed partition has a
member.

Does not depend on records, share-partitions, sessions, or requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from ids import GroupId
from vdl.errors import ErrorCode
from vdl.state.commands import (
    JoinShareGroup,
    LeaveShareGroup,
    RefreshShareGroup,
    ShareTopic,
)
from vdl.state.consumer_groups import GROUP_BYTES_MAX, GroupEvent
from vdl.state.group_kinds import COORDINATOR_IS_FULL, GroupKind, GroupTouched
from vdl.state.table import (
    ALL,
    decode_value,
    scanned_items,
    stored_changes,
    stored_items,
    taken,
    text_bytes,
)

KEY_PREFIX = b"s"
GROUP_BYTES = 64
MEMBER_BYTES = 64
TOPIC_BYTES = 32
PARTITION_BYTES = 6
"""Estimated sizes of a group, a member, a topic and a partition in a snapshot, without names."""

Place = tuple[bytes, int]
"""(topic id, partition)."""
Members = dict[str, "ShareMember"]
"""By member id, in the order in which they joined."""
Topics = dict[str, ShareTopic]
"""By name."""


class ShareMember(msgspec.Struct, frozen=True, array_like=True):
    """A member, as it last described itself."""

    member_id: str
    rack_id: str
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Estimated size in a snapshot."""
        names = (self.member_id, self.rack_id, self.client_id, self.client_host)
        return MEMBER_BYTES + sum(map(text_bytes, names)) + sum(map(text_bytes, self.topic_names))


class StoredShareGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group as stored. Members in the order in which they joined."""

    group_id: str
    epoch: int
    members: list[ShareMember]
    topics: list[ShareTopic]


class ShareGroup:
    """State of one share group."""

    __slots__ = ("_assignment", "bytes", "epoch", "group_id", "members", "topics")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.members: Members = {}
        self.topics: Topics = {}
        """Existing topics that members subscribe to."""
        self._assignment: dict[str, tuple[Place, ...]] | None = None
        self.bytes = 0

    @property
    def state_name(self) -> str:
        """Kafka's name of the group's state. A group that does not exist is Dead."""
        return "Stable" if self.members else "Empty"

    @property
    def topic_names(self) -> set[str]:
        """Topic names that members subscribe to."""
        return {name for member in self.members.values() for name in member.topic_names}

    @property
    def assignment(self) -> dict[str, tuple[Place, ...]]:
        """Member id → the partitions it reads, in order. Derived."""
        if self._assignment is None:
            self._assignment = assign(self.members.values(), self.topics)
        return self._assignment

    @property
    def partitions(self) -> list[tuple[bytes, int, GroupId]]:
        """(topic id, partition, its group id) of all subscribed partitions."""
        topics = [self.topics[name] for name in sorted(self.topics)]
        return [
            (topic.topic_id, index, group)
            for topic in topics
            for index, group in enumerate(topic.partition_groups)
        ]

    def changed(self) -> None:
        """Begin a new epoch after a change of members or topics."""
        self.epoch += 1
        self.count()

    def count(self) -> None:
        """Recompute the size and drop the derived assignment."""
        self._assignment = None
        self.bytes = group_bytes(self.group_id, self.members, self.topics)

    def stored(self) -> StoredShareGroup:
        return StoredShareGroup(
            self.group_id,
            self.epoch,
            list(self.members.values()),
            [self.topics[name] for name in sorted(self.topics)],
        )


def group_bytes(group_id: str, members: Members, topics: Topics) -> int:
    """Return the estimated size of a group in a snapshot."""
    total = GROUP_BYTES + text_bytes(group_id)
    total += sum(member.bytes for member in members.values())
    for topic in topics.values():
        total += TOPIC_BYTES + text_bytes(topic.name)
        total += PARTITION_BYTES * len(topic.partition_groups)
    return total


def assign(members: Iterable[ShareMember], topics: Topics) -> dict[str, tuple[Place, ...]]:
    """Distribute partitions evenly among the members that subscribe to the same topics."""
    found: dict[str, list[Place]] = {member.member_id: [] for member in members}
    subscribers: dict[str, list[str]] = {}
    for member in members:
        for name in member.topic_names:
            if name in topics:
                subscribers.setdefault(name, []).append(member.member_id)
    places_of: dict[tuple[str, ...], list[Place]] = {}
    for name in sorted(subscribers):
        topic = topics[name]
        places = places_of.setdefault(tuple(sorted(subscribers[name])), [])
        places += [(topic.topic_id, index) for index in range(len(topic.partition_groups))]
    for readers, places in places_of.items():
        for turn in range(max(len(readers), len(places))):
            found[readers[turn % len(readers)]].append(places[turn % len(places)])
    return {member_id: tuple(sorted(places)) for member_id, places in found.items()}


@dataclass(slots=True)
class ShareGroupChanged:
    """Answer to the commands of members: an error, or the events of the change."""

    error: ErrorCode
    events: list[GroupEvent] = field(default_factory=list)


class ShareGroups:
    """All share groups of one coordinator. `bytes_max` is their size limit."""

    __slots__ = ("_dirty", "_members", "bytes_held", "bytes_max", "groups")

    def __init__(self) -> None:
        self.bytes_max = 1 << 62
        self.groups: dict[str, ShareGroup] = {}
        """By id; read-only to other modules."""
        self._members = 0
        self.bytes_held = 0
        """Estimated size of all groups in a snapshot. Changed only here."""
        self._dirty: set[str] = set()

    def __len__(self) -> int:
        """Return the number of groups plus that of their members."""
        return len(self.groups) + self._members

    def drop(self, group_id: str) -> None:
        """Remove a group that has no members."""
        group = self.groups.pop(group_id)
        assert not group.members, group_id
        self.bytes_held -= group.bytes
        self._dirty.add(group_id)

    # --- commands --------------------------------------------------------------------------
    def make(self, group_id: str) -> ShareGroupChanged:
        """Create a group without members, so that offsets can be set before a member joins."""
        group = ShareGroup(group_id)
        refusal = self._refusal(group, {}, {})
        if refusal is not ErrorCode.NONE:
            return ShareGroupChanged(refusal)
        return self._change(group, {}, {})

    def join(self, command: JoinShareGroup, now_ms: int) -> ShareGroupChanged:
        """Add a member, or update its description."""
        group = self.groups.get(command.group_id) or ShareGroup(command.group_id)
        before = group.members.get(command.member_id)
        member = ShareMember(
            command.member_id,
            command.rack_id,
            command.client_id,
            command.client_host,
            tuple(command.topic_names),
        )
        if before is None and len(group.members) >= command.members_max:
            return ShareGroupChanged(ErrorCode.GROUP_MAX_SIZE_REACHED)
        members = {**group.members, member.member_id: member}
        topics = topics_after(group, members, command.topics)
        if members == group.members and topics == group.topics:
            return ShareGroupChanged(ErrorCode.NONE)
        refusal = self._refusal(group, members, topics)
        if refusal is not ErrorCode.NONE:
            return ShareGroupChanged(refusal)
        return self._change(group, members, topics)

    def leave(self, command: LeaveShareGroup, now_ms: int) -> ShareGroupChanged:
        """Remove members; unknown ids are ignored if at least one is a member."""
        group = self.groups.get(command.group_id)
        gone = [] if group is None else [m for m in command.member_ids if m in group.members]
        if group is None or not gone:
            return ShareGroupChanged(ErrorCode.UNKNOWN_MEMBER_ID)
        members = {name: one for name, one in group.members.items() if name not in gone}
        return self._change(group, members, topics_after(group, members, command.topics))

    def refresh(self, command: RefreshShareGroup, now_ms: int) -> ShareGroupChanged:
        """Update the topics of a group."""
        group = self.groups.get(command.group_id)
        if group is None:
            return ShareGroupChanged(ErrorCode.GROUP_ID_NOT_FOUND)
        topics = topics_after(group, group.members, command.topics)
        if topics == group.topics or self._refusal(group, group.members, topics):
            return ShareGroupChanged(ErrorCode.NONE)
        return self._change(group, group.members, topics)

    def _refusal(self, group: ShareGroup, members: Members, topics: Topics) -> ErrorCode:
        """Return why a group may not have these members and topics, NONE if it may.

        A change that does not grow the group always fits.
        """
        after = group_bytes(group.group_id, members, topics)
        more = after - group.bytes
        if more > 0 and after > GROUP_BYTES_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        is_full = more > 0 and self.bytes_held + more > self.bytes_max
        return COORDINATOR_IS_FULL if is_full else ErrorCode.NONE

    def _change(self, group: ShareGroup, members: Members, topics: Topics) -> ShareGroupChanged:
        self.bytes_held -= group.bytes
        self._members += len(members) - len(group.members)
        group.members, group.topics = members, topics
        group.changed()
        self.bytes_held += group.bytes
        self.groups[group.group_id] = group
        self._dirty.add(group.group_id)
        return ShareGroupChanged(ErrorCode.NONE, [GroupTouched(group.group_id, GroupKind.SHARE)])

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed group."""
        return stored_changes(KEY_PREFIX, taken(self._dirty, limit), self.groups)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        return stored_items(KEY_PREFIX, self.groups)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        return scanned_items(KEY_PREFIX, self.groups)

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
        self.groups, self._members, self.bytes_held, self._dirty = {}, 0, 0, set()
        for value in values:
            stored = decode_value(value, StoredShareGroup)
            group = ShareGroup(stored.group_id)
            group.epoch = stored.epoch
            group.members = {member.member_id: member for member in stored.members}
            group.topics = {topic.name: topic for topic in stored.topics}
            group.count()
            self.groups[group.group_id] = group
            self._members += len(group.members)
            self.bytes_held += group.bytes


def topics_after(group: ShareGroup, members: Members, known: list[ShareTopic]) -> Topics:
    """Return the topics of `known` that members subscribe to.

    A catalog that lags behind the one used before does not shrink a topic.
    """
    names = {name for member in members.values() for name in member.topic_names}
    found: Topics = {}
    for topic in known:
        if topic.name in names:
            before = group.topics.get(topic.name, topic)
            is_older = before.topic_id == topic.topic_id and (
                len(before.partition_groups) > len(topic.partition_groups)
            )
            found[topic.name] = before if is_older else topic
    return found
