"""Authenticated users and their permissions: `vdl acl` and `vdl quota` with librdkafka."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from vdl.commands.servers.replica_set import make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.kafka.security.client_settings import read_client_settings

SECONDS = 20.0
PASSWORD = "correct-horse-7-battery"
TOPIC, GROUP = "orders", "readers"
REFUSED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
SETTINGS = "auto.create.topics.enable = false\n"


@dataclass(frozen=True)
class Secured:
    """The replica set, and the settings of its users."""

    servers: ReplicaSet

    def vdl(self, *arguments: str, text: str = "") -> str:
        """Return a command's output, run as the user `admin`."""
        done = subprocess.run(
            [sys.executable, "-m", "vdl.cli", *arguments, "--bootstrap", self.servers.bootstrap,
             "--config", str(self.servers.directory / "client.properties")],
            input=text, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def login(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        return {
            "bootstrap.servers": self.servers.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.servers.directory / "tls" / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
        }

    def admin(self) -> AdminClient:
        settings = read_client_settings(self.servers.directory / "client.properties")
        return AdminClient(self.login("admin", settings.password))


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    servers = ReplicaSet(3)
    made = make_replica_set(servers.directory, count=3, base_port=servers.base_port, is_secure=True)
    secure_replica_set(made)
    write_configs(made)
    for server in made.servers:
        text = server.config_file.read_text()
        assert "authorizer = true" in text, "what --secure writes"
        server.config_file.write_text(text.replace("[kafka]\n", "[kafka]\n" + SETTINGS))
    found = Secured(servers)
    try:
        servers.up()
        for user in ("alice", "bob"):
            found.vdl("user", "add", user, text=PASSWORD + "\n")
        admin = found.admin()
        (future,) = admin.create_topics([NewTopic(TOPIC, 3, 3)]).values()
        future.result(SECONDS)
        yield found
    finally:
        servers.close()


def eventually(ask: Callable[[], object], wanted: object) -> object:
    deadline = time.monotonic() + SECONDS
    while (answer := ask()) != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def produced(secured: Secured, user: str, **more: str) -> int | None:
    """Return the error of producing one record; None if there was none."""
    errors: list[KafkaError | None] = []
    producer = Producer(secured.login(user) | {"message.timeout.ms": 10_000} | more)
    try:
        producer.produce(TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(SECONDS)
    except KafkaException as error:
        return error.args[0].code()
    (found,) = errors
    return None if found is None else found.code()


def consumed(secured: Secured, user: str) -> int | None:
    consumer = Consumer(
        secured.login(user)
        | {"group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": 6_000}
    )
    try:
        consumer.subscribe([TOPIC])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                return None if message.error() is None else message.error().code()
    finally:
        consumer.close()
    raise AssertionError("neither a record nor an error")


def test_who_may_nothing_is_refused_and_sees_nothing(secured: Secured) -> None:
    """Default deny; the admin is a super user."""
    assert list(AdminClient(secured.login("alice")).list_topics(timeout=SECONDS).topics) == []
    assert TOPIC in secured.admin().list_topics(timeout=SECONDS).topics
    assert produced(secured, "alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(secured, "alice") in REFUSED


def test_users_may_what_they_were_allowed(secured: Secured) -> None:
    """Alice writes, also idempotently; bob reads in a group; neither may do the other's."""
    secured.vdl("acl", "add", "topic", TOPIC, "--principal", "User:alice", "--operation", "write")
    for kind, name in (("topic", TOPIC), ("group", GROUP)):
        secured.vdl("acl", "add", kind, name, "--principal", "User:bob", "--operation", "read")
    assert eventually(lambda: produced(secured, "alice"), None) is None
    assert produced(secured, "alice", **{"enable.idempotence": "true"}) is None
    assert consumed(secured, "bob") is None
    assert produced(secured, "bob") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(secured, "alice") in REFUSED
    assert secured.vdl("acl", "list").splitlines() == [
        "User:alice is allowed write on topic orders",
        "User:bob is allowed read on topic orders",
        "User:bob is allowed read on group readers",
    ]
    (of_alice,) = json.loads(secured.vdl("acl", "list", "--principal", "User:alice", "--json"))[
        "acls"
    ]
    assert of_alice == {
        "principal": "User:alice", "permission": "allow", "operation": "write",
        "resource": "topic", "name": TOPIC, "pattern": "literal", "host": "*",
    }  # fmt: skip


def test_denial_for_all_users_leaves_out_none_but_the_super_user(secured: Secured) -> None:
    """The denial is then removed."""
    what = ("topic", "ord", "--prefix", "--principal", "User:*", "--operation", "all")
    secured.vdl("acl", "add", *what, "--deny")
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert eventually(lambda: produced(secured, "alice"), refused) == refused
    removed = secured.vdl("acl", "remove", *what)
    assert removed == "User:* is denied all on topic ord...\n"
    assert eventually(lambda: produced(secured, "alice"), None) is None


def test_user_over_its_quota_waits_and_others_do_not(secured: Secured) -> None:
    """librdkafka receives the throttle time in its answers, and has to delay sending."""
    secured.vdl("quota", "set", "producer_byte_rate=100000", "--user", "alice")
    assert secured.vdl("quota", "list") == "user alice: producer_byte_rate=100000\n"
    told: list[float] = []
    producer = Producer(
        secured.login("alice") | {"throttle_cb": lambda event: told.append(event.throttle_time)}
    )
    for _ in range(14):  # ten seconds' worth may be used at once
        producer.produce(TOPIC, bytes(100_000), partition=0)
        assert producer.flush(SECONDS) == 0
    assert max(told) > 0
    secured.vdl("quota", "remove", "producer_byte_rate", "--user", "alice")
    assert secured.vdl("quota", "list") == ""
