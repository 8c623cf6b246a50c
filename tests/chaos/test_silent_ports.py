"""Strangers fill each port of a secured set in turn with silent connections.

SILENT sets their number on each port: 3,000 by default, 10,000 for the full form (`make hostile`).
In the short form the servers may open `FILES` descriptors, fewer than there are strangers: the
descriptors that the store needs must not be among those that the strangers take.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from tests.bench.handshakes import PLAIN_STEP, TLS_STEP, configure
from tests.chaos.conftest import Figure
from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from tests.chaos.harness.silence import silent
from vdl.commands.servers.open_files import FILES_KEPT
from vdl.commands.servers.replica_set import ADMIN_PORT_STEP, HTTP_PORT_STEP, PEER_PORT_STEP
from vdl.kafka.security.client_settings import read_client_settings

SILENT = int(os.environ.get("SILENT", "3000"))
FULL = 10_000
FILES = 0 if SILENT >= FULL else 1_200
"""0: as many as the system allows."""
STRUCK = 1
"""Server whose ports are filled."""
PORTS = {
    "logins": 0,
    "plain": PLAIN_STEP,
    "tls": TLS_STEP,
    "peers": PEER_PORT_STEP,
    "admin": ADMIN_PORT_STEP,
    "http": HTTP_PORT_STEP,
}
TOPIC = "beside"
RECORDS = 50
SECONDS_MAX = 30.0
LOG_LINES_MAX = 100
POLL_SECONDS = 0.05


@pytest.fixture(scope="module")
def servers() -> Iterator[ReplicaSet]:
    found = ReplicaSet(3, files=FILES)
    failed = "test_silent_ports"
    try:
        configure(found)
        found.up()
        client = Client(found)
        client.produce()
        yield found
        failed = ""
    finally:
        found.close(failed=failed)


class Client:
    """Client that connects anew for each operation."""

    def __init__(self, servers: ReplicaSet) -> None:
        self._servers = servers
        self._file = servers.directory / "client.properties"
        base = servers.base_port
        own = read_client_settings(self._file)
        secured = {
            "bootstrap.servers": servers.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(own.ca),
            "sasl.mechanism": own.mechanism,
            "sasl.username": own.user,
            "sasl.password": own.password,
        }
        plain = ",".join(f"127.0.0.1:{base + PLAIN_STEP + i}" for i in range(3))
        self._ways = secured, {"bootstrap.servers": plain}

    def produce(self) -> None:
        """Produce some records by each listener."""
        for way in self._ways:
            failed: list[KafkaError] = []

            def told(
                error: KafkaError | None, _: object, failed: list[KafkaError] = failed
            ) -> None:
                if error is not None:
                    failed.append(error)

            producer = Producer({**way, "acks": "all", "log_level": 0})
            for number in range(RECORDS):
                producer.produce(TOPIC, b"%d" % number, on_delivery=told)
            assert producer.flush(SECONDS_MAX) == 0
            assert failed == []

    def consume(self) -> None:
        """Consume the same number by each listener."""
        for way in self._ways:
            consumer = Consumer(
                {
                    **way,
                    "group.id": f"reader-{uuid.uuid4()}",
                    "auto.offset.reset": "earliest",
                    "log_level": 0,
                }
            )
            consumer.subscribe([TOPIC])
            deadline, count = time.monotonic() + SECONDS_MAX, 0
            while count < RECORDS:
                assert time.monotonic() < deadline, f"{count} of {RECORDS} records"
                count += len(consumer.consume(RECORDS, 0.1))
            consumer.close()

    def health(self) -> None:
        """Check the health of the server under attack."""
        port = self._servers.base_port + STRUCK - 1 + HTTP_PORT_STEP
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            assert answer.status == 200
            told = json.loads(answer.read())
        # Load from other tests on the machine is not the strangers' fault.
        assert {one["kind"] for one in told["problems"]} <= {"overloaded"}, told

    def status(self) -> None:
        """Check the status as an administrator queries it."""
        done = subprocess.run(
            [sys.executable, "-m", "vdl.cli", "status", "--json", "--config", str(self._file),
             "--bootstrap", self._servers.bootstrap],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        told = json.loads(done.stdout)
        assert [server["problem"] for server in told["servers"]] == ["", "", ""], told
        assert all(group["leader"] > 0 for group in told["groups"]), told


def descriptors(pid: int) -> dict[str, int]:
    """Return the numbers of a process's descriptors that are sockets, and that are not."""
    found = {"sockets": 0, "others": 0}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            is_socket = str(entry.readlink()).startswith("socket:")
            found["sockets" if is_socket else "others"] += 1
    return found


def log_lines(servers: ReplicaSet) -> int:
    return sum(len(servers.log(server_id).splitlines()) for server_id in servers.server_ids)


@pytest.mark.takes_turns(parts=3)
@pytest.mark.parametrize("port", PORTS)
def test_silent_connections_keep_nobody_out(port: str, servers: ReplicaSet, figure: Figure) -> None:
    """Regular clients, an administrator and a monitor are served beside silent strangers.

    The clients have logins or none. Another server that was restarted becomes a member again, and
    the strangers' descriptors are freed.
    """
    client, pid = Client(servers), servers.pid(STRUCK)
    lines, before = log_lines(servers), descriptors(pid)
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    place = servers.base_port + STRUCK - 1 + PORTS[port]
    with silent(place, SILENT) as crowd:
        began = time.monotonic()
        client.health()
        client.produce()
        client.consume()
        client.status()
        if port == "peers":
            servers.kill(2)
            servers.start(2)
            wait_linked(servers)
            servers.wait_serving(2)
        took = time.monotonic() - began
        during = descriptors(pid)
        told = crowd.told()
    assert sum(during.values()) <= limit - FILES_KEPT // 2
    assert_gone(pid, before)
    client.status()
    assert "disk_full" not in servers.log(STRUCK)
    assert log_lines(servers) - lines <= LOG_LINES_MAX
    figure("strangers", [told.opened, told.ended, told.open_now])
    figure("descriptors", [before, during])
    figure("log_lines", log_lines(servers) - lines)
    figure("seconds", round(took, 1))


def wait_linked(servers: ReplicaSet) -> None:
    """Wait until server 2 is linked with the one under attack."""
    port = servers.base_port + STRUCK - 1 + HTTP_PORT_STEP
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        up = [line for line in text.splitlines() if line.startswith("vdl_peer_up{")]
        if up and all(float(line.split()[1]) for line in up):
            return
        assert time.monotonic() < deadline, up
        time.sleep(POLL_SECONDS)


def assert_gone(pid: int, before: dict[str, int]) -> None:
    """Check that the strangers' sockets are closed, except those of the clients meanwhile."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        now = descriptors(pid)
        if now["sockets"] <= before["sockets"] + 50:
            return
        assert time.monotonic() < deadline, (before, now)
        time.sleep(POLL_SECONDS)
