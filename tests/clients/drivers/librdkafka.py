"""Driver of confluent-kafka, the Python binding of librdkafka.

With two arguments, the first is the version of an old broker that the client is to assume.
"""

from __future__ import annotations

import sys
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.clients.drivers import security
from tests.clients.drivers.command_loop import (
    Fields,
    NoOffset,
    headers_from,
    read_record,
    run,
    unhex,
)

RECORDS_PER_POLL = 500
CALL_SECONDS_MAX = 20.0
CONNECT_SECONDS_MAX = 3.0
RETRIED_BY_ITSELF = frozenset(
    [
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._TRANSPORT,
    ]
)
"""Errors that librdkafka reports and retries by itself."""
RESET_POLICIES = {"earliest": "earliest", "latest": "latest", "none": "error"}


class Librdkafka:
    def __init__(self, bootstrap: str, broker_version: str = "") -> None:
        self._bootstrap = bootstrap
        self._settings = security.librdkafka()
        if broker_version:
            self._settings |= {
                "api.version.request": False,
                "broker.version.fallback": broker_version,
            }
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None

    def hello(self) -> Fields:
        return {"client": "confluent-kafka", "version": confluent_kafka.version()}

    def connect(self) -> Fields:
        errors: list[str] = []
        admin = AdminClient(
            self._settings
            | {
                "bootstrap.servers": self._bootstrap,
                "error_cb": lambda error: errors.append(str(error)),
            }
        )
        try:
            admin.list_topics(timeout=CONNECT_SECONDS_MAX)
        except KafkaException as error:
            admin.poll(0)
            return {"error": "; ".join([*errors, str(error)])}
        return {"error": ""}

    def init_transactions(self, *, transactional_id: str) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": transactional_id}
        self._producer = Producer(self._settings | settings)
        self._producer.init_transactions(CALL_SECONDS_MAX)

    def transact(self, *, records: list[Fields], positions: bool, end: str) -> None:
        producer = self._producer
        assert producer is not None
        producer.begin_transaction()
        for fields in records:
            producer.produce(
                fields["topic"], unhex(fields["value"]), unhex(fields["key"]), fields["partition"]
            )
        producer.flush(CALL_SECONDS_MAX)
        if positions:
            consumer = self.consumer
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()),
                consumer.consumer_group_metadata(),
                CALL_SECONDS_MAX,
            )
        if end:
            self.end(commits=end == "commit")

    def end(self, *, commits: bool) -> None:
        assert self._producer is not None
        if commits:
            self._producer.commit_transaction(CALL_SECONDS_MAX)
        else:
            self._producer.abort_transaction(CALL_SECONDS_MAX)

    def produce(
        self, *, compression: str, idempotent: bool, batch_bytes: int, records: list[Fields]
    ) -> Fields:
        producer = Producer(
            self._settings
            | {
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "compression.type": compression,
                "enable.idempotence": idempotent,
                "batch.size": batch_bytes,
                "linger.ms": 5,
                "message.timeout.ms": int(CALL_SECONDS_MAX * 1000),
            }
        )
        offsets: list[tuple[int, int] | None] = [None] * len(records)
        errors: list[str] = []

        def acknowledged(index: int, error: KafkaError | None, message: Any) -> None:
            if error is not None:
                errors.append(str(error))
            else:
                offsets[index] = (message.partition(), message.offset())

        for index, fields in enumerate(records):
            producer.produce(
                fields["topic"],
                unhex(fields["value"]),
                unhex(fields["key"]),
                fields["partition"],
                timestamp=fields["timestamp"],
                headers=headers_from(fields),
                on_delivery=lambda error, message, index=index: acknowledged(index, error, message),
            )
        producer.flush(CALL_SECONDS_MAX)
        if errors or None in offsets:
            raise RuntimeError(f"{offsets.count(None)} not acknowledged: {errors[:1]}")
        return {"offsets": offsets}

    def open(
        self, *, group: str | None, reset: str, isolation: str, protocol: str = "classic"
    ) -> None:
        self.close()
        paced = {"heartbeat.interval.ms": 500} if protocol == "classic" else {}
        self._consumer = Consumer(
            self._settings
            | {
                "bootstrap.servers": self._bootstrap,
                # librdkafka requires a group id also for assigned partitions.
                "group.id": group or "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": RESET_POLICIES[reset],
                "isolation.level": isolation,
                "topic.metadata.refresh.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "group.protocol": protocol,
            }
            | paced
        )

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def subscribe(self, *, topics: list[str]) -> None:
        self.consumer.subscribe(topics)

    def subscribe_pattern(self, *, pattern: str) -> None:
        self.consumer.subscribe([pattern])

    def assign(self, *, partitions: list[tuple[str, int]]) -> None:
        self.consumer.assign(_topic_partitions(partitions))

    def poll(self, *, timeout_ms: int) -> Fields:
        messages = []
        first = self.consumer.poll(timeout_ms / 1000)
        if first is not None:
            messages = [first, *self.consumer.consume(RECORDS_PER_POLL, 0.01)]
        records = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise NoOffset(error.str())
                if error.code() in RETRIED_BY_ITSELF:
                    continue
                raise KafkaException(error)
            records.append(
                read_record(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    key=message.key(),
                    value=message.value(),
                    timestamp=message.timestamp()[1],
                    headers=message.headers() or [],
                )
            )
        owned = [[where.topic, where.partition] for where in self.consumer.assignment()]
        return {"records": records, "owned": owned}

    def pause(self, *, partitions: list[tuple[str, int]]) -> None:
        self.consumer.pause(_topic_partitions(partitions))

    def resume(self, *, partitions: list[tuple[str, int]]) -> None:
        self.consumer.resume(_topic_partitions(partitions))

    def seek(self, *, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition, offset))

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def committed(self, *, partitions: list[tuple[str, int]]) -> Fields:
        found = self.consumer.committed(_topic_partitions(partitions), CALL_SECONDS_MAX)
        return {"offsets": [None if where.offset < 0 else where.offset for where in found]}

    def delete_offsets(self, *, group: str, partitions: list[tuple[str, int]]) -> Fields:
        raise NotImplementedError("confluent-kafka does not offer DeleteConsumerGroupOffsets")

    def create_partitions(self, *, topic: str, count: int) -> Fields:
        admin = AdminClient(self._settings | {"bootstrap.servers": self._bootstrap})
        (growth,) = admin.create_partitions([NewPartitions(topic, count)]).values()
        try:
            growth.result(CALL_SECONDS_MAX)
        except KafkaException as error:
            return {"error": error.args[0].code()}
        return {"error": 0}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _topic_partitions(partitions: list[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]


if __name__ == "__main__":
    run(Librdkafka(sys.argv[-1], *sys.argv[1:-1]))
