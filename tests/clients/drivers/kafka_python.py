"""Driver of kafka-python, which is written in Python throughout."""

from __future__ import annotations

import logging
import sys

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions
from kafka.errors import BrokerResponseError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from tests.clients.drivers import security
from tests.clients.drivers.command_loop import (
    Fields,
    NoOffset,
    headers_from,
    read_record,
    run,
    unhex,
)

CALL_SECONDS_MAX = 20
CONNECT_MS_MAX = 3_000


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap.split(",")
        self._consumer: KafkaConsumer | None = None
        self._producer: KafkaProducer | None = None

    def hello(self) -> Fields:
        return {"client": "kafka-python", "version": kafka.__version__}

    def connect(self) -> Fields:
        # Its only report of a failed connection is in its log: to standard error, the driver's log.
        logging.basicConfig(level=logging.WARNING)
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self._bootstrap,
                bootstrap_timeout_ms=CONNECT_MS_MAX,
                **security.kafka_python(),
            )
        except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
            causes = [repr(error)]
            while (cause := error.__cause__ or error.__context__) is not None:
                causes.append(repr(cause))
                error = cause
            return {"error": "; ".join(causes)}
        admin.close()
        return {"error": ""}

    def init_transactions(self, *, transactional_id: str) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=transactional_id,
            **security.kafka_python(),
        )
        self._producer.init_transactions()

    def transact(self, *, records: list[Fields], positions: bool, end: str) -> None:
        producer = self._producer
        assert producer is not None
        producer.begin_transaction()
        futures = [
            producer.send(
                fields["topic"],
                value=unhex(fields["value"]),
                key=unhex(fields["key"]),
                partition=fields["partition"],
            )
            for fields in records
        ]
        producer.flush(CALL_SECONDS_MAX)
        for future in futures:
            future.get(timeout=CALL_SECONDS_MAX)
        if positions:
            offsets = {
                where: OffsetAndMetadata(self.consumer.position(where), "", -1)
                for where in self.consumer.assignment()
            }
            producer.send_offsets_to_transaction(offsets, self.consumer.group_metadata())
        if end:
            self.end(commits=end == "commit")

    def end(self, *, commits: bool) -> None:
        assert self._producer is not None
        if commits:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()

    def produce(
        self, *, compression: str, idempotent: bool, batch_bytes: int, records: list[Fields]
    ) -> Fields:
        producer = KafkaProducer(
            **security.kafka_python(),
            bootstrap_servers=self._bootstrap,
            acks="all",
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            batch_size=batch_bytes,
            linger_ms=5,
            delivery_timeout_ms=CALL_SECONDS_MAX * 1000,
            request_timeout_ms=CALL_SECONDS_MAX * 500,
        )
        try:
            futures = [
                producer.send(
                    fields["topic"],
                    value=unhex(fields["value"]),
                    key=unhex(fields["key"]),
                    headers=headers_from(fields),
                    partition=fields["partition"],
                    timestamp_ms=fields["timestamp"],
                )
                for fields in records
            ]
            producer.flush(CALL_SECONDS_MAX)
            found = [future.get(timeout=CALL_SECONDS_MAX) for future in futures]
        finally:
            producer.close(timeout=CALL_SECONDS_MAX)
        return {"offsets": [[metadata.partition, metadata.offset] for metadata in found]}

    def open(
        self, *, group: str | None, reset: str, isolation: str, protocol: str = "classic"
    ) -> None:
        assert protocol == "classic", "it speaks no other"
        self.close()
        self._consumer = KafkaConsumer(
            **security.kafka_python(),
            bootstrap_servers=self._bootstrap,
            group_id=group,
            auto_offset_reset=reset,
            isolation_level=isolation,
            enable_auto_commit=False,
            metadata_max_age_ms=500,
            fetch_max_wait_ms=100,
            heartbeat_interval_ms=500,
        )

    @property
    def consumer(self) -> KafkaConsumer:
        assert self._consumer is not None
        return self._consumer

    def subscribe(self, *, topics: list[str]) -> None:
        self.consumer.subscribe(topics)

    def subscribe_pattern(self, *, pattern: str) -> None:
        self.consumer.subscribe(pattern=pattern)

    def assign(self, *, partitions: list[tuple[str, int]]) -> None:
        self.consumer.assign(_topic_partitions(partitions))

    def poll(self, *, timeout_ms: int) -> Fields:
        try:
            polled = self.consumer.poll(timeout_ms=timeout_ms)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError) as error:
            raise NoOffset(str(error)) from error
        records = [
            read_record(
                record.topic,
                record.partition,
                record.offset,
                key=record.key,
                value=record.value,
                timestamp=record.timestamp,
                headers=record.headers,
            )
            for batch in polled.values()
            for record in batch
        ]
        owned = [[where.topic, where.partition] for where in self.consumer.assignment() or ()]
        return {"records": records, "owned": owned}

    def pause(self, *, partitions: list[tuple[str, int]]) -> None:
        self.consumer.pause(*_topic_partitions(partitions))

    def resume(self, *, partitions: list[tuple[str, int]]) -> None:
        self.consumer.resume(*_topic_partitions(partitions))

    def seek(self, *, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition), offset)

    def commit(self) -> None:
        self.consumer.commit()

    def committed(self, *, partitions: list[tuple[str, int]]) -> Fields:
        return {
            "offsets": [self.consumer.committed(where) for where in _topic_partitions(partitions)]
        }

    def delete_offsets(self, *, group: str, partitions: list[tuple[str, int]]) -> Fields:
        admin = KafkaAdminClient(bootstrap_servers=self._bootstrap, **security.kafka_python())
        try:
            answers = admin.delete_group_offsets(group, _topic_partitions(partitions))
            errors = [answers[where].errno for where in _topic_partitions(partitions)]
        except BrokerResponseError as error:
            errors = [error.errno] * len(partitions)
        finally:
            admin.close()
        return {"errors": errors}

    def create_partitions(self, *, topic: str, count: int) -> Fields:
        admin = KafkaAdminClient(bootstrap_servers=self._bootstrap, **security.kafka_python())
        try:
            admin.create_partitions({topic: NewPartitions(count)})
        except BrokerResponseError as error:
            return {"error": error.errno}
        finally:
            admin.close()
        return {"error": 0}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _topic_partitions(partitions: list[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]


if __name__ == "__main__":
    run(KafkaPython(sys.argv[1]))
