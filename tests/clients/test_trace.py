"""`vdl trace` on real servers whose disks are slow: the stage and the server that were slow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.clients.command_line import CommandLine
from vdl.testing import Cluster

SLOW_SECONDS = 0.3
SLOW_NS = int(SLOW_SECONDS * 1e9)
HOSTILE = "evil\x1b[31m"


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with Cluster(3, settings={"admin.listen": "127.0.0.1:0"}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    yield shared
    shared.restore()


def produce(cluster: Cluster, topic: str, client_id: str, count: int = 2) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap, "client.id": client_id, "linger.ms": 0}
    producer = Producer({**settings, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, b"x", partition=0)
        assert not producer.flush(60)


def slowest(cluster: Cluster, topic: str) -> dict[str, Any]:
    """Return the slowest Produce to a topic."""
    options = ("--slowest", "--topic", topic, "--api", "produce")
    found = CommandLine(cluster.bootstrap).json("trace", *options)
    assert {server["problem"] for server in found["servers"]} == {""}
    first: dict[str, Any] = found["requests"][0]
    return first


def stages(request: dict[str, Any]) -> dict[str, int]:
    return {stage["name"]: stage["duration_ns"] for stage in request["stages"]}


def test_slow_disk_of_the_leader_is_named(cluster: Cluster) -> None:
    """With all disks slow, the leader's own write is what an acknowledgement waits for."""
    topic = cluster.topic()
    leader = cluster.leader(topic)
    produce(cluster, topic, "warm")
    cluster.slow_disk(leader, SLOW_SECONDS)
    for server in {*cluster.servers} - {leader}:
        cluster.slow_disk(server, 3 * SLOW_SECONDS)
    produce(cluster, topic, "late", 1)
    request = slowest(cluster, topic)
    assert request["server_id"] == leader
    assert stages(request)["disk"] >= SLOW_NS
    assert request["acked_by"] in cluster.servers


def test_slow_follower_is_named(cluster: Cluster) -> None:
    """The acknowledgement that a record waited for last is that of the faster follower."""
    topic = cluster.topic()
    leader = cluster.leader(topic)
    produce(cluster, topic, "warm")
    faster, slower = sorted({*cluster.servers} - {leader})
    cluster.slow_disk(faster, SLOW_SECONDS)
    cluster.slow_disk(slower, 20 * SLOW_SECONDS)
    produce(cluster, topic, HOSTILE, 1)
    request = slowest(cluster, topic)
    split = stages(request)
    assert request["acked_by"] == faster
    assert split["replication"] >= SLOW_NS // 2 > split["disk"]
    assert request["slowest"] == f"{topic}-0"
    assert request["client_id"] == HOSTILE
    assert request["term"] > 0
    assert request["principal"] == "User:ANONYMOUS"
    total = sum(stage["duration_ns"] for stage in request["stages"])
    assert total == request["total_ns"]
    shown = CommandLine(cluster.bootstrap).ok("trace", "--slowest", "--topic", topic)
    assert "\x1b" not in shown
    assert f"server {faster} last" in shown
    bars = CommandLine(cluster.bootstrap).ok("trace", "--slowest", "--topic", topic, "--waterfall")
    assert "\x1b" not in bars
    assert f"acknowledged last by server {faster}" in bars


def test_trace_finds_only_what_it_asks_for(cluster: Cluster) -> None:
    """Requests of other topics and other APIs are left out; it ends with its number."""
    topic, other = cluster.topic(), cluster.topic()
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            produce(cluster, other, "other", 1)
            produce(cluster, topic, "wanted", 1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        options = ("--topic", topic, "--api", "Produce", "--for", "60s", "--requests", "3")
        found = CommandLine(cluster.bootstrap).json("trace", *options)
    finally:
        is_over.set()
        writer.join()
    assert {one["client_id"] for one in found["requests"]} == {"wanted"}
    assert {one["api"] for one in found["requests"]} == {"Produce"}
    assert len(found["requests"]) >= 3
    assert all(one["partitions"] == [f"{topic}-0"] for one in found["requests"])


def test_record_that_is_sent_is_shown_with_what_its_client_saw(cluster: Cluster) -> None:
    topic = cluster.topic()
    found = CommandLine(cluster.bootstrap).json("trace", "--send", topic)
    assert len(found["requests"]) == 2
    assert found["client_ms"] * 1e6 >= min(one["total_ns"] for one in found["requests"])
    assert json.dumps(found)


def test_wrong_use_is_refused(cluster: Cluster) -> None:
    command = CommandLine(cluster.bootstrap)
    assert command.run("trace", "--api", "Nonsense").code == 2
    assert command.run("trace", "--slowest", "--send", "t").code == 2
    assert command.run("trace", "--for", "11m").code == 2
