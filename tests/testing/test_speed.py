"""Figures of a test cluster, recorded and not judged: ready, isolated tests, memory.

COUNT sets the number of isolated tests: 50 by default, 1,000 for the figure in docs/testing.md.
STARTS sets the number of starts. Only results are judged: a slow machine fails nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from vdl.testing import Cluster

COUNT = int(os.environ.get("COUNT", "50"))
STARTS = int(os.environ.get("STARTS", "2"))
WAIT_SECONDS_MAX = 60.0
KIB = 1_024


def memory_bytes(pid: int) -> int:
    """Return a process's proportional share of memory."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(row.split()[1]) * KIB for row in rows if row.startswith("Pss:"))


def isolated_test(cluster: Cluster, *, by_group: bool) -> None:
    """Create a topic, produce, consume, and delete the topic.

    A member of a group costs 0.15 s more, which are pauses of the client: librdkafka waits 50 ms
    between two new connections, and 100 ms before it looks for the first offset.
    """
    topic = cluster.topic()
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    producer = Producer({**settings, "linger.ms": 0})
    producer.produce(topic, topic.encode())
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        if by_group:
            consumer.subscribe([topic])
        else:
            consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(WAIT_SECONDS_MAX)
        assert message is not None
        assert message.value() == topic.encode()
    finally:
        consumer.close()
    cluster.delete_topics(topic)


def seconds_of(cluster: Cluster, *, by_group: bool) -> float:
    began = time.monotonic()
    for _ in range(COUNT):
        isolated_test(cluster, by_group=by_group)
    return time.monotonic() - began


def test_figures_of_a_cluster_are_recorded(
    record_property: Callable[[str, object], None],
) -> None:
    starts = []
    for _ in range(STARTS):
        began = time.monotonic()
        with Cluster(3):
            starts.append(time.monotonic() - began)
    with Cluster(3) as cluster:
        seconds = seconds_of(cluster, by_group=False)
        group_seconds = seconds_of(cluster, by_group=True)
        supervisor = int(cluster._about["pid"])
        pids = [supervisor, *(cluster.pid(server) for server in cluster.servers)]
        memory = sum(map(memory_bytes, pids))
        files = sum(
            path.stat().st_blocks * 512 for path in cluster.directory.rglob("*") if path.is_file()
        )
    for name, value in (
        ("ready_seconds_median", round(statistics.median(starts), 2)),
        ("isolated_tests", COUNT),
        ("isolated_tests_seconds", round(seconds, 1)),
        ("isolated_tests_of_groups_seconds", round(group_seconds, 1)),
        ("memory_mib", round(memory / KIB**2)),
        ("files_mib", round(files / KIB**2)),
    ):
        record_property(name, value)
        print(f"{name} = {value}")
