"""Member of a KIP-848 group that behaves as Kafka's consumers do."""

from __future__ import annotations

from typing import Any

from tests.unit.kafka_groups.client import GROUP
from tests.unit.kafka_groups.cluster import Call, Cluster
from vdl.errors import ErrorCode
from vdl.kafka.wire import consumer_group_heartbeat as wire
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.partitions import Place

CONSUMER_HEARTBEAT = 68


def heartbeat(
    cluster: Cluster,
    member_id: str,
    epoch: int,
    *,
    version: int = 1,
    server: int = 1,
    user: str = "",
    **fields: Any,
) -> Call:
    """Send one request; fields that are not given are None."""
    request = wire.ConsumerGroupHeartbeatRequest(
        group_id=fields.pop("group_id", GROUP), member_id=member_id, member_epoch=epoch, **fields
    )
    return cluster.call(CONSUMER_HEARTBEAT, version, request, server=server, user=user)


class Consumer:
    """One member: the assignment it received, and the partitions it therefore reads."""

    def __init__(self, cluster: Cluster, member_id: str, *topics: str, **fields: Any) -> None:
        self.cluster = cluster
        self.member_id = member_id
        self.topics = list(topics)
        self.fields = fields
        """Further fields of a full request."""
        self.server = fields.pop("server", 1)
        self.user = fields.pop("user", "")
        self.epoch = 0
        self.owned: set[Place] = set()
        self.error = ErrorCode.NONE
        self.call: Call | None = None

    def full(self, epoch: int | None = None) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": self.said(),
        } | self.fields
        if "subscribed_topic_regex" not in fields:
            fields["subscribed_topic_names"] = self.topics
        return fields

    def said(self) -> list[wire.TopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(index)
        return [wire.TopicPartitions(*one) for one in by_topic.items()]

    def send(self, **fields: Any) -> Call:
        """Send a heartbeat, which may not be answered yet."""
        fields.setdefault("server", self.server)
        fields.setdefault("user", self.user)
        self.call = heartbeat(self.cluster, self.member_id, self.epoch, **fields)
        return self.call

    def join(self) -> None:
        """Send a full request with epoch 0, answered within a second or so."""
        self.epoch = 0
        self.owned = set()
        self.send(**self.full())
        if self.call is not None and not self.call.done:
            self.cluster.advance(1_100)
        self.take()

    def beat(self) -> None:
        """Send a heartbeat with the owned partitions, and another one after revoking some."""
        for _ in range(2):
            before = set(self.owned)
            self.send(topic_partitions=self.said())
            self.take()
            if not before - self.owned:
                return

    def take(self) -> None:
        """Act on the response."""
        assert self.call is not None
        response = self.call.response
        self.error = ErrorCode(response.error_code)
        if self.error is not ErrorCode.NONE:
            return
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = {
                (topic.topic_id, index)
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            }

    def leave(self, epoch: int = -1, **fields: Any) -> ErrorCode:
        return ErrorCode(self.send_leave(epoch, **fields).response.error_code)

    def send_leave(self, epoch: int = -1, **fields: Any) -> Call:
        """Send a leave request, which may not be answered yet."""
        fields.setdefault("instance_id", self.fields.get("instance_id"))
        return heartbeat(self.cluster, self.member_id, epoch, server=self.server, **fields)


def group_of(cluster: Cluster, group_id: str = GROUP) -> ModernGroup:
    """Return the group as applied at the coordinator's leader."""
    return cluster.machine(group_id).consumer.groups[group_id]


def settle(cluster: Cluster, *consumers: Consumer, rounds: int = 6) -> None:
    """Send heartbeats of all consumers until nothing changes."""
    for _ in range(rounds):
        cluster.advance(1_100)
        for consumer in consumers:
            consumer.beat()
    assert group_of(cluster, GROUP).state.value == "Stable"


def indexes(consumer: Consumer) -> list[int]:
    """Return the indexes of the partitions it reads, of all topics."""
    return sorted(index for _, index in consumer.owned)
