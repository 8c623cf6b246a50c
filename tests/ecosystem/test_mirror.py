"""MirrorMaker 2: topics are copied from Kafka to VDL, and from VDL to Kafka."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.ecosystem.kafka import Kafka
from tests.ecosystem.programs import Program, java, libraries
from tests.ecosystem.records import Record, Topics

pytestmark = pytest.mark.takes_turns(parts=2)

RECORDS = 3_000
PARTITIONS = 3
AGE_MS = 3_600_000
"""Age of the records: timestamps are copied, and Kafka deletes records older than a week."""
GROUP = "accounting"


def test_mirror_maker_copies_both_ways(
    topics: Topics, kafka: Kafka, tmp_path: Path, log: Path
) -> None:
    """Each record is copied once, with all fields, and a group's offsets are copied.

    Keys, values, headers, timestamps and partitions are equal.
    """
    sent = {}
    for name, cluster in (("orders", kafka.topics), ("bills", topics)):
        cluster.create(name, partitions=PARTITIONS)
        sent[name] = _records(name)
        cluster.produce(name, sent[name])
    _commit(kafka.topics, "orders")
    settings = tmp_path / "mirror.properties"
    _configure(settings, topics, kafka)
    command = java(
        f"{libraries('java')}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(settings)
    )
    with Program(command, log) as program:
        for copy, there in (("kafka.orders", topics), ("vdl.bills", kafka.topics)):
            program.wait_for(f"{copy} is there", partial(_holds, there, copy, RECORDS))
        program.wait_for(
            "the group's position is there",
            lambda: topics.committed(GROUP, "kafka.orders") != {},
        )
    for name, copy, there in (
        ("orders", "kafka.orders", topics),
        ("bills", "vdl.bills", kafka.topics),
    ):
        assert sorted(there.read(copy)) == sorted(sent[name])
    ends = kafka.topics.committed(GROUP, "orders")
    synced = topics.committed(GROUP, "kafka.orders")
    assert synced.keys() <= ends.keys()
    assert all(offset <= ends[partition] for partition, offset in synced.items())
    assert topics.config("mm2-offsets.kafka.internal", "cleanup.policy") == "compact"


def _records(name: str) -> list[Record]:
    rng = random.Random(name)
    first_ms = int(time.time() * 1000) - AGE_MS
    return [
        Record(
            b"key %d" % rng.randrange(100),
            rng.randbytes(rng.randrange(200)),
            rng.randrange(PARTITIONS),
            first_ms + number,
            (("number", b"%d" % number), ("empty", b"")),
        )
        for number in range(RECORDS)
    ]


def _commit(topics: Topics, name: str) -> None:
    """Commit the offsets of a group that has read everything."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": GROUP})
    ends = [
        TopicPartition(
            name, number, consumer.get_watermark_offsets(TopicPartition(name, number))[1]
        )
        for number in range(PARTITIONS)
    ]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()


def _holds(topics: Topics, name: str, count: int) -> bool:
    return name in topics.names() and len(topics.read(name)) >= count


def _configure(settings: Path, topics: Topics, kafka: Kafka) -> None:
    settings.write_text(
        f"""clusters=kafka,vdl
kafka.bootstrap.servers={kafka.bootstrap}
vdl.bootstrap.servers={topics.bootstrap}
kafka->vdl.enabled=true
kafka->vdl.topics=orders
vdl->kafka.enabled=true
vdl->kafka.topics=bills
replication.factor=1
vdl.replication.factor={topics.replication}
vdl.checkpoints.topic.replication.factor={topics.replication}
vdl.heartbeats.topic.replication.factor={topics.replication}
vdl.offset-syncs.topic.replication.factor={topics.replication}
vdl.offset.storage.replication.factor={topics.replication}
vdl.status.storage.replication.factor={topics.replication}
vdl.config.storage.replication.factor={topics.replication}
kafka.checkpoints.topic.replication.factor=1
kafka.heartbeats.topic.replication.factor=1
kafka.offset-syncs.topic.replication.factor=1
kafka.offset.storage.replication.factor=1
kafka.status.storage.replication.factor=1
kafka.config.storage.replication.factor=1
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=1
emit.checkpoints.interval.seconds=1
refresh.topics.interval.seconds=5
refresh.groups.interval.seconds=5
offset.lag.max=0
dedicated.mode.enable.internal.rest=false
"""
    )
