"""`__consumer_offsets` as monitoring tools read it: consumer groups and their commits, as a log.

Some tools (Burrow, KMinion) learn of groups only there: committed offsets, members, the partitions
of each member, and deletions. The log begins with one batch for each existing group, followed by
one for each entry. Records are those of Kafka's coordinators for groups of both protocols
(`group_records.py`); share groups have none.

A classic group has a record when its members have their partitions, when it is empty and when it is
gone, as in Kafka: during a rebalance it has none.

Does not depend on requests, nor on how coordinators are placed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ids import GroupId
from vdl.clock import Clock
from vdl.kafka.host import Compute
from vdl.kafka.views import group_records
from vdl.kafka.views.coordinator_view import CoordinatorView
from vdl.kafka.wire.runtime import EncodeError
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import NO_TIMESTAMP, Record
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.changed_parts import Part, PartKind
from vdl.state.consumer_group import ConsumerGroup, GroupState
from vdl.state.coordinator import Coordinator
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.partitions import stored_bytes

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_TOPIC_ID = bytes.fromhex("5f5f636f6e73756d65725f6f66667365")
"""Other topics' ids are random: none is this one."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Contents of a record: a part as it was when it was read, because the state changes."""

    part: Part
    changed_ms: int
    size: int
    """Approximate size of the record in a batch."""
    value: Callable[[], bytes] | None
    """Makes the value, in any thread; None: the part is gone."""


def offsets_topic(catalog: Catalog) -> TopicInfo:
    """Return the topic as handlers see topics: its groups are the coordinators."""
    groups = [GroupId(n) for n in range(1, 1 + catalog.coordinator_groups)]
    return TopicInfo(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, groups, {"cleanup.policy": "compact"})


def commit_log(
    state_group: StateGroup, group_id: GroupId, clock: Clock, gaps: LoopGaps, compute: Compute
) -> CoordinatorView[Part, Seen]:
    """Return one coordinator's groups as a partition. `gaps`: the server's."""
    return CoordinatorView(Groups(state_group), state_group, group_id, clock, gaps, compute)


class Groups:
    """A `Content`: groups, part by part."""

    def __init__(self, state_group: StateGroup) -> None:
        self._state_group = state_group

    @property
    def _machine(self) -> Coordinator:
        machine = self._state_group.machine
        assert isinstance(machine, Coordinator), type(machine)
        return machine

    @property
    def count(self) -> int:
        machine = self._machine
        # A member of the consumer protocol has three records.
        return len(machine.offsets) + len(machine.groups) + 3 * len(machine.consumer)

    @property
    def bytes(self) -> int:
        machine = self._machine
        return machine.offsets.bytes + machine.groups.bytes_held + machine.consumer.bytes_held

    def standing(self) -> Iterator[list[Part]]:
        machine = self._machine
        machine.changed.begin()
        for group_id in machine.group_ids():
            positions = machine.offsets.of(group_id)
            parts = [Part(PartKind.POSITION, group_id, *place) for place in positions]
            if group_id in machine.groups.groups:
                parts.append(Part(PartKind.CLASSIC_GROUP, group_id))
            elif (group := machine.consumer.groups.get(group_id)) is not None:
                parts += _parts_of(group)
            if parts:
                yield parts

    def changed(self, result: Any) -> list[Part]:
        return self._machine.changed.take()

    def unwatched(self) -> None:
        self._machine.changed.end()

    def take(self, places: list[Part]) -> list[Seen]:
        seen = (self._seen(part) for part in places)
        return [one for one in seen if one is not None]

    def newest_ms(self, places: list[Part]) -> int:
        return max((one.changed_ms for one in self.take(places)), default=NO_TIMESTAMP)

    def size_of(self, item: Seen) -> int:
        return item.size

    def record(self, item: Seen) -> Record | None:
        """Return the record. None also for names that Kafka's format has no room for."""
        try:
            key = group_records.key(item.part)
            value = None if item.value is None else item.value()
        except (struct.error, EncodeError):
            return None
        return Record(key, value, timestamp=item.changed_ms)

    def _seen(self, part: Part) -> Seen | None:
        """Return the part's present contents; None if there is no record for it now."""
        machine = self._machine
        if part.kind is PartKind.POSITION:
            position = machine.offsets.get(part.group_id, part.name, part.partition)
            if position is None:
                return _gone(part)
            value = partial(group_records.position_value, position)
            return _there(part, position.committed_ms, len(position.metadata), value)
        if part.kind is PartKind.CLASSIC_GROUP:
            classic = machine.groups.groups.get(part.group_id)
            return _gone(part) if classic is None else _seen_classic(part, classic)
        group = machine.consumer.groups.get(part.group_id)
        return _gone(part) if group is None else _seen_modern(part, group)


def _there(part: Part, changed_ms: int, size: int, value: Callable[[], bytes]) -> Seen:
    return Seen(part, changed_ms, 60 + len(part.group_id) + len(part.name) + size, value)


def _gone(part: Part) -> Seen:
    return Seen(part, NO_TIMESTAMP, 20 + len(part.group_id) + len(part.name), None)


def _parts_of(group: ModernGroup) -> Iterator[Part]:
    group_id = group.group_id
    yield Part(PartKind.GROUP, group_id)
    yield from (Part(PartKind.MEMBER, group_id, member_id) for member_id in group.members)
    yield from (Part(PartKind.PATTERN, group_id, pattern) for pattern in group.patterns)
    yield Part(PartKind.TARGET_EPOCH, group_id)
    yield from (Part(PartKind.TARGET, group_id, member_id) for member_id in group.targets)
    yield from (Part(PartKind.ASSIGNMENT, group_id, member_id) for member_id in group.members)


def _seen_classic(part: Part, group: ConsumerGroup) -> Seen | None:
    if not group.protocol_type or group.state not in (GroupState.STABLE, GroupState.EMPTY):
        return None
    return _there(part, group.changed_ms, group.bytes, group_records.classic_value(group))


def _seen_modern(part: Part, group: ModernGroup) -> Seen:
    value: Callable[[], bytes] | None = None
    size = 0
    member = group.members.get(part.name)
    match part.kind:
        case PartKind.GROUP:
            value = partial(group_records.group_value, group.epoch)
        case PartKind.TARGET_EPOCH:
            value = partial(group_records.target_epoch_value, group.assignment_epoch)
        case PartKind.TARGET if (target := group.targets.get(part.name)) is not None:
            size = stored_bytes(target)
            value = partial(group_records.target_value, target)
        case PartKind.MEMBER if member is not None:
            size = member.bytes
            value = partial(group_records.member_value, member)
        case PartKind.ASSIGNMENT if member is not None:
            size = stored_bytes(member.assigned) + stored_bytes(member.revoking)
            value = partial(group_records.assignment_value, member)
        case PartKind.PATTERN if (topics := group.patterns.get(part.name)) is not None:
            size = sum(map(len, topics))
            value = partial(group_records.pattern_value, topics, group.changed_ms)
    return _gone(part) if value is None else _there(part, group.changed_ms, size, value)
