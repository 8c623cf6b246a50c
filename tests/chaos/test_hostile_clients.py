"""Hostile clients of one user, and unauthenticated ones, beside regular clients: forty of each.

HOSTILE_SECONDS sets the length of each phase: 4 s by default, 300 for the full form (`make
hostile`), which is for an otherwise idle machine, and limits the effect on others. Calm phases
alternate with those with hostile clients, so that both are measured on the same machine.
HOSTILE_KINDS restricts the hostile clients' requests (`harness/hostile.py`). They take processor
time that others leave, as clients on machines of their own would; HOSTILE_CPU=equal lets them
compete for it.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.chaos.conftest import Figure
from tests.chaos.harness.cores import Loops
from tests.chaos.harness.hostile import PREFIX, Target, Told, hostile
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.commands.checks.cluster_status import collect
from vdl.commands.servers.replica_set import make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.config.values import parse_address
from vdl.kafka.security.client_settings import ClientSettings, read_client_settings
from vdl.kafka.security.protocol import SCRAM_SHA_512, SecurityProtocol

SECONDS = float(os.environ.get("HOSTILE_SECONDS", "4"))
FULL_SECONDS = 300
RATIO_MAX = 2.0
PLAIN_STEP = 4
LISTENER = """
[[listeners]]
name = "PLAINTEXT"
listen = "127.0.0.1:{plain}"

[audit]
file = "audit.log"
"""
TOPIC, GROUP = "beside", "readers"
RATE = 50
ACT_SECONDS = 0.25
PASSWORD = "a-password-of-users-7c1f"
CALL_SECONDS = 60.0
RSS_MORE_MAX = 512 << 20
"""Sum of the budgets for requests, answers, and batches and data to be checked or decoded.

