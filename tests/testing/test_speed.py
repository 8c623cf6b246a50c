"""Figures of a test cluster, recorded and not judged: ready, isolated tests, memory.

COUNT sets the number of isolated tests: 50 by default, 1,000 for the figure in docs/testing.md.
STARTS sets the number of starts, WORKERS the number of xdist's processes. Only results are judged:
a slow machine fails nothing.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from vdl.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("COUNT", "50"))
STARTS = int(os.environ.get("STARTS", "2"))
WORKERS = int(os.environ.get("WORKERS", "3"))
WAIT_SECONDS_MAX = 60.0
RUN_SECONDS_MAX = 1_800
KIB = 1_024

MEMBERS = """
import pytest
from tests.testing.test_speed import COUNT, isolated_test

@pytest.mark.parametrize("number", range(COUNT))
def test_with_a_topic_and_a_group_of_its_own(vdl_cluster, vdl_topic, number):
    isolated_test(vdl_cluster.bootstrap, vdl_topic, by_group=True)
"""
"""As applications use the plug-in."""


def memory_bytes(pid: int) -> int:
    """Return a process's proportional share of memory."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(row.split()[1]) * KIB for row in rows if row.startswith("Pss:"))


def isolated_test(bootstrap: str, topic: str, *, by_group: bool) -> None:
    """Produce, consume, and commit as a member.

    A member of a group waits longer in librdkafka: 11 ms between two new connections, and
    100 ms before it looks for the first offset.
    """
    settings = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.ms": 20}
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
        if by_group:
            consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


def seconds_of(cluster: Cluster) -> float:
    began = time.monotonic()
    for _ in range(COUNT):
        topic = cluster.topic()
        isolated_test(cluster.bootstrap, topic, by_group=False)
        cluster.delete_topics(topic)
    return time.monotonic() - began


def seconds_of_members(folder: Path) -> tuple[float, float]:
    """Run COUNT tests with the plug-in; return (seconds, CPU seconds of all processes)."""
    (folder / "test_members.py").write_text(MEMBERS)
    command = [sys.executable, "-m", "pytest", "-p", "vdl.testing.plugin", "-p", "xdist.plugin"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-q", "-n", str(WORKERS), "test_members.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    seconds = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert f"{COUNT} passed" in done.stdout, done.stdout + done.stderr
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu


def test_figures_of_a_cluster_are_recorded(
    record_property: Callable[[str, object], None], tmp_path: Path
) -> None:
    starts = []
    for _ in range(STARTS):
        began = time.monotonic()
        with Cluster(3):
            starts.append(time.monotonic() - began)
    with Cluster(3) as cluster:
        seconds = seconds_of(cluster)
        supervisor = int(cluster._about["pid"])
        pids = [supervisor, *(cluster.pid(server) for server in cluster.servers)]
        memory = sum(map(memory_bytes, pids))
        files = sum(
            path.stat().st_blocks * 512 for path in cluster.directory.rglob("*") if path.is_file()
        )
    member_seconds, member_cpu_seconds = seconds_of_members(tmp_path)
    for name, value in (
        ("ready_seconds_median", round(statistics.median(starts), 2)),
        ("isolated_tests", COUNT),
        ("isolated_tests_seconds", round(seconds, 1)),
        ("isolated_tests_of_members_seconds", round(member_seconds, 1)),
        ("isolated_tests_of_members_cpu_seconds", round(member_cpu_seconds, 1)),
        ("memory_mib", round(memory / KIB**2)),
        ("files_mib", round(files / KIB**2)),
    ):
        record_property(name, value)
        print(f"{name} = {value}")
