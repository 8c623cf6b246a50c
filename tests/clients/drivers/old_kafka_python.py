"""Driver of kafka-python 2.0, which still supports the protocols of old brokers.

It runs in an environment of its own (`tests.clients.clients`). The first argument is the version of
Kafka whose protocol it is to use, such as 0.9.
"""

from __future__ import annotations

import sys

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.clients.drivers.command_loop import Fields, read_record, run, unhex

CALL_SECONDS_MAX = 20


class OldKafkaPython:
    """Features of a client of that time: no headers, no idempotence, no administration."""

    def __init__(self, api_version: str, bootstrap: str) -> None:
        self._settings = {
            "bootstrap_servers": bootstrap.split(","),
            "api_version": tuple(map(int, api_version.split("."))),
        }
        self._consumer: KafkaConsumer | None = None

    def hello(self) -> Fields:
        return {"client": "kafka-python", "version": kafka.__version__}

    def produce(
        self, *, compression: str, idempotent: bool, batch_bytes: int, records: list[Fields]
    ) -> Fields:
        assert not idempotent
        producer = KafkaProducer(
            **self._settings,
            acks=-1,
            compression_type=None if compression == "none" else compression,
            batch_size=batch_bytes,
            linger_ms=5,
        )
        try:
            futures = [
                producer.send(
                    fields["topic"],
                    value=unhex(fields["value"]),
                    key=unhex(fields["key"]),
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
            **self._settings,
            group_id=group,
            auto_offset_reset=reset,
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

    def assign(self, *, partitions: list[tuple[str, int]]) -> None:
        self.consumer.assign(_topic_partitions(partitions))

    def poll(self, *, timeout_ms: int) -> Fields:
        polled = self.consumer.poll(timeout_ms=timeout_ms)
        records = [
            read_record(
                record.topic,
                record.partition,
                record.offset,
                key=record.key,
                value=record.value,
                timestamp=-1 if record.timestamp is None else record.timestamp,
                headers=record.headers,
            )
            for batch in polled.values()
            for record in batch
        ]
        owned = [[where.topic, where.partition] for where in self.consumer.assignment() or ()]
        return {"records": records, "owned": owned}

    def seek(self, *, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition), offset)

    def commit(self) -> None:
        self.consumer.commit()

    def committed(self, *, partitions: list[tuple[str, int]]) -> Fields:
        return {
            "offsets": [self.consumer.committed(where) for where in _topic_partitions(partitions)]
        }

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def _topic_partitions(partitions: list[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]


if __name__ == "__main__":
    run(OldKafkaPython(*sys.argv[1:]))