See docs/operate.md.
"""


@dataclass
class Seen:
    """Observations of the regular clients in one phase; in seconds."""

    produced: list[float] = field(default_factory=list)
    consumed: list[float] = field(default_factory=list)
    acts: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def ms(self, percent: int) -> dict[str, float]:
        """Return a percentile of each kind of operation, in ms."""
        rows = {"produce": self.produced, "consume": self.consumed, "act": self.acts}
        return {
            name: round(statistics.quantiles(times, n=100)[percent - 1] * 1e3, 1)
            for name, times in rows.items()
            if len(times) > 1
        }


class Users:
    """A producer, a consumer group and an administrator, which run until `stop`."""

    def __init__(self, alice: dict[str, Any], admin: dict[str, Any]) -> None:
        self.seen = Seen()
        """Observations of the current phase."""
        self.assignments = 0
        self.acts = 0
        self._over = threading.Event()
        self._producer = Producer({**alice, "acks": "all", "linger.ms": 0, "log_level": 0})
        self._consumer = Consumer({**alice, "group.id": GROUP, "log_level": 0})
        self._consumer.subscribe([TOPIC], on_assign=self._assigned)
        self._admin = AdminClient({**admin, "log_level": 0})
        self._threads = [
            threading.Thread(target=act) for act in (self._produce, self._consume, self._administer)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert self._producer.flush(CALL_SECONDS) == 0
        self._consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[Any]) -> None:
        del consumer, partitions
        self.assignments += 1

    def _produce(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            began = time.monotonic()

            def told(error: KafkaError | None, message: Message, began: float = began) -> None:
                del message
                if error is not None:
                    self.seen.failed.append(f"produce: {error}")
                self.seen.produced.append(time.monotonic() - began)

            self._producer.produce(TOPIC, repr(began).encode(), on_delivery=told)
            due += 1 / RATE
            self._producer.poll(0)
            while (left := due - time.monotonic()) > 0:
                self._producer.poll(left)

    def _consume(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            value, error = message.value(), message.error()
            if error is not None or value is None:
                self.seen.failed.append(f"consume: {error}")
            else:
                self.seen.consumed.append(time.monotonic() - float(value))

    def _administer(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            began = time.monotonic()
            entry = ConfigEntry(
                "retention.ms",
                str(10_000_000 + number),
                incremental_operation=AlterConfigOpType.SET,
            )
            resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
            done = self._admin.incremental_alter_configs([resource], request_timeout=CALL_SECONDS)
            try:
                done[resource].result(CALL_SECONDS)
            except Exception as error:  # noqa: BLE001 - any error is recorded
                self.seen.failed.append(f"act: {error}")
            self.acts += 1
            self.seen.acts.append(time.monotonic() - began)
            self._over.wait(ACT_SECONDS)


@pytest.fixture
def servers() -> Iterator[ReplicaSet]:
    found = ReplicaSet(3)
    failed = "test_hostile_clients"
    try:
        configure(found)
        found.up()
        yield found
        failed = ""
    finally:
        found.close(failed=failed)


def configure(servers: ReplicaSet) -> None:
    """Configure logins, a port without authentication, an audit log, and tokens."""
    made = make_replica_set(servers.directory, count=3, base_port=servers.base_port, is_secure=True)
    secure_replica_set(made)
    write_configs(made)
    key = servers.directory / "token_key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    for server in made.servers:
        plain = servers.base_port + server.id - 1 + PLAIN_STEP
        text = server.config_file.read_text(encoding="utf-8")
        text = text.replace("[security]\n", f'[security]\ndelegation_token_key = "{key}"\n')
        server.config_file.write_text(text + LISTENER.format(plain=plain), encoding="utf-8")


def prepare(admin: AdminClient) -> None:
    """Create the regular clients' topic, two users, and their permissions."""
    admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(CALL_SECONDS)
    for name in ("alice", "mallory"):
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        change = UserScramCredentialUpsertion(name, info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(CALL_SECONDS)
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    rows = [
        (ResourceType.TOPIC, TOPIC, literal, "User:alice"),
        (ResourceType.GROUP, GROUP, literal, "User:alice"),
        (ResourceType.TOPIC, PREFIX, prefixed, "User:mallory"),
        (ResourceType.GROUP, PREFIX, prefixed, "User:mallory"),
    ]
    bindings = [
        AclBinding(kind, name, pattern, who, "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for kind, name, pattern, who in rows
    ]
    for done in admin.create_acls(bindings).values():
        done.result(CALL_SECONDS)
    topic = f"{PREFIX}topic"
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(CALL_SECONDS)


def terms(servers: ReplicaSet, settings: ClientSettings) -> dict[str, tuple[int, int]]:
    """Return leader and term of each group."""
    found = collect([parse_address(one) for one in servers.bootstrap.split(",")], settings)
    rows = [*found.groups, *(one for topic in found.topics for one in topic.partitions)]
    return {row.name: (row.leader, row.term) for row in rows}


def noted(servers: ReplicaSet) -> int:
    """Return the number of the administrator's actions in the audit logs."""
    count = 0
    for server_id in servers.server_ids:
        for path in sorted(servers.server(server_id).directory.glob("audit.log*")):
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                is_act = row.get("api") == "IncrementalAlterConfigs"
                count += is_act and row.get("principal") == "User:admin"
    return count


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize("who", ["mallory", "nobody"])
def test_hostile_clients_stop_nobody(who: str, servers: ReplicaSet, figure: Figure) -> None:
    """Hostile clients do not affect others.

    No operation fails or is refused, no election happens, no member of their group is expelled,
    memory stays within its budgets, and each action of the administrator is audited.
    """
    own = read_client_settings(servers.directory / "client.properties")

    def settings(user: str, password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": servers.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(own.ca),
            "sasl.mechanism": SCRAM_SHA_512,
            "sasl.username": user,
            "sasl.password": password,
        }

    admin = settings(own.user, own.password)
    prepare(AdminClient({**admin, "log_level": 0}))
    base = servers.base_port
    logins = tuple(base + number for number in range(3))
    plain = tuple(port + PLAIN_STEP for port in logins)
    mallory = ClientSettings(
        SecurityProtocol.SASL_SSL, ca=own.ca, user="mallory", password=PASSWORD
    )
    target = Target(
        "127.0.0.1",
        logins if who == "mallory" else plain,
        mallory if who == "mallory" else ClientSettings(),
        logins,
        mallory,
    )
    users = Users(settings("alice", PASSWORD), admin)
    users.start()
    calm, between, struck, told = Seen(), Seen(), Seen(), list[Told]()
    try:
        until(lambda: len(users.seen.consumed) > RATE and len(users.seen.acts) > 1)
        before = terms(servers, own)
        assigned = users.assignments
        rss = max(servers.rss_bytes(server_id) for server_id in servers.server_ids)
        most = rss
        pids = [servers.pid(server_id) for server_id in servers.server_ids]
        for seen in (calm, struck, calm):
            users.seen, loops = seen, Loops(pids)
            if seen is calm:
                time.sleep(SECONDS / 2)
                calm_loops = loops.shares()
                continue
            users.seen = between  # until the hostile clients are ready
            with hostile(target, told):
                users.seen, loops = seen, Loops(pids)
                over = time.monotonic() + SECONDS
                while time.monotonic() < over:
                    time.sleep(0.2)
                    now = [servers.rss_bytes(server_id) for server_id in servers.server_ids]
                    most = max(most, *now)
                struck_loops = loops.shares()
        after = terms(servers, own)
    finally:
        users.stop()
    acts, lines = users.acts, noted(servers)
    figure("did", told[0].done)
    figure("ended", told[0].ended)
    figure("hostile_cpu_seconds", round(told[0].cpu_seconds, 1))
    for name, seen, ran in (("calm", calm, calm_loops), ("struck", struck, struck_loops)):
        figure(f"{name}_p50_ms", seen.ms(50))
        figure(f"{name}_p99_ms", seen.ms(99))
        figure(f"{name}_loops_ran_and_waited", ran)
    figure("load", os.getloadavg()[0])
    figure("rss_mb", [round(rss / 1e6), round(most / 1e6)])
    figure("acts", [acts, lines])
    assert calm.failed == between.failed == struck.failed == []
    assert after == before
    assert users.assignments == assigned
    assert most - rss <= RSS_MORE_MAX
    assert lines >= acts
    if SECONDS >= FULL_SECONDS:
        ratios = {name: ms / calm.ms(99)[name] for name, ms in struck.ms(99).items()}
        assert max(ratios.values()) <= RATIO_MAX, ratios


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CALL_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
