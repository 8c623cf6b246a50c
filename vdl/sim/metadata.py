"""A client's metadata of a cluster: topics, partitions, leaders and their epochs.

Leader epochs make outdated answers recognisable (KIP-320): an answer with a lower epoch than the
known one is ignored, unless the topic has another id and so is another topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vdl.kafka.wire.metadata import MetadataResponse, MetadataResponseTopic
from vdl.kafka.wire.runtime import ZERO_UUID
from vdl.sim.subscription import TopicPartition


@dataclass(slots=True)
class PartitionInfo:
    """A partition's leader, -1 while there is none, and its epoch, -1 in old versions."""

    leader: int
    epoch: int


@dataclass(slots=True)
class TopicInfo:
    """A topic as last reported; `id` is zero in versions without topic ids."""

    name: str
    id: bytes = ZERO_UUID
    partitions: dict[int, PartitionInfo] = field(default_factory=dict)


class MetadataCache:
    """Newest known metadata of each topic."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self.names: dict[bytes, str] = {}
        """Topic id → name, of current topics."""
        self.missing: set[str] = set()
        """Requested topics that do not exist (any more)."""
        self.cluster_id = ""

    def update(self, response: MetadataResponse, *, whole: bool) -> bool:
        """Take in an answer, `whole` if it covers every topic.

        Return True if something has no leader.
        """
        incomplete = False
        self.cluster_id = response.cluster_id or self.cluster_id
        seen: set[str] = set()
        for topic in response.topics:
            name = topic.name or ""
            seen.add(name)
            if topic.error_code:
                self._remove(name)
                self.missing.add(name)
                incomplete = True
                continue
            self.missing.discard(name)
            incomplete |= self._update_topic(topic, name)
        if whole:
            for name in [name for name in self.topics if name not in seen]:
                self._remove(name)
        return incomplete or not response.brokers

    def _update_topic(self, topic: MetadataResponseTopic, name: str) -> bool:
        known = self.topics.get(name)
        if known is None or ZERO_UUID != topic.topic_id != known.id:
            self._remove(name)
            known = self.topics[name] = TopicInfo(name, topic.topic_id)
            if topic.topic_id != ZERO_UUID:
                self.names[topic.topic_id] = name
        incomplete = not topic.partitions
        for partition in topic.partitions:
            info = known.partitions.get(partition.partition_index)
            epoch = partition.leader_epoch
            if info is None or epoch < 0 or epoch >= info.epoch:
                leader = partition.leader_id if not partition.error_code else -1
                known.partitions[partition.partition_index] = PartitionInfo(leader, epoch)
                incomplete |= leader < 0
        return incomplete

    def _remove(self, name: str) -> None:
        known = self.topics.pop(name, None)
        if known is not None:
            self.names.pop(known.id, None)

    def leader(self, tp: TopicPartition) -> int:
        """Return the partition's leader, -1 if unknown."""
        info = self.partition(tp)
        return info.leader if info is not None else -1

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def topic_id(self, name: str) -> bytes:
        topic = self.topics.get(name)
        return topic.id if topic is not None else ZERO_UUID

    def partitions(self, name: str) -> list[TopicPartition]:
        """Return the topic's partitions in order; empty if unknown."""
        topic = self.topics.get(name)
        return [TopicPartition(name, p) for p in sorted(topic.partitions)] if topic else []
