"""New offsets for a group: the plan, and the change.

The targets are those of `kafka-consumer-groups --reset-offsets`. An offset out of range becomes the
nearest one in it; of a time behind the last record the offset is the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception
from vdl.commands.cluster.direct_requests import NotOffered, direct
from vdl.commands.output import fail
from vdl.commands.resources.group_facts import SHARE, Positions
from vdl.commands.resources.topic_facts import descriptions, earliest_and_latest, offsets
from vdl.errors import ERRORS_BY_CODE, ErrorCode
from vdl.kafka.wire.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)

if TYPE_CHECKING:
    from confluent_kafka.admin._metadata import TopicMetadata

    from vdl.commands.resources.topic_facts import Where

ALTER_SHARE_GROUP_OFFSETS = 91
_TOPIC = re.compile(r"([^:]+)(?::([0-9]+(?:,[0-9]+)*))?")


@dataclass(frozen=True, slots=True)
class Target:
    """Where offsets go; one of the fields is set. Times are ms since 1970."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None

    @property
    def count(self) -> int:
        """Number of fields that are set."""
        given = (self.offset, self.time_ms, self.shift)
        return self.earliest + self.latest + sum(one is not None for one in given)


@dataclass(frozen=True, slots=True)
class Move:
    """The offset of a partition now (None: it has none) and then."""

    topic: str
    partition: int
    offset: int | None
    new_offset: int

    def as_json(self) -> dict[str, Any]:
        """Return the object of docs/cli.md."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "new_offset": self.new_offset,
        }


def without_partition(held: Positions, topics: Mapping[str, TopicMetadata]) -> list[Where]:
    """Return what the group has offsets of although it is not among the topics: deleted, or hidden
    from this user. Kafka may keep the offsets of a deleted topic for a while."""
    return sorted(
        (name, partition)
        for name, partition in held.offsets
        if name not in topics or topics[name].error or partition not in topics[name].partitions
    )


def places(cluster: Cluster, topics: Sequence[str]) -> list[Where]:
    """Return the partitions of TOPIC and TOPIC:0,2 texts.

    Raises click.UsageError, click.ClickException.
    """
    found: set[Where] = set()
    wanted = [_TOPIC.fullmatch(text) for text in topics]
    if None in wanted:
        raise click.UsageError(f"{topics[wanted.index(None)]!r}: expected TOPIC or TOPIC:0,1")
    names = sorted({match[1] for match in wanted if match})
    known = {
        name: [one.id for one in topic.partitions]
        for name, topic in descriptions(cluster, names).items()
    }
    for match in wanted:
        assert match is not None
        name = match[1]
        chosen = [int(text) for text in match[2].split(",")] if match[2] else known[name]
        if missing := sorted(set(chosen) - set(known[name])):
            fail(f"{name} has no partition {missing[0]}")
        found |= {(name, one) for one in chosen}
    return sorted(found)


def plan(cluster: Cluster, wanted: Sequence[Where], held: Positions, target: Target) -> list[Move]:
    """Return the moves. Raises click.ClickException."""
    from confluent_kafka.admin import OffsetSpec

    starts, ends = earliest_and_latest(cluster, wanted)
    at_time = (
        {}
        if target.time_ms is None
        else offsets(cluster, wanted, OffsetSpec.for_timestamp(target.time_ms))
    )
    moves = []
    for place in wanted:
        start, end, now = starts[place], ends[place], held.offsets.get(place)
        name = f"{place[0]}-{place[1]}"
        if start is None or end is None:
            fail(f"{name}: its leader does not answer")
        new = start if target.earliest else end
        if target.offset is not None:
            new = target.offset
        elif target.shift is not None:
            if now is None:
                fail(f"{name}: there is no offset to shift")
            new = now + target.shift
        elif target.time_ms is not None:
            found = at_time[place]
            if found is None:
                fail(f"{name}: its leader does not answer")
            new = found if found >= 0 else end
        moves.append(Move(*place, now, min(max(new, start), end)))
    return moves


def execute(cluster: Cluster, group: str, kind: str, moves: Sequence[Move]) -> dict[str, str]:
    """Write the new offsets. Return what was refused: partition → reason."""
    if kind == SHARE:
        return _execute_share(cluster, group, moves)
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    places = [TopicPartition(one.topic, one.partition, one.new_offset) for one in moves]
    asked = [ConsumerGroupTopicPartitions(group, places)]
    futures = cluster.admin().alter_consumer_group_offsets(
        asked, request_timeout=cluster.timeout_seconds
    )
    try:
        answer = futures[group].result(cluster.result_seconds)
    except kafka_exception() as error:
        return {group: cluster.words(error)}
    return {
        f"{one.topic}-{one.partition}": f"{one.error.name()}: {one.error.str()}"
        for one in answer.topic_partitions
        if one.error
    }


def _execute_share(cluster: Cluster, group: str, moves: Sequence[Move]) -> dict[str, str]:
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for one in moves:
        partition = AlterShareGroupOffsetsRequestPartition(one.partition, one.new_offset)
        topics.setdefault(one.topic, []).append(partition)
    message = AlterShareGroupOffsetsRequest(
        group, [AlterShareGroupOffsetsRequestTopic(name, some) for name, some in topics.items()]
    )
    try:
        asked = direct(cluster)
        answer = asked.at(asked.coordinator(group), ALTER_SHARE_GROUP_OFFSETS, message)
    except NotOffered as error:
        return {group: str(error)}
    if answer.error_code:
        return {group: _words(answer)}
    return {
        f"{topic.topic_name}-{one.partition_index}": _words(one)
        for topic in answer.responses
        for one in topic.partitions
        if one.error_code
    }


def _words(answer: Any) -> str:
    error = ERRORS_BY_CODE.get(answer.error_code, ErrorCode.UNKNOWN_SERVER_ERROR)
    return f"{error.name}: {answer.error_message}" if answer.error_message else error.name
