"""Batches larger than a segment, the cache or a link's bound are handled as any other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.chaos.harness.replica_set import ReplicaSet
from tests.clients.topics import Topics

LARGEST = 100 << 20
SIZES = (20_000_000, 64 << 20, LARGEST - 50_000)
"""The last one fills a request, without its own header (`socket.request.max.bytes`)."""
SECONDS = 120.0
SOON: dict[str, object] = {
    "compaction.check_interval": "500ms", "storage.checkpoint_interval": "2s",
}  # fmt: skip


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    replica_set = ReplicaSet(3)
    try:
        replica_set.configure(SOON)
        replica_set.up()
        yield replica_set
    finally:
        replica_set.close(failed="large-batches" if request.session.testsfailed else "")


@pytest.fixture(scope="module")
def topics(servers: ReplicaSet) -> Topics:
    return Topics(servers.bootstrap)


@pytest.fixture(scope="module", autouse=True)
def names(topics: Topics) -> dict[str, str]:
    """Yield the topics of all tests, created before any server is killed."""
    compacted = {
        "cleanup_policy": "compact", "segment_bytes": "65536", "min_cleanable_dirty_ratio": "0.0",
    }  # fmt: skip
    configs: dict[str, dict[str, str]] = {"any": {}, "killed": {}, "away": {}}
    configs["compacted"] = compacted
    return {
        stem: topics.create(stem, max_message_bytes=str(LARGEST), **more)
        for stem, more in configs.items()
    }


def producer(servers: ReplicaSet, codec: str = "none") -> Producer:
    return Producer(
        {
            "bootstrap.servers": servers.bootstrap,
            "message.max.bytes": 1_000_000_000,
            "compression.type": codec,
            "enable.idempotence": True,
            "queue.buffering.max.kbytes": 2_000_000,
            "message.timeout.ms": 1000 * int(SECONDS),
        }
    )


def send(client: Producer, topic: str, value: bytes, key: bytes | None = None) -> None:
    failures: list[object] = []
    client.produce(
        topic, value, key, partition=0, on_delivery=lambda e, _: e and failures.append(e)
    )
    assert client.flush(SECONDS) == 0
    assert failures == []


def read(servers: ReplicaSet, topic: str, count: int, **settings: int) -> list[bytes]:
    """Return `count` values from the beginning."""
    client = Consumer(
        {
            "bootstrap.servers": servers.bootstrap,
            "group.id": "unused",
            "fetch.message.max.bytes": 1_000_000,
            "fetch.max.bytes": 1_000_000,
            "receive.message.max.bytes": 1_000_000_000,
            "message.max.bytes": 1_000_000,
            "check.crcs": True,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    found: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    try:
        client.assign([TopicPartition(topic, 0, 0)])
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            message = client.poll(1.0)
            if message is not None and not message.error():
                found.append(message.value())
    finally:
        client.close()
    return found


def value_of(size: int, seed: int) -> bytes:
    """Return bytes that a codec compresses to half."""
    half = size // 2
    return random.Random(seed).randbytes(half) + bytes(size - half)


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_large_records_are_taken_and_read_as_they_were(
    servers: ReplicaSet, names: dict[str, str]
) -> None:
    """Large records, compressed or not, with small ones between, are read with small fetches."""
    topic = names["any"]
    sent: list[bytes] = []
    for codec in ("none", "zstd"):
        client = producer(servers, codec)
        for n, size in enumerate(SIZES):
            for value in (b"small", value_of(size, n)):
                send(client, topic, value)
                sent.append(value)
    assert read(servers, topic, len(sent)) == sent


def test_leader_that_dies_under_large_records_loses_none(
    servers: ReplicaSet, topics: Topics, names: dict[str, str]
) -> None:
    """Each is there once, in order, acknowledged by the old leader or the new one."""
    topic = names["killed"]
    sent = [value_of(size, n) for n, size in enumerate((30_000_000, 90_000_000, 30_000_000, 40))]
    failures: list[object] = []
    client = producer(servers)
    for value in sent:
        client.produce(topic, value, partition=0, on_delivery=lambda e, _: e and failures.append(e))
    leader = topics.leader(topic)
    wait_for("nothing is acknowledged", lambda: len(client) < len(sent) or client.poll(0.01) > 0)
    servers.kill(leader)
    assert client.flush(SECONDS) == 0
    assert failures == []
    servers.start(leader)
    servers.wait_serving(leader)
    assert read(servers, topic, len(sent)) == sent


def test_follower_that_was_away_gets_large_records(
    servers: ReplicaSet, topics: Topics, names: dict[str, str]
) -> None:
    """A returning follower gets large records from the leader's disk.

    Then it is one of the two remaining servers.
    """
    topic = names["away"]
    leader = topics.leader(topic)
    away, other = (server for server in servers.server_ids if server != leader)
    servers.kill(away)
    sent = [value_of(size, n) for n, size in enumerate((LARGEST - 50_000, 10, 20_000_000, 10))]
    client = producer(servers)
    for value in sent:
        send(client, topic, value)
    servers.start(away)
    servers.wait_serving(away)
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})

    def in_sync() -> int:
        return len(admin.list_topics(topic, timeout=20).topics[topic].partitions[0].isrs)

    wait_for("it does not catch up", lambda: in_sync() == 3)
    servers.kill(other)
    assert read(servers, topic, len(sent)) == sent
    servers.start(other)
    servers.wait_serving(other)


def test_topic_with_large_records_is_compacted(servers: ReplicaSet, names: dict[str, str]) -> None:
    """The newest of each key remains, whatever its size, in segments far smaller than that."""
    topic = names["compacted"]
    client = producer(servers)
    for n, size in enumerate((20_000_000, 70_000_000, 30_000_000, 100, 40_000_000)):
        send(client, topic, value_of(size, n), b"key %d" % (n % 2))
    # Segments that end are compacted: two more records end all of these.
    fillers = [value_of(70_000, 8), value_of(70_000, 9)]
    for n, value in enumerate(fillers):
        send(client, topic, value, b"another key %d" % n)
    newest = [value_of(100, 3), value_of(40_000_000, 4), *fillers]
    wait_for("it is not compacted", lambda: read(servers, topic, len(newest)) == newest)
