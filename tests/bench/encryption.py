"""Cost of encryption: servers with TLS on all links and logins, beside plain ones.

A run is three new servers as `vdl up` makes them, with or without `--secure`, and a topic. Records
of 1,000 bytes are produced as fast as librdkafka sends them, acks=all, then all are consumed from
memory. With `--secure` servers encrypt each record once for clients in each direction and once for
each follower, and check ACLs for each request.

With PEER=kafka the same is done to Kafka, plain and with TLS on all links, logins and its
StandardAuthorizer (tests/differential/kafka_cluster.py), with the heap and collector of the other
measurements. Then all runs are warmed up: a JVM that has just started is slow.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.load import raise_failed, send, throughput
from tests.bench.rounds import Comparison, Figures, Run
from tests.bench.topics import CALL_SECONDS_MAX, REPLICATION
from tests.chaos.harness.replica_set import ReplicaSet
from tests.differential.kafka_cluster import KafkaCluster
from vdl.commands.servers.certificates import open_authority, write_server
from vdl.commands.servers.replica_set import make_replica_set
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.kafka.security.client_settings import read_client_settings

VARIANTS = ("plain", "secure")
PEER = "kafka"
TOPIC = "encrypted"
WARM_UP_MB = 30
WARM_UP_BESIDE_PEER_MB = 200
RECORDS_PER_CALL = 5_000
USER, PASSWORD = "bench", "bench-secret"
PEER_JVM = ("-Xms512m", "-Xmx512m", "-server", "-XX:+UseG1GC")
PEER_SETTINGS: Mapping[str, object] = {"min.insync.replicas": 2}
AUTHORIZER: Mapping[str, object] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Servers do not identify each other by certificates.
    "super.users": f"User:{USER};User:ANONYMOUS",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=300, help="of payload, in each run")
    parser.add_argument("--partitions", type=int, default=3)
    parser.set_defaults(rounds=5)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    beside = os.environ.get("PEER") == PEER
    amount = Amount(
        WARM_UP_BESIDE_PEER_MB if beside else WARM_UP_MB, options.megabytes, options.partitions
    )
    runs: dict[str, Run] = {name: partial(run, name, amount) for name in VARIANTS}
    if beside:
        runs |= {f"{PEER}_{name}": partial(run_peer, name, amount) for name in VARIANTS}
    yield Comparison(runs, f"{PEER}_secure" if beside else VARIANTS[0])


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount of payload."""

    warm_up_megabytes: int
    megabytes: int
    partitions: int


def run(variant: str, amount: Amount) -> Figures:
    """Measure VDL servers."""
    servers = ReplicaSet(3)
    try:
        client = _start(servers, variant)
        return _measured(client, [servers.pid(number) for number in servers.server_ids], amount)
    finally:
        servers.close()


def run_peer(variant: str, amount: Amount) -> Figures:
    """Measure Kafka servers."""
    with tempfile.TemporaryDirectory(prefix="vdl-bench-tls-") as name:
        tls = Path(name)
        if variant == "secure":
            settings = {**PEER_SETTINGS, **AUTHORIZER, **_peer_certificate(tls)}
            servers = KafkaCluster(
                settings, users={USER: PASSWORD}, is_encrypted=True, jvm=PEER_JVM
            )
        else:
            servers = KafkaCluster(PEER_SETTINGS, jvm=PEER_JVM)
        client: dict[str, Any] = {"bootstrap.servers": servers.bootstrap, "log_level": 0}
        if variant == "secure":
            client |= {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(tls / "ca.pem"),
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        try:
            servers.up()
            return _measured(client, servers.pids(), amount)
        finally:
            servers.close()


def _peer_certificate(tls: Path) -> dict[str, object]:
    """Return the settings for one certificate for all three, with a key like those of VDL."""
    pem = write_server(tls, open_authority(tls, PEER), PEER, 1, ())
    pair = tls / "pair.pem"
    pair.write_text(pem.with_suffix(".key").read_text() + pem.read_text(), encoding="ascii")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": pair,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": tls / "ca.pem",
    }


def _measured(client: dict[str, Any], pids: list[int], amount: Amount) -> Figures:
    _create_topic(client, amount.partitions)
    producer = Producer(
        client | {"acks": "all", "delivery.report.only.error": True, "on_delivery": raise_failed}
    )

    def produce(megabytes: int) -> None:
        send(producer, TOPIC, amount.partitions, megabytes)

    total = amount.warm_up_megabytes + amount.megabytes
    produce(amount.warm_up_megabytes)
    produced = throughput(pids, amount.megabytes, lambda: produce(amount.megabytes))
    consumed = throughput(pids, total, lambda: _consume(client, amount.partitions, total))
    return {f"produce_{name}": value for name, value in produced.items()} | {
        f"consume_{name}": value for name, value in consumed.items()
    }


def _start(servers: ReplicaSet, variant: str) -> dict[str, Any]:
    """Start the servers; return the client's configuration."""
    client: dict[str, Any] = {"bootstrap.servers": servers.bootstrap, "log_level": 0}
    if variant == "secure":
        made = make_replica_set(
            servers.directory, count=3, base_port=servers.base_port, is_secure=True
        )
        secure_replica_set(made)
        settings = read_client_settings(made.client_file)
        client |= {
            "security.protocol": settings.protocol.value,
            "ssl.ca.location": str(settings.ca),
            "sasl.mechanism": settings.mechanism,
            "sasl.username": settings.user,
            "sasl.password": settings.password,
        }
    servers.up()
    return client


def _create_topic(client: dict[str, Any], partitions: int) -> None:
    wanted = NewTopic(TOPIC, num_partitions=partitions, replication_factor=REPLICATION)
    admin = AdminClient(client)  # kept until the answer has arrived
    admin.create_topics([wanted])[TOPIC].result(timeout=CALL_SECONDS_MAX)


def _consume(client: dict[str, Any], partitions: int, megabytes: int) -> None:
    consumer = Consumer(client | {"group.id": "encryption", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
    left = megabytes * 1_000
    while left > 0:
        found = consumer.consume(RECORDS_PER_CALL, CALL_SECONDS_MAX)
        assert found, f"{left} records did not come"
        left -= sum(message.error() is None for message in found)
    consumer.close()
