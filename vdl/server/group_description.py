"""A consumer group as its coordinator knows it, for `vdl explain`.

Bounded in members, offsets and decoded bytes, because it is built in one turn of the loop. Does not
depend on how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from rpc.admin import MEMBERS_MAX, OFFSETS_MAX, CommittedOffset, ConsumerGroup, GroupMember
from vdl.clock import MS
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.state.consumer_group import ConsumerGroup as ClassicGroup
from vdl.state.consumer_group import GroupState
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.partitions import Partitions, places_of
from vdl.state.subscription import read_assignment

PARTITIONS_MAX: Final = 50
"""Partitions of a member that are named."""
ASSIGNMENT_BYTES_MAX: Final = 64 << 10
"""Bytes of assignments that are decoded; the partitions of further members are left out."""
_STATES: Final = {
    GroupState.EMPTY: "Empty",
    GroupState.PREPARING_REBALANCE: "PreparingRebalance",
    GroupState.COMPLETING_REBALANCE: "CompletingRebalance",
    GroupState.STABLE: "Stable",
}


def describe_group(led: LedCoordinator, name: str, topic: str) -> ConsumerGroup | None:
    """Return the group, with its offsets in one topic, or in all if that is empty. None if there is
    no such group."""
    classic, modern = led.machine.group(name), led.machine.consumer.groups.get(name)
    if modern is not None:
        found = _modern(led, modern)
    elif classic is not None:
        found = _classic(led, classic)
    else:
        return None
    places = led.machine.offsets.of(name).items()
    chosen = (item for item in islice(places, 10 * OFFSETS_MAX) if topic in ("", item[0][0]))
    found.offsets_count = len(places)
    found.offsets = [
        CommittedOffset(*place, one.offset, one.committed_ms)
        for place, one in islice(chosen, OFFSETS_MAX)
    ]
    return found


def _classic(led: LedCoordinator, group: ClassicGroup) -> ConsumerGroup:
    found = ConsumerGroup(
        group.group_id, "classic", _STATES[group.state], group.generation, group.changed_ms,
        members_count=len(group.members),
    )  # fmt: skip
    synced = led.classic.synced_of(group.group_id)
    budget = ASSIGNMENT_BYTES_MAX
    for member in islice(group.members.values(), MEMBERS_MAX):
        budget -= len(member.assignment)
        read = read_assignment(member.assignment) if budget >= 0 else None
        places = ((topic, index) for topic, indexes in read or () for index in indexes)
        silent_ns = led.classic.silence_ns(group.group_id, member.member_id)
        awaited = (
            (group.state is GroupState.PREPARING_REBALANCE and not member.joined)
            or (group.state is GroupState.COMPLETING_REBALANCE and member.member_id not in synced)
        )  # fmt: skip
        found.members.append(
            GroupMember(
                member.member_id, member.client_id, member.client_host.removeprefix("/"),
                member.group_instance_id or "",
                -1 if silent_ns is None else silent_ns // MS,
                member.session_timeout_ms, awaited, _named(places),
            )
        )  # fmt: skip
    return found


def _modern(led: LedCoordinator, group: ModernGroup) -> ConsumerGroup:
    found = ConsumerGroup(
        group.group_id, "consumer", group.state.value, group.epoch,
        members_count=len(group.members),
    )  # fmt: skip
    for member in islice(group.members.values(), MEMBERS_MAX):
        silent_ns = led.consumer.silence_ns(group.group_id, member.member_id)
        found.members.append(
            GroupMember(
                member.member_id, member.client_id, member.client_host.removeprefix("/"),
                member.instance_id or "",
                -1 if silent_ns is None else silent_ns // MS,
                led.consumer.session_ms(group.group_id),
                not member.is_reconciled(group.assignment_epoch),
                _named(_of_partitions(group, member.assigned)),
            )
        )  # fmt: skip
    return found


def _of_partitions(group: ModernGroup, assigned: Partitions) -> Iterable[tuple[str, int]]:
    names = {topic.topic_id: name for name, topic in group.topics.items()}
    return ((names.get(topic_id, ""), partition) for topic_id, partition in places_of(assigned))


def _named(places: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{topic}-{partition}" for topic, partition in islice(places, PARTITIONS_MAX)]
