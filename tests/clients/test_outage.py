"""Commands that wait out the end of all servers: they say so once, and ^C ends them."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clients.command_process import _ALONE
from vdl.testing import Cluster

LIMIT_SECONDS = 60
"""Half of the time in which a record may be written; far more than an end takes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1) as found:
        yield found


def wait_for_records(bootstrap: str) -> None:
    """Return when some topic has a record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0})
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while time.monotonic() < deadline:
            for name, topic in consumer.list_topics(timeout=LIMIT_SECONDS).topics.items():
                for number in topic.partitions:
                    place = TopicPartition(name, number)
                    if not name.startswith("__") and consumer.get_watermark_offsets(place)[1]:
                        return
            time.sleep(0.1)
    finally:
        consumer.close()
    raise AssertionError("no record was written")


@pytest.mark.parametrize("words", ["produce {}", "consume {} --follow", "bench --records 50000000"])
def test_interrupt_ends_a_command_whose_servers_have_died(cluster: Cluster, words: str) -> None:
    cluster.restore()
    topic = cluster.topic()
    command = [*words.format(topic).split(), "--bootstrap", cluster.bootstrap]
    with subprocess.Popen(
        [sys.executable, "-c", _ALONE, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if command[0] == "consume":
                write = [sys.executable, "-c", _ALONE, "produce", topic, *command[-2:]]
                subprocess.run(write, input=b"1\n", check=True, stderr=subprocess.DEVNULL)
                assert process.stdout.readline() == b"1\n"
            else:
                process.stdin.write(b"1\n" * 1_000)
                wait_for_records(cluster.bootstrap)
            cluster.kill(1)
            process.stdin.close()
            process.stdin = None
            assert select.select([process.stderr], [], [], LIMIT_SECONDS)[0]
            first = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
            cluster.start()
            cluster.delete_topics(topic)
    assert first.startswith(b"vdl: no server answers, waiting: "), first
    assert process.returncode == 130
