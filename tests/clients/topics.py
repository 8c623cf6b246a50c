"""Topics for tests: created under unique names, deleted at the end."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

CALL_SECONDS_MAX = 20.0
CREATE_SECONDS_MAX = 15.0


class Topics:
    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._numbers = itertools.count(1)
        self._made: list[str] = []

    def unused_name(self, stem: str) -> str:
        """Return a name that starts with `stem` and that no topic has."""
        return f"{stem}-{os.getpid()}-{next(self._numbers)}"

    def create(self, stem: str, *, partitions: int = 1, **configs: str) -> str:
        """Create a topic; return its name once all its partitions have leaders."""
        name = self.unused_name(stem)
        self.create_named(name, partitions=partitions, **configs)
        return name

    def create_named(self, name: str, *, partitions: int = 1, **configs: str) -> None:
        self._made.append(name)
        topic = NewTopic(
            name,
            num_partitions=partitions,
            config={key.replace("_", "."): value for key, value in configs.items()},
        )
        self._admin.create_topics([topic])[name].result(timeout=CALL_SECONDS_MAX)
        deadline = time.monotonic() + CREATE_SECONDS_MAX
        while not self._has_leaders(name, partitions):
            assert time.monotonic() < deadline, f"{name} has partitions without leaders"
            time.sleep(0.05)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        found: Any = self._admin.list_topics(timeout=CALL_SECONDS_MAX).topics.get(name)
        if found is None or len(found.partitions) != partitions:
            return False
        return all(partition.leader >= 0 for partition in found.partitions.values())

    def partition_count(self, name: str) -> int:
        found: Any = self._admin.list_topics(name, timeout=CALL_SECONDS_MAX).topics[name]
        return len(found.partitions)

    def leader(self, name: str, partition: int = 0) -> int:
        """Return the id of the server that leads a partition; -1 when there is none."""
        found: Any = self._admin.list_topics(name, timeout=CALL_SECONDS_MAX).topics[name]
        leader: int = found.partitions[partition].leader
        return leader

    def address(self, server_id: int) -> tuple[str, int]:
        """Return the address of a server."""
        found: Any = self._admin.list_topics(timeout=CALL_SECONDS_MAX).brokers[server_id]
        return found.host, found.port

    def end_offset(self, name: str, partition: int = 0) -> int:
        """Return the next offset of a partition."""
        where = TopicPartition(name, partition)
        future = self._admin.list_offsets({where: OffsetSpec.latest()})[where]
        offset: int = future.result(timeout=CALL_SECONDS_MAX).offset
        return offset

    def delete_all(self) -> None:
        if not self._made:
            return
        for future in self._admin.delete_topics(self._made).values():
            try:
                future.result(timeout=CALL_SECONDS_MAX)
            except KafkaException as error:
                # A test may have deleted its topic itself.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        self._made.clear()
