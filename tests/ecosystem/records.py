"""Topics of the tests: writing and reading them with librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

TIMEOUT_SECONDS = 60.0
BATCH_MAX, BATCH_SECONDS = 10_000, 0.3
COUNT_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """Fields of a record that its copy must share. `partition` and `timestamp_ms` -1: any."""

    key: bytes | None
    value: bytes | None
    partition: int = -1
    timestamp_ms: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Topics:
    """Topics of one cluster."""

    def __init__(self, bootstrap: str, *, replication: int) -> None:
        self.bootstrap = bootstrap
        self.replication = replication
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, *names: str, partitions: int = 4) -> None:
        """Create topics, and wait until all of them have leaders."""
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=self.replication)
            for name in names
        ]
        for made in self._admin.create_topics(wanted, request_timeout=TIMEOUT_SECONDS).values():
            made.result()

    def names(self) -> set[str]:
        return set(self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics)

    def config(self, topic: str, name: str) -> str:
        """Return a setting of a topic."""
        asked = ConfigResource(ResourceType.TOPIC, topic)
        (answer,) = self._admin.describe_configs([asked]).values()
        return str(answer.result(TIMEOUT_SECONDS)[name].value)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return partition -> committed offset of a group, for partitions that have one."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            found = consumer.committed(self._partitions(topic), timeout=TIMEOUT_SECONDS)
        finally:
            consumer.close()
        return {
            partition.partition: partition.offset for partition in found if partition.offset >= 0
        }

    def produce(self, topic: str, records: Iterable[Record]) -> None:
        """Append records and wait until all are acknowledged."""
        failures: list[KafkaError] = []
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )

        def delivered(error: KafkaError | None, message: object) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            fields: dict[str, Any] = {
                "key": record.key,
                "value": record.value,
                "headers": list(record.headers),
            }
            if record.partition >= 0:
                fields["partition"] = record.partition
            if record.timestamp_ms >= 0:
                fields["timestamp"] = record.timestamp_ms
            while True:
                try:
                    producer.produce(topic, on_delivery=delivered, **fields)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(TIMEOUT_SECONDS) == 0
        assert not failures, failures[0]

    def read(self, topic: str, *, committed: bool = False) -> list[Record]:
        """Return all records of a topic, in the order of each partition.

        `committed`: without those of open or aborted transactions.
        """
        consumer = _reader(
            self.bootstrap,
            topic,
            {
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            },
        )
        partitions = self._partitions(topic)
        consumer.assign(partitions)
        ended: set[int] = set()
        found: list[Record] = []
        try:
            while len(ended) < len(partitions):
                message = consumer.poll(TIMEOUT_SECONDS)
                assert message is not None, f"nothing for {TIMEOUT_SECONDS} s from {topic}"
                error = message.error()
                if error is None:
                    found.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
                else:
                    raise AssertionError(error)
        finally:
            consumer.close()
        return found

    def follow(self, topic: str) -> Followed:
        """Return a reader of the topic's present and future committed records. Use in a `with`."""
        return Followed(
            _reader(self.bootstrap, topic, {"isolation.level": "read_committed"}),
            self._partitions(topic),
        )

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition, or -1 if there is none at present."""
        known = self._admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
        return int(known.partitions[partition].leader)

    def has_open_transaction(self, topic: str) -> bool:
        """Return True if a record of an open transaction is in the topic."""
        # In this order: a transaction that ends in between counts as ended.
        high_watermarks = self._ends(topic, IsolationLevel.READ_UNCOMMITTED)
        stable = self._ends(topic, IsolationLevel.READ_COMMITTED)
        return any(stable[number] < end for number, end in high_watermarks.items())

    def _ends(self, topic: str, isolation: IsolationLevel) -> dict[int, int]:
        """Return partition -> end offset for readers of this isolation level."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = dict.fromkeys(self._partitions(topic), latest)
        answers = self._admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=TIMEOUT_SECONDS
        )
        return {
            partition.partition: answer.result(TIMEOUT_SECONDS).offset
            for partition, answer in answers.items()
        }

    def _partitions(self, topic: str) -> list[TopicPartition]:
        known = self._admin.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions
        assert known, f"{topic} is not there"
        return [TopicPartition(topic, number, OFFSET_BEGINNING) for number in sorted(known)]


class Followed:
    """Committed records of a topic as they arrive; each is read once."""

    def __init__(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.records: list[Record] = []
        """Records so far, in the order of each partition."""
        self._consumer = consumer
        consumer.assign(list(partitions))

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *exc: object) -> None:
        self._consumer.close()

    def count(self) -> int:
        """Return the current number of records, or for a growing topic that after a time limit."""
        deadline = time.monotonic() + COUNT_SECONDS_MAX
        while found := self._consumer.consume(BATCH_MAX, timeout=BATCH_SECONDS):
            self.records += [_record(one) for one in found if one.error() is None]
            if time.monotonic() > deadline:
                break
        return len(self.records)


def last_values(records: Sequence[Record]) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key."""
    return {record.key: record.value for record in records}


def _reader(bootstrap: str, topic: str, settings: dict[str, Any]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"read-{topic}",
            "enable.auto.commit": False,
            **settings,
        }
    )


def _record(message: Any) -> Record:
    _kind, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    return Record(message.key(), message.value(), message.partition(), timestamp_ms, headers)
