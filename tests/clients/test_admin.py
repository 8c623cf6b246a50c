"""Administration with an unmodified client: settings, and deletion of records."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.topics import Topics

SECONDS = 20.0


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def earliest(admin: AdminClient, partition: TopicPartition) -> int:
    found = admin.list_offsets({partition: OffsetSpec.earliest()})
    offset: int = found[partition].result(SECONDS).offset
    return offset


def test_deleted_records_are_gone_for_every_client(
    admin: AdminClient, bootstrap: str, topics: Topics
) -> None:
    """A consumer that starts at the beginning starts behind them.

    Remaining records keep their offsets (KIP-107).
    """
    topic = topics.create("deleted", partitions=1)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce(topic, str(number).encode(), partition=0)
        producer.flush(SECONDS)
    deleted = admin.delete_records([TopicPartition(topic, 0, 40)])
    (answer,) = [future.result(SECONDS) for future in deleted.values()]
    assert answer.low_watermark == 40
    assert earliest(admin, TopicPartition(topic, 0)) == 40
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topics.unused_name("deleted"),
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 7)])  # out of range now: reset to the earliest
        read: list[tuple[int, bytes]] = []
        while len(read) < 60:
            found = consumer.consume(60 - len(read), timeout=SECONDS)
            assert found, read
            read += [(message.offset(), message.value()) for message in found]
    finally:
        consumer.close()
    assert read == [(number, str(number).encode()) for number in range(40, 100)]


def test_settings_are_changed_and_told(admin: AdminClient, topics: Topics) -> None:
    """Settings are changed individually (KIP-339).

    Unknown names and invalid numbers are refused.
    """
    topic = topics.create("settings", partitions=1)

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(SECONDS)

    def told(name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (future,) = admin.describe_configs([resource]).values()
        value: str = future.result(SECONDS)[name].value
        return value

    assert told("retention.ms") == "-1"
    alter("retention.ms", "3600000", AlterConfigOpType.SET)
    assert told("retention.ms") == "3600000"
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    assert told("retention.ms") == "-1"
    for name, value in (("retention.ms", "soon"), ("no.such.setting", "1")):
        with pytest.raises(KafkaException):
            alter(name, value, AlterConfigOpType.SET)


@pytest.mark.parametrize("kept", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_a_topic_with_a_codec_are_read_as_they_were_sent(
    admin: AdminClient, bootstrap: str, topics: Topics, kept: str
) -> None:
    """Records are read unchanged, with any compression, in small batches and large ones."""
    topic = topics.unused_name(f"kept-{kept}")
    asked = NewTopic(topic, 1, 3, config={"compression.type": kept})
    admin.create_topics([asked])[topic].result(SECONDS)
    values = [bytes([number]) * (1 if number % 2 else 60_000) for number in range(10)]
    for sent in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": sent})
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(SECONDS) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topics.unused_name("kept"),
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read: list[bytes] = []
        while len(read) < 5 * len(values):
            # No more than that: it waits for the requested number.
            found = consumer.consume(5 * len(values) - len(read), timeout=SECONDS)
            assert found, len(read)
            assert all(message.error() is None for message in found)
            read += [message.value() for message in found]
    finally:
        consumer.close()
    assert read == values * 5
