"""What encryption costs: the same servers with TLS between all and logins, beside plain ones.

A run is three new servers as `vdl up` makes them, with or without `--secure`, and a topic. Records
of 1,000 bytes are produced as fast as librdkafka sends them, acks=all, then all are consumed from
memory. With `--secure` servers encrypt each record once to clients on each way and once to each
follower, and ask ACLs about each request.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.load import raise_failed, send, throughput
from tests.bench.rounds import Comparison, Figures
from tests.bench.topics import CALL_SECONDS_MAX, REPLICATION
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.commands.replica_set import make_replica_set
from vdl.commands.secure_set import secure_replica_set
from vdl.kafka.security.client_settings import read_client_settings

RUNS = ("plain", "secure")
TOPIC = "encrypted"
WARM_UP_MB = 30
RECORDS_PER_CALL = 5_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=300, help="of payload, in each run")
    parser.add_argument("--partitions", type=int, default=3)
    parser.set_defaults(rounds=5)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    runs = {name: partial(run, name, options.megabytes, options.partitions) for name in RUNS}
    yield Comparison(runs, RUNS[0])


def run(variant: str, megabytes: int, partitions: int) -> Figures:
    servers = ReplicaSet(3)
    try:
        client = _start(servers, variant)
        _create_topic(client, partitions)
        producer = Producer(
            client
            | {
                "acks": "all",
                "delivery.report.only.error": True,
                "on_delivery": raise_failed,
            }
        )
        send(producer, TOPIC, partitions, WARM_UP_MB)
        pids = [servers.pid(number) for number in servers.server_ids]
        produced = throughput(pids, megabytes, lambda: send(producer, TOPIC, partitions, megabytes))
        total = WARM_UP_MB + megabytes
        consumed = throughput(pids, total, lambda: _consume(client, partitions, total))
    finally:
        servers.close()
    return {f"produce_{name}": value for name, value in produced.items()} | {
        f"consume_{name}": value for name, value in consumed.items()
    }


def _start(servers: ReplicaSet, variant: str) -> dict[str, Any]:
    """Start them; how a client connects."""
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
    admin = AdminClient(client)  # kept until the answer is here
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
