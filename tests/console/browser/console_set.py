"""Real servers with the console, and the topics, records and consumer groups that pages show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.replica_set import ReplicaSet
from tests.hangs import HANG_SECONDS
from vdl.commands.servers.replica_set import HTTP_PORT_STEP, make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.kafka.security.client_settings import read_properties

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"\u202e&amp;'
HOSTILE_SHOWN = HOSTILE.replace("\u202e", "\\u202e")
"""As a page shows it: a character that turns the direction of text is named."""
BIG = 12_345_678_901_234_567_890_123
"""A number that a browser would round."""
RECORDS = 120


class ConsoleSet(ReplicaSet):
    """A replica set whose servers have the console switched on."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        is_secure: bool = False,
        changes: bool = True,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """`more`: further keys of the table `http`."""
        super().__init__(nodes)
        made = make_replica_set(
            self.directory, count=nodes, base_port=self.base_port, is_secure=is_secure
        )
        if is_secure:
            secure_replica_set(made)
        write_configs(made)
        for server in made.servers:
            text = server.config_file.read_text(encoding="utf-8")
            lines = [line for line in text.splitlines() if not line.startswith("console")]
            at = lines.index("[http]") + 1
            lines[at:at] = ['console = "loopback"', f"console_changes = {str(changes).lower()}"]
            lines[at:at] = [f'{key} = "{value}"' for key, value in (more or {}).items()]
            server.config_file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def origin(self, server_id: int = 1) -> str:
        """Return the origin of a server's console."""
        return f"http://127.0.0.1:{self.base_port + server_id - 1 + HTTP_PORT_STEP}"


@contextmanager
def console_set(
    name: str,
    nodes: int = 3,
    *,
    is_secure: bool = False,
    changes: bool = True,
    replicas_max: int = 0,
    more: Mapping[str, str] | None = None,
) -> Iterator[ConsoleSet]:
    """Yield servers that serve clients and the console; data is kept if the test `name` fails.

    `replicas_max`: replicas of partitions that a server may have; 0: as many as by default."""
    servers = ConsoleSet(nodes, is_secure=is_secure, changes=changes, more=more)
    if replicas_max:
        servers.configure({"cluster.replicas_per_server": replicas_max})
    is_over = False
    try:
        servers.up("--timeout", "55")  # Chromium and other stages take the processors, too
        yield servers
        is_over = True
    finally:
        servers.close(failed="" if is_over else name)


def make_topics(settings: dict[str, str], partitions: Mapping[str, int]) -> None:
    """Create topics, by name with their number of partitions."""
    admin = AdminClient(settings)
    made = admin.create_topics(
        [NewTopic(name, count, replication_factor=-1) for name, count in partitions.items()]
    )
    for future in made.values():
        future.result(HANG_SECONDS)


def fill(settings: dict[str, str], topic: str) -> None:
    """Write `RECORDS` records to partition 0: JSON, text, bytes, hostile ones and none in turn."""
    producer = Producer(settings)
    for number in range(RECORDS):
        producer.produce(
            topic,
            partition=0,
            key=None if number % 10 == 9 else f"customer-{number}",
            value=value_of(number),
            headers=[("trace", bytes([number, 0xFF])), (HOSTILE, HOSTILE.encode()), ("none", None)],
            timestamp=1_790_000_000_000 + number * 1000,
        )
    assert producer.flush(HANG_SECONDS) == 0


def value_of(number: int) -> bytes | None:
    """Return the value of a record by its offset."""
    return (
        f'{{"id": {number}, "big": {BIG}, "items": [{{"sku": "A"}}], "name": "x"}}'.encode(),
        f"line {number}\nsecond line".encode(),
        bytes([0, 255, number]),
        HOSTILE.encode(),
        None,
    )[number % 5]


@contextmanager
def consuming(settings: dict[str, str], topic: str, group: str, client: str) -> Iterator[None]:
    """Keep a member of a consumer group that has read 20 records of a topic."""
    consumer = Consumer(
        {
            **settings,
            "group.id": group,
            "client.id": client,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + HANG_SECONDS
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline, "the consumer got no partitions"
        consumer.commit(offsets=[TopicPartition(topic, 0, 20)], asynchronous=False)
        yield
    finally:
        consumer.close()


def client_settings(servers: ConsoleSet) -> dict[str, str]:
    """Return the settings of a client of the set."""
    settings = {"bootstrap.servers": servers.bootstrap}
    file = servers.directory / "client.properties"
    if file.exists():
        wanted = ("security.", "sasl.mech", "sasl.user", "sasl.pass", "ssl.ca")
        settings |= {
            name: value for name, value in read_properties(file).items() if name.startswith(wanted)
        }
    return settings
