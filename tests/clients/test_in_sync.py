"""In-sync replicas and `min.insync.replicas` with unmodified clients."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.replica_set import ReplicaSet
from tests.clients.topics import Topics

SECONDS = 30.0
PAUSE_SECONDS = 0.1


def in_sync(admin: AdminClient, topic: str) -> set[int]:
    partition = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions[0]
    return set(partition.isrs)


def wait_for_in_sync(admin: AdminClient, topic: str, wanted: set[int]) -> None:
    deadline = time.monotonic() + SECONDS
    while in_sync(admin, topic) != wanted:
        assert time.monotonic() < deadline, in_sync(admin, topic)
        time.sleep(PAUSE_SECONDS)


def fate(bootstrap: str, topic: str, **settings: str | int) -> KafkaError | None:
    """Return the final result for the producer of one record."""
    told: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        told.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "retries": 0, **settings})
    producer.produce(topic, b"v", partition=0, on_delivery=delivered)
    assert producer.flush(SECONDS) == 0
    return told[0]


def test_batches_wait_for_min_insync_replicas(
    servers: ReplicaSet | None, bootstrap: str, topics: Topics
) -> None:
    """One of three required servers is down: acks=all is refused and acks=1 is not.

    Metadata lists the in-sync replicas, and all of them again when the server is back.
    """
    if servers is None:
        pytest.skip("brokers that are not ours are not stopped")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = topics.unused_name("strict")
    asked = NewTopic(topic, 1, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([asked])[topic].result(SECONDS)
    everybody = set(servers.server_ids)
    wait_for_in_sync(admin, topic, everybody)
    assert fate(bootstrap, topic, acks="all") is None
    leader = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions[0].leader
    gone = max(everybody - {leader})
    servers.kill(gone)
    try:
        wait_for_in_sync(admin, topic, everybody - {gone})
        refused = fate(bootstrap, topic, acks="all")
        assert refused is not None
        assert refused.code() == KafkaError.NOT_ENOUGH_REPLICAS
        assert fate(bootstrap, topic, acks=1) is None
    finally:
        servers.start(gone)
        servers.wait_serving(gone)
    wait_for_in_sync(admin, topic, everybody)
    assert fate(bootstrap, topic, acks="all") is None
    admin.delete_topics([topic])[topic].result(SECONDS)
