"""Metrics of an unmodified client, from its subscription to this server's own metrics (KIP-714)."""

from __future__ import annotations

import time
import urllib.request

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.chaos.harness.replica_set import ReplicaSet
from tests.clients.raw import MODULES, RawConnection
from tests.clients.topics import Topics
from vdl.kafka.wire import incremental_alter_configs as alter_wire

SECONDS = 30.0
PAUSE_SECONDS = 0.2
CLIENT_METRICS = 16
HTTP_PORT_STEP = 30
INTERVAL_MS = "500"


def subscribe(address: tuple[str, int], value: str | None) -> None:
    """Request all metrics of all clients; None: none any more.

    Admin clients lack this resource, so the request is sent directly.
    """
    MODULES[alter_wire.API_KEY] = alter_wire
    operation = 1 if value is None else 0
    configs = [
        alter_wire.AlterableConfig("metrics", operation, value),
        alter_wire.AlterableConfig("interval.ms", operation, value and INTERVAL_MS),
    ]
    resource = alter_wire.AlterConfigsResource(CLIENT_METRICS, "everything", configs)
    connection = RawConnection(address)
    try:
        request = alter_wire.IncrementalAlterConfigsRequest([resource], False)
        answer = connection.ask(request, key=alter_wire.API_KEY, version=1)
    finally:
        connection.close()
    assert [result.error_code for result in answer.responses] == [0]


def test_what_a_client_measures_is_on_the_metrics_port(
    servers: ReplicaSet | None, bootstrap: str, topics: Topics
) -> None:
    """The metrics are at the server to which the client pushes, with the client's own name."""
    if servers is None:
        pytest.skip("other brokers show it elsewhere")
    topic = topics.create("measured", partitions=1)
    host, port = servers.address(1).split(":")
    subscribe((host, int(port)), "*")
    name = topics.unused_name("measured")
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": name})
    try:
        deadline = time.monotonic() + SECONDS
        while not any(f'client_id="{name}"' in text for text in exposed(servers)):
            assert time.monotonic() < deadline
            producer.produce(topic, b"v", partition=0)
            producer.flush(SECONDS)
            time.sleep(PAUSE_SECONDS)
    finally:
        subscribe((host, int(port)), None)
    assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=SECONDS).topics


def exposed(servers: ReplicaSet) -> list[str]:
    """Return the contents of each server's metrics port."""
    texts = []
    for server_id in servers.server_ids:
        port = servers.base_port + server_id - 1 + HTTP_PORT_STEP
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
            texts.append(answer.read().decode())
    return texts
