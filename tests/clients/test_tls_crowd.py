"""Many encrypted connections: memory of idle ones, and progress of others beside handshakes.

The large form is `python -m tests.bench handshakes`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer

from tests.bench.handshakes import PLAIN_STEP, TLS_STEP, configure, crowd
from tests.chaos.harness.replica_set import ReplicaSet

IDLE, AT_ONCE = 400, 40
IDLE_BYTES_MAX = 64 << 10
"""Resident memory of one; docs/secure.md states the usual size."""
RECORDS = 300
SECONDS = 30.0


@pytest.fixture
def servers() -> Iterator[ReplicaSet]:
    found = ReplicaSet(3)
    try:
        configure(found)
        found.up()
        yield found
    finally:
        found.close()


def produce(producer: Producer) -> None:
    """Produce some records, each answered before the next."""
    failed: list[KafkaError] = []
    for _ in range(RECORDS):
        producer.produce(
            "beside", b"x", on_delivery=lambda error, _: failed.append(error) if error else None
        )
        assert producer.flush(SECONDS) == 0
    assert failed == []


def test_encrypted_connections_hold_little_and_handshakes_stop_nobody(servers: ReplicaSet) -> None:
    """Idle connections, and those that come and go as fast as a client can.

    Once they are gone their memory is freed, and a new one is served.
    """
    base = servers.base_port
    plain = ",".join(f"127.0.0.1:{base + PLAIN_STEP + i}" for i in range(3))
    producer = Producer({"bootstrap.servers": plain, "acks": "all", "linger.ms": 0})
    produce(producer)
    place = base + TLS_STEP, servers.directory / "tls" / "ca.pem"
    before = servers.rss_bytes(1)
    with crowd(*place, AT_ONCE, IDLE) as pipe:
        pipe.recv()
        standing = servers.rss_bytes(1)
        produce(producer)
    assert (standing - before) / IDLE < IDLE_BYTES_MAX
    with crowd(*place, AT_ONCE, 0) as pipe:
        pipe.recv()
        produce(producer)
        pipe.send(None)
        done: int = pipe.recv()
    assert done > AT_ONCE
    # However many there were, they left no more behind than the idle ones.
    assert servers.rss_bytes(1) - before < IDLE * IDLE_BYTES_MAX
    with crowd(*place, 1, 1) as pipe:
        pipe.recv()
        produce(producer)
