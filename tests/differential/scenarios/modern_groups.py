"""Groups of the newer protocol (KIP-848) and share groups (KIP-932): valid and invalid requests."""

from __future__ import annotations

import itertools
from typing import Any

from tests.differential.batches import batch
from tests.differential.side import Side
from vdl.kafka.wire.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from vdl.kafka.wire.consumer_group_describe import ConsumerGroupDescribeRequest
from vdl.kafka.wire.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from vdl.kafka.wire.delete_groups import DeleteGroupsRequest
from vdl.kafka.wire.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from vdl.kafka.wire.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from vdl.kafka.wire.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from vdl.kafka.wire.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from vdl.kafka.wire.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from vdl.kafka.wire.share_group_describe import ShareGroupDescribeRequest
from vdl.kafka.wire.share_group_heartbeat import ShareGroupHeartbeatRequest

MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER = "AAAAAAAAAAAAAAAAAAAAAg"
REBALANCE_MS = 60_000
LEAVE, LEAVE_FOR_A_WHILE = -1, -2
GROUP = 32
"""Resource type of groups."""


def _heartbeat(group: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    fields = {"member_id": MEMBER, "member_epoch": 0} | fields
    return ConsumerGroupHeartbeatRequest(group_id=group, **fields)


def _join(group: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    fields = {
        "rebalance_timeout_ms": REBALANCE_MS,
        "subscribed_topic_names": list(topics),
        "topic_partitions": [],
    } | fields
    return _heartbeat(group, **fields)


def _until_known(side: Side, topic: str, at: int) -> None:
    """Wait until a server's coordinators know the topic.

    A member of a separate group gets it assigned. Kafka does not assign twice within a second, so
    that group is not compared.
    """
    names = (f"{side.prefix}.first{number}" for number in itertools.count())
    group = next(name for name in names if side.coordinator(name) == at)
    version = side.versions(68)[-1]
    joined = side.quiet(_join(group, topic), version=version, to=at)

    def is_assigned() -> bool:
        nonlocal joined
        if joined.assignment is not None and joined.assignment.topic_partitions:
            return True
        goes_on = _heartbeat(group, member_epoch=joined.member_epoch)
        joined = side.quiet(goes_on, version=version, to=at)
        return False

    side.settle(is_assigned, f"a member of {group} has {topic}")
    side.quiet(_heartbeat(group, member_epoch=LEAVE), version=version, to=at)


def heartbeat_refused(side: Side) -> None:
    """Send heartbeats that every group refuses."""
    topic = side.topic("read")
    group = f"{side.prefix}.g"
    at = side.coordinator(group)

    def ask(label: str, request: ConsumerGroupHeartbeatRequest, to: int = at) -> None:
        side.each(label, request, to=to)

    ask("no group", _join("", topic))
    ask("not the coordinator", _join(group, topic), to=at % 3 + 1)
    ask("no topics", _join(group, subscribed_topic_names=None))
    ask("no time", _join(group, topic, rebalance_timeout_ms=-1))
    ask("owns something", _join(group, topic, topic_partitions=[TopicPartitions(bytes(16), [0])]))
    ask("owns nobody knows what", _join(group, topic, topic_partitions=None))
    ask("an empty instance", _join(group, topic, instance_id=""))
    ask("an empty rack", _join(group, topic, rack_id=""))
    ask("unknown assignor", _join(group, topic, server_assignor="luck"))
    ask("empty assignor", _join(group, topic, server_assignor=""))
    ask("a broken pattern", _join(group, subscribed_topic_regex="("))
    ask("a stranger", _heartbeat(group, member_epoch=3))
    ask("a stranger leaves", _heartbeat(group, member_epoch=LEAVE))
    ask("a stranger leaves for a while", _heartbeat(group, member_epoch=LEAVE_FOR_A_WHILE))
    ask("an epoch below all", _heartbeat(group, member_epoch=-3))
    version = side.versions(68)[-1]
    side.ask("no member id", _join(group, topic, member_id=""), version=version, to=at)


def one_member(side: Side) -> None:
    """A member joins, repeats its request, is fenced, leaves; its group is described in between."""
    topic = side.topic("read", 2)
    topic_id = side.topic_id(topic)
    group = f"{side.prefix}.g"
    at = side.coordinator(group)
    version = side.versions(68)[-1]

    def ask(label: str, request: ConsumerGroupHeartbeatRequest) -> Any:
        return side.ask(label, request, version=version, to=at)

    def describe(label: str, *groups: str, to: int = at) -> None:
        side.each(f"describe: {label}", ConsumerGroupDescribeRequest(list(groups)), to=to)

    _until_known(side, topic, at)
    joined = ask("joins", _join(group, topic))
    ask("joins again", _join(group, topic))
    describe("one member", group)
    epoch = joined.member_epoch if joined is not None else 1
    owned = [TopicPartitions(topic_id, [0, 1])]
    ask("goes on", _heartbeat(group, member_epoch=epoch))
    ask("owns it all", _heartbeat(group, member_epoch=epoch, topic_partitions=owned))
    ask("an epoch to come", _heartbeat(group, member_epoch=epoch + 5))
    ask("another member", _heartbeat(group, member_id=OTHER, member_epoch=epoch))
    describe("twice", group, group)
    side.each("delete: not empty", DeleteGroupsRequest([group]), to=at)
    ask("leaves", _heartbeat(group, member_epoch=LEAVE))
    ask("leaves again", _heartbeat(group, member_epoch=LEAVE))
    describe("empty", group)
    unknown = f"{side.prefix}.none"
    describe("unknown", unknown, to=side.coordinator(unknown))
    describe("no name", "")
    describe("nothing")


def static_member(side: Side) -> None:
    topic = side.topic("read", 2)
    group = f"{side.prefix}.g"
    at = side.coordinator(group)
    version = side.versions(68)[-1]

    def ask(label: str, request: ConsumerGroupHeartbeatRequest) -> None:
        side.ask(label, request, version=version, to=at)

    _until_known(side, topic, at)
    ask("joins", _join(group, topic, instance_id="i"))
    ask("the place is taken", _join(group, topic, member_id=OTHER, instance_id="i"))
    ask(
        "another instance goes on",
        _heartbeat(group, member_id=OTHER, member_epoch=1, instance_id="i"),
    )
    ask(
        "leaves for a while",
        _heartbeat(group, member_epoch=LEAVE_FOR_A_WHILE, instance_id="i"),
    )
    ask("comes back", _join(group, topic, member_id=OTHER, instance_id="i"))
    side.each("describe", ConsumerGroupDescribeRequest([group]), to=at)
    ask("leaves", _heartbeat(group, member_id=OTHER, member_epoch=LEAVE, instance_id="i"))


def share_heartbeat(side: Side) -> None:
    topic = side.topic("shared", 2)
    group = f"{side.prefix}.s"
    at = side.coordinator(group)
    if not side.versions(76):
        return
    version = side.versions(76)[-1]

    def ask(label: str, to: int = at, **fields: Any) -> Any:
        fields = {"group_id": group, "member_id": MEMBER, "member_epoch": 0} | fields
        return side.ask(label, ShareGroupHeartbeatRequest(**fields), version=version, to=to)

    names = [topic]
    ask("no group", group_id="", subscribed_topic_names=names)
    ask("no member id", member_id="", subscribed_topic_names=names)
    ask("no topics")
    ask("an empty rack", rack_id="", subscribed_topic_names=names)
    ask("not the coordinator", to=at % 3 + 1, subscribed_topic_names=names)
    ask("a stranger", member_epoch=3)
    ask("a stranger leaves", member_epoch=LEAVE)
    ask("an epoch below all", member_epoch=-2)

    def describe(label: str, *groups: str) -> None:
        side.each(f"describe: {label}", ShareGroupDescribeRequest(list(groups)), to=at)

    describe("unknown", group)
    describe("no name", "")
    joined = ask("joins", subscribed_topic_names=names)
    epoch = joined.member_epoch if joined is not None else 1
    ask("goes on", member_epoch=epoch)
    ask("an epoch to come", member_epoch=epoch + 5)
    describe("one member", group)
    ask("leaves", member_epoch=LEAVE)
    describe("empty", group)


def share_offsets(side: Side) -> None:
    topic = side.topic("shared", 2)
    side.produce(topic, batch([b"a", b"b"]))
    group = f"{side.prefix}.s"
    at = side.coordinator(group)
    if not side.versions(90):
        return

    def describe(label: str, name: str, *rows: tuple[str, list[int]], to: int = at) -> None:
        topics = [DescribeShareGroupOffsetsRequestTopic(*row) for row in rows]
        asked = DescribeShareGroupOffsetsRequestGroup(name, topics)
        side.each(f"describe: {label}", DescribeShareGroupOffsetsRequest([asked]), to=to)

    def alter(label: str, name: str, *rows: tuple[str, int, int], to: int = at) -> None:
        topics = [
            AlterShareGroupOffsetsRequestTopic(
                found, [AlterShareGroupOffsetsRequestPartition(index, offset)]
            )
            for found, index, offset in rows
        ]
        side.each(f"alter: {label}", AlterShareGroupOffsetsRequest(name, topics), to=to)

    def delete(label: str, name: str, *topics: str, to: int = at) -> None:
        asked = [DeleteShareGroupOffsetsRequestTopic(found) for found in topics]
        side.each(f"delete: {label}", DeleteShareGroupOffsetsRequest(name, asked), to=to)

    unknown = f"{side.prefix}.none"
    describe("unknown group", group, (topic, [0]))
    describe("no name", "", (topic, [0]))
    describe("not the coordinator", group, (topic, [0]), to=at % 3 + 1)
    alter("unknown group", group, (topic, 0, 1))
    alter("no name", "", (topic, 0, 1))
    alter("not the coordinator", group, (topic, 0, 1), to=at % 3 + 1)
    delete("unknown group", group, topic)
    delete("no name", "", topic)
    delete("not the coordinator", group, topic, to=at % 3 + 1)
    version = side.versions(76)[-1]
    for epoch in (0, LEAVE):
        names = [topic] if epoch == 0 else None
        side.quiet(
            ShareGroupHeartbeatRequest(group, MEMBER, epoch, None, names), version=version, to=at
        )
    describe("unknown topic", group, (unknown, [0]))
    describe("partition that is not there", group, (topic, [9]))
    describe("nothing", group)
    alter("unknown topic", group, (unknown, 0, 1))
    alter("partition that is not there", group, (topic, 9, 1))
    alter("good", group, (topic, 0, 1))

    def is_lag_known() -> bool:
        row = DescribeShareGroupOffsetsRequestTopic(topic, [0])
        asked = DescribeShareGroupOffsetsRequestGroup(group, [row])
        answer = side.quiet(DescribeShareGroupOffsetsRequest([asked]), to=at)
        return bool(answer.groups[0].topics[0].partitions[0].lag == 1)

    side.settle(is_lag_known, "the coordinator knows where the topic ends")
    describe("altered", group, (topic, [0]))
    delete("unknown topic", group, unknown)
    delete("good", group, topic)


def share_sessions(side: Side) -> None:
    """Send fetches and acknowledgements without a member, and in sessions that do not exist."""
    topic = side.topic("shared")
    topic_id, leader = side.topic_id(topic), side.leader(topic)
    group = f"{side.prefix}.s"
    if not side.versions(78):
        return
    version = side.versions(78)[-1]
    row = FetchTopic(topic_id, [FetchPartition(0)])

    def fetch(label: str, to: int = leader, **fields: Any) -> None:
        fields = {"group_id": group, "member_id": MEMBER, "topics": [row]} | fields
        request = ShareFetchRequest(**fields, max_bytes=1 << 20, max_records=10, batch_size=10)
        side.ask(f"fetch: {label}", request, version=version, to=to)

    fetch("no group", group_id=None)
    fetch("an empty group", group_id="")
    fetch("no member", member_id="")
    fetch("no member id that could be", member_id="x")
    fetch("no such session", share_session_epoch=3)
    fetch("closes no session", share_session_epoch=LEAVE, topics=[])

    def acknowledge(label: str, **fields: Any) -> None:
        fields = {"group_id": group, "member_id": MEMBER, "share_session_epoch": 1} | fields
        part = AcknowledgeTopic(topic_id, [AcknowledgePartition(0, [])])
        request = ShareAcknowledgeRequest(**fields, topics=[part])
        side.ask(f"acknowledge: {label}", request, version=version, to=leader)

    acknowledge("no group", group_id=None)
    acknowledge("no such session")
    acknowledge("the beginning of one", share_session_epoch=0)
    acknowledge("closes no session", share_session_epoch=LEAVE)


def share_session_closed(side: Side) -> None:
    """The acknowledgements in a session's last request are answered row by row."""
    if not side.versions(78):
        return
    topic = side.topic("shared")
    side.produce(topic, batch([b"a", b"b", b"c"]))
    for label, last in (("what it has", 2), ("what it has and what it has not", 9)):
        group = f"{side.prefix}.c{last}"
        _open_share_session(side, group, topic)
        one = AcknowledgementBatch(0, last, [1])
        part = AcknowledgeTopic(side.topic_id(topic), [AcknowledgePartition(0, [one])])
        request = ShareAcknowledgeRequest(group, MEMBER, LEAVE, topics=[part])
        version, leader = side.versions(79)[-1], side.leader(topic)
        side.ask(f"closes, of {label}", request, version=version, to=leader)
        side.ask(f"closes again, of {label}", request, version=version, to=leader)


def _open_share_session(side: Side, group: str, topic: str) -> None:
    """Wait until the group's member has records of the topic."""
    begins = AlterableConfig("share.auto.offset.reset", 0, "earliest")
    side.quiet(IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP, group, [begins])]))
    at, joined = side.coordinator(group), [0]

    def has_partition() -> bool:
        names = None if joined[0] else [topic]
        beat = ShareGroupHeartbeatRequest(group, MEMBER, joined[0], None, names)
        answer = side.quiet(beat, version=side.versions(76)[-1], to=at)
        joined[0] = max(joined[0], answer.member_epoch)
        return answer.assignment is not None and bool(answer.assignment.topic_partitions)

    side.settle(has_partition, "the member is given the partition")
    epochs = itertools.count()
    topics = [FetchTopic(side.topic_id(topic), [FetchPartition(0)])]

    def has_records() -> bool:
        epoch = next(epochs)
        request = ShareFetchRequest(
            group, MEMBER, epoch, max_wait_ms=200, min_bytes=1, max_bytes=1 << 20,
            max_records=10, batch_size=10, topics=[] if epoch else topics,
        )  # fmt: skip
        answer = side.quiet(request, version=side.versions(78)[-1], to=side.leader(topic))
        assert answer.error_code == 0, answer
        rows = [part for row in answer.responses for part in row.partitions]
        return any(row.acquired_records for row in rows)

    side.settle(has_records, "the member is given records")


SCENARIOS = (
    heartbeat_refused,
    one_member,
    static_member,
    share_heartbeat,
    share_offsets,
    share_sessions,
    share_session_closed,
)
