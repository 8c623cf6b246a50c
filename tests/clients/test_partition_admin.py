"""Queries of partitions for administrators, by unmodified clients in this process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.clients.topics import Topics
from vdl.errors import ErrorCode

SECONDS = 20.0
RECORDS, RECORD_BYTES = 50, 1_000
LARGEST = 17
"""Record with the largest timestamp."""


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka")


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Any]:
    """Yield kafka-python's admin client, whose modules warn when they are loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka

    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    yield client
    client.close()


@pytest.fixture
def topic(bootstrap: str, topics: Topics) -> str:
    """Return a topic of two partitions with records in the second, of an idempotent producer."""
    name = topics.create("described", partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        at_ms = 1_700_000_000_000 + (9_999 if number == LARGEST else number)
        producer.produce(name, bytes(RECORD_BYTES), partition=1, timestamp=at_ms)
    producer.flush(SECONDS)
    return name


def size_of(described: Any, partition: int) -> int:
    """Return the bytes of a partition's replica, from a server's description of its directory."""
    (topic,) = described["log_dirs"][0]["topics"]
    sizes = {p["partition_index"]: p["partition_size"] for p in topic["partitions"]}
    size: int = sizes[partition]
    return size


def test_sizes_of_replicas_are_told_by_each_server(admin: Any, topic: str) -> None:
    """Each server reports the sizes of its replicas, once followers know the commit index.

    Moves to another directory are refused.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        described = admin.describe_log_dirs({topic: [0, 1]})
        if all(size_of(one, 1) >= RECORDS * RECORD_BYTES for one in described):
            break
        assert time.monotonic() < deadline, described
    assert len(described) == 3
    moves = {}
    for one in described:
        (directory,) = one["log_dirs"]
        assert directory["error_code"] == ErrorCode.NONE
        assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
        assert size_of(one, 0) < RECORD_BYTES
        replica = (topic, 1, one["broker"])
        moves[replica] = directory["log_dir"]
        elsewhere = (topic, 0, one["broker"])
        moves[elsewhere] = directory["log_dir"] + "/elsewhere"
    answers = admin.alter_replica_log_dirs(moves)
    assert {(replica.partition, error.errno) for replica, error in answers.items()} == {
        (1, ErrorCode.NONE),
        (0, ErrorCode.LOG_DIR_NOT_FOUND),
    }


def test_record_with_the_largest_timestamp_is_found(bootstrap: str, topic: str) -> None:
    """KIP-734; a partition without records has none."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    asked = {TopicPartition(topic, p): OffsetSpec.max_timestamp() for p in (0, 1)}
    found = {
        tp.partition: future.result(SECONDS) for tp, future in client.list_offsets(asked).items()
    }
    assert found[0].offset == -1
    assert (found[1].offset, found[1].timestamp) == (LARGEST, 1_700_000_009_999)


def test_producers_of_a_partition_are_told(admin: Any, topic: str) -> None:
    """The producer that wrote, with its last sequence number."""
    import kafka

    asked = [kafka.TopicPartition(topic, partition) for partition in (0, 1)]
    none, some = (admin.describe_producers(asked)[where].active_producers for where in asked)
    assert none == []
    (producer,) = some
    assert producer.last_sequence == RECORDS - 1
    assert producer.producer_epoch == 0


def test_preferred_leaders_are_elected(bootstrap: str, topic: str) -> None:
    """Preferred leaders lead already; no other leader is elected."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    asked = [TopicPartition(topic, 0), TopicPartition(topic, 9)]
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        found = client.elect_leaders(kind, asked).result(SECONDS)
        codes = {tp.partition: error.code() for tp, error in found.items()}
        assert codes == {
            0: KafkaError.ELECTION_NOT_NEEDED,
            9: KafkaError.UNKNOWN_TOPIC_OR_PART,
        }


def test_members_of_the_catalog_are_told_by_any_server(admin: Any) -> None:
    """Each server holds a replica; all are alive here."""
    for _ in range(6):
        described = admin.describe_metadata_quorum()
        (partition,) = described["topics"][0]["partitions"]
        assert partition["error"] is None
        voters = {voter["replica_id"] for voter in partition["current_voters"]}
        assert voters == {1, 2, 3}
        assert partition["leader_id"] in voters
        assert partition["observers"] == []
        assert all(voter["last_fetch_timestamp"] > 0 for voter in partition["current_voters"])
