"""Facts about groups of a cluster: classic, consumer (KIP-848) and share groups (KIP-932).

Types are "classic", "consumer", "share" and "streams"; "unknown" where the cluster is too old to
say. States are Kafka's words, such as "Stable" and "Empty". Does not depend on how they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception
from vdl.commands.cluster.direct_requests import NotOffered, direct
from vdl.commands.output import Steps, fail, progress
from vdl.kafka.wire.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from vdl.kafka.wire.list_groups import ListGroupsRequest
from vdl.kafka.wire.share_group_describe import ShareGroupDescribeRequest

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from vdl.commands.resources.topic_facts import Where

LIST_GROUPS, SHARE_GROUP_DESCRIBE, DESCRIBE_SHARE_GROUP_OFFSETS = 16, 77, 90
SHARE, UNKNOWN = "share", "unknown"
_NOT_OF_LIBRDKAFKA = (SHARE, "streams")
EMPTY, DEAD, STABLE = "Empty", "Dead", "Stable"
_GROUPS_AT_ONCE = 50
_STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": STABLE,
    "DEAD": DEAD,
    "EMPTY": EMPTY,
}


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group's name, type and state."""

    group: str
    type: str
    state: str


@dataclass(frozen=True, slots=True)
class Member:
    """A member, with the partitions that it has."""

    id: str
    instance: str | None
    client: str
    host: str
    partitions: tuple[Where, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the object of docs/cli.md."""
        return {
            "id": self.id,
            "instance": self.instance,
            "client": self.client,
            "host": self.host,
            "partitions": [{"topic": t, "partition": p} for t, p in self.partitions],
        }


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. `error` is the reason why there is no more than its name."""

    group: str
    type: str
    state: str
    coordinator: int | None = None
    assignor: str = ""
    members: tuple[Member, ...] = ()
    error: str | None = None

    @property
    def is_active(self) -> bool:
        """True if it has members, so that its offsets belong to them."""
        return bool(self.members) or self.state not in (EMPTY, DEAD)


@dataclass(frozen=True, slots=True)
class Positions:
    """Offsets of a group by partition: committed ones, or the start offsets of a share group.
    `lags` has those that the servers count themselves."""

    offsets: dict[Where, int] = field(default_factory=dict)
    lags: dict[Where, int] = field(default_factory=dict)


def list_groups(cluster: Cluster) -> list[GroupListing]:
    """Return all groups that the user may see, by name. Raises click.ClickException."""
    future = cluster.admin().list_consumer_groups(request_timeout=cluster.timeout_seconds)
    answer = cluster.result(future)
    if answer.errors:
        fail("; ".join(cluster.words(error) for error in answer.errors))
    found = {one.group_id: (one.type.name.lower(), _state(one.state)) for one in answer.valid}
    told = _told(cluster)
    for name, (kind, state) in found.items():
        # A server that has no types has classic groups.
        found[name] = told.get(name, (_or_classic(kind), state))
    # librdkafka lists groups of consumers alone.
    found |= {name: pair for name, pair in told.items() if pair[0] in _NOT_OF_LIBRDKAFKA}
    return [GroupListing(name, *pair) for name, pair in sorted(found.items())]


def _or_classic(kind: str) -> str:
    return "classic" if kind == UNKNOWN else kind


def _told(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return types and states in the servers' own words; nothing if they have none for types."""
    try:
        asked = direct(cluster)
    except NotOffered:
        return {}
    answers = asked.at_each(asked.addresses, LIST_GROUPS, ListGroupsRequest())
    return {
        one.group_id: (one.group_type.lower() or UNKNOWN, one.group_state)
        for answer in answers.values()
        if not isinstance(answer, NotOffered)
        for one in answer.groups
    }


def _state(state: Any) -> str:
    return _STATES.get(state.name, UNKNOWN)


def describe_groups(cluster: Cluster, listings: Iterable[GroupListing]) -> list[GroupDescription]:
    """Return descriptions, by name."""
    wanted = list(listings)
    with progress("describing", len(wanted), unit="groups") as steps:
        consumers = [one.group for one in wanted if one.type != SHARE]
        found = _describe_consumers(cluster, consumers, steps)
        for one in wanted:
            if one.type == SHARE:
                found.append(_describe_share(cluster, one))
                steps.advance()
    types = {one.group: one.type for one in wanted}
    return sorted(
        (
            one if one.error is None else GroupDescription(one.group, types[one.group], one.state,
                                                           error=one.error)
            for one in found
        ),
        key=lambda one: one.group,
    )  # fmt: skip


def is_left_out(cluster: Cluster, consumer: Consumer, group: str) -> bool:
    """Return True if a stable group (KIP-848) has no partition for a member."""
    own = consumer.memberid()
    (found,) = describe_groups(cluster, [GroupListing(group, "consumer", UNKNOWN)])
    return found.state == STABLE and any(
        member.id == own and not member.partitions for member in found.members
    )


def _describe_consumers(
    cluster: Cluster, names: Sequence[str], steps: Steps
) -> list[GroupDescription]:
    admin = cluster.admin()
    found = []
    for start in range(0, len(names), _GROUPS_AT_ONCE):
        some = list(names[start : start + _GROUPS_AT_ONCE])
        futures = admin.describe_consumer_groups(some, request_timeout=cluster.timeout_seconds)
        for name, future in futures.items():
            steps.advance()
            try:
                one = future.result(cluster.result_seconds)
            except kafka_exception() as error:
                found.append(GroupDescription(name, UNKNOWN, UNKNOWN, error=cluster.words(error)))
                continue
            members = tuple(
                Member(
                    member.member_id,
                    member.group_instance_id or None,
                    member.client_id,
                    member.host.removeprefix("/"),
                    _partitions(member.assignment),
                )
                for member in one.members
            )
            found.append(
                GroupDescription(
                    name,
                    _or_classic(one.type.name.lower()),
                    _state(one.state),
                    one.coordinator.id if one.coordinator else None,
                    one.partition_assignor or "",
                    members,
                )
            )
    return found


def _partitions(assignment: Any) -> tuple[Where, ...]:
    if assignment is None:
        return ()
    return tuple(sorted((one.topic, one.partition) for one in assignment.topic_partitions))


def _describe_share(cluster: Cluster, listing: GroupListing) -> GroupDescription:
    name = listing.group
    try:
        asked = direct(cluster)
        coordinator = asked.coordinator(name)
        message = ShareGroupDescribeRequest([name])
        (one,) = asked.at(coordinator, SHARE_GROUP_DESCRIBE, message).groups
    except NotOffered as error:
        return GroupDescription(name, SHARE, listing.state, error=str(error))
    if one.error_code:
        return GroupDescription(name, SHARE, listing.state, error=one.error_message or "refused")
    members = tuple(
        Member(
            member.member_id,
            None,
            member.client_id,
            member.client_host.removeprefix("/"),
            tuple(
                sorted(
                    (topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                )
            ),
        )
        for member in one.members
    )
    return GroupDescription(name, SHARE, one.group_state, coordinator, one.assignor_name, members)


def positions(cluster: Cluster, group: str, kind: str) -> Positions:
    """Return the offsets of a group. Raises click.ClickException."""
    if kind == SHARE:
        return _share_positions(cluster, group)
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    futures = cluster.admin().list_consumer_group_offsets(
        asked, request_timeout=cluster.timeout_seconds
    )
    answer = cluster.result(futures[group])
    found = {}
    for one in answer.topic_partitions:
        if one.error:
            fail(f"{group}: {one.topic}-{one.partition}: {one.error.str()}")
        if one.offset >= 0:
            found[one.topic, one.partition] = one.offset
    return Positions(found)


def _share_positions(cluster: Cluster, group: str) -> Positions:
    message = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, None)])
    try:
        asked = direct(cluster)
        server = asked.coordinator(group)
        (answer,) = asked.at(server, DESCRIBE_SHARE_GROUP_OFFSETS, message).groups
    except NotOffered as error:
        fail(f"{group}: {error}")
    if answer.error_code:
        fail(f"{group}: {answer.error_message}")
    found = Positions()
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                fail(f"{group}: {topic.topic_name}-{one.partition_index}: {one.error_message}")
            if one.start_offset >= 0:
                found.offsets[topic.topic_name, one.partition_index] = one.start_offset
            if one.lag >= 0:
                found.lags[topic.topic_name, one.partition_index] = one.lag
    return found
