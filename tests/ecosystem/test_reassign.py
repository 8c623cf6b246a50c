"""kafka-reassign-partitions, unmodified: plan, throttled execution, end, and cancellation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.chaos.harness.load import IDEMPOTENT, Load, assert_kept, read_back
from tests.chaos.harness.replica_set import ReplicaSet, serving
from tests.ecosystem.programs import run_tool, wait_until
from tests.wire import AnyApiClient
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

pytestmark = [pytest.mark.java, pytest.mark.takes_turns(parts=2)]

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOPIC = "reassigned"
PARTITIONS = 30
ACKS = 200
FILLED = range(1, PARTITIONS)
FILLED_RECORDS, FILLED_BYTES = 20, 16_000
RATE = 50_000_000
SLOW_RATE = 1
"""Bytes a second: a move at this rate is still in progress when it is cancelled."""
THROTTLE = "leader.replication.throttled.replicas"
TOPIC_RESOURCE = 2


@pytest.fixture
def four_servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    with serving(4, request.node.name) as servers:
        yield servers


class Tool:
    """The tool, with its plans in files."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder

    def run(self, *arguments: str) -> str:
        return run_tool(TOOL, "--bootstrap-server", self._bootstrap, *arguments)

    def plan(self, targets: dict[int, list[int]]) -> str:
        rows = [
            {"topic": TOPIC, "partition": partition, "replicas": replicas}
            for partition, replicas in targets.items()
        ]
        return self.file("plan.json", {"version": 1, "partitions": rows})

    def file(self, name: str, content: dict[str, Any]) -> str:
        path = self._folder / name
        path.write_text(json.dumps(content), encoding="utf-8")
        return str(path)


def replicas(admin: AdminClient) -> dict[int, list[int]]:
    partitions = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    return {index: list(one.replicas) for index, one in partitions.items()}


def fill(bootstrap: str) -> None:
    """Produce more than a new replica receives at once, to each partition without load."""
    # A batch is never split: the first of them passes any throttle.
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1})
    for partition in list(FILLED) * FILLED_RECORDS:
        producer.produce(TOPIC, os.urandom(FILLED_BYTES), partition=partition)
    assert producer.flush(60) == 0


def throttled(bootstrap: str) -> str:
    """Return the replicas of the topic to which a throttle applies, by its configuration."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    asked = DescribeConfigsResource(TOPIC_RESOURCE, TOPIC, [THROTTLE])
    with AnyApiClient(host, int(port), timeout_seconds=30.0) as client:
        answer: Any = client.request(32, DescribeConfigsRequest([asked], False))
    (config,) = answer.results[0].configs
    return config.value or ""


def test_thirty_partitions_are_reassigned_under_load_by_kafkas_tool(
    four_servers: ReplicaSet, tmp_path: Path
) -> None:
    """The tool proposes a plan, executes it with a throttle, and removes that at the end."""
    bootstrap = four_servers.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    tool = Tool(bootstrap, tmp_path)
    placed = [[1, 2, 3] for _ in range(PARTITIONS)]
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replica_assignment=placed)
    admin.create_topics([topic])[TOPIC].result(30)
    fill(bootstrap)
    load = Load(bootstrap, TOPIC, IDEMPOTENT)
    load.start()
    try:
        load.wait_acknowledged(ACKS)
        wanted = tool.file("topics.json", {"version": 1, "topics": [{"topic": TOPIC}]})
        proposed = tool.run(
            "--generate", "--topics-to-move-json-file", wanted, "--broker-list", "2,3,4"
        )
        rows = json.loads(proposed.splitlines()[-1])["partitions"]
        targets = {row["partition"]: row["replicas"] for row in rows}
        assert {frozenset(where) for where in targets.values()} == {frozenset((2, 3, 4))}

        plan = tool.plan(targets)
        executed = tool.run("--execute", "--reassignment-json-file", plan, "--throttle", str(RATE))
        assert "Successfully started partition reassignments" in executed
        assert throttled(bootstrap)
        wait_until("not all partitions have moved", lambda: replicas(admin) == targets)
        verified = tool.run("--verify", "--reassignment-json-file", plan)
        assert verified.count("is completed") == PARTITIONS, verified
        assert not throttled(bootstrap), "the throttle stayed"
        load.wait_acknowledged(ACKS)

        back = tool.plan(placed_at(targets, without=4, instead=1))
        tool.run("--execute", "--reassignment-json-file", back, "--throttle", str(SLOW_RATE))
        assert "is still in progress" in tool.run(
            "--verify", "--preserve-throttles", "--reassignment-json-file", back
        )
        assert TOPIC in tool.run("--list")
        cancelled = tool.run("--cancel", "--reassignment-json-file", back)
        assert "Successfully cancelled" in cancelled
        assert "No partition reassignments found" in tool.run("--list")
        stayed = replicas(admin)
        assert [stayed[index] for index in FILLED] == [targets[index] for index in FILLED]
        assert not throttled(bootstrap), "the throttle stayed"
        load.wait_acknowledged(ACKS)
    finally:
        load.stop()
    assert load.failures == {}
    assert_kept(load, read_back(bootstrap, TOPIC))


def placed_at(where: dict[int, list[int]], *, without: int, instead: int) -> dict[int, list[int]]:
    return {
        partition: [instead if server == without else server for server in servers]
        for partition, servers in where.items()
    }
