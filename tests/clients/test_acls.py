"""Authorization with unmodified clients: three servers that check ACLs, without logins.

Without a login every client is User:ANONYMOUS. Resources without an ACL are open here, so ACLs
close the resources that they name.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.chaos.harness.replica_set import ReplicaSet
from tests.clients.raw import RawConnection
from tests.clients.topics import Topics
from vdl.errors import ErrorCode
from vdl.kafka.wire.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

SECONDS = 20.0
ANYBODY = "User:ANONYMOUS"
DENY, ALLOW = AclPermissionType.DENY, AclPermissionType.ALLOW
REVOKED_SECONDS_MAX = 1.0
PHASE_SECONDS = 1.5
"""Time between two changes under load."""
Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def secured() -> Iterator[ReplicaSet]:
    replica_set = ReplicaSet(3)
    try:
        replica_set.configure(
            {
                "security.authorizer": True,
                "kafka.allow.everyone.if.no.acl.found": True,
                "audit.file": "audit.log",
            }
        )
        replica_set.up()
        yield replica_set
    finally:
        replica_set.close()


@pytest.fixture(scope="module")
def made(secured: ReplicaSet) -> Topics:
    return Topics(secured.bootstrap)


@pytest.fixture
def admin(secured: ReplicaSet) -> AdminClient:
    return AdminClient({"bootstrap.servers": secured.bootstrap})


def acl(
    name: str,
    operation: AclOperation,
    permission: AclPermissionType,
    *,
    resource: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    principal: str = ANYBODY,
) -> AclBinding:
    return AclBinding(resource, name, pattern, principal, "*", operation, permission)


def create(admin: AdminClient, *bindings: AclBinding) -> None:
    for future in admin.create_acls(list(bindings)).values():
        future.result(SECONDS)


def delete(admin: AdminClient, name: str, resource: ResourceType = ResourceType.TOPIC) -> int:
    """Delete bindings; return their number."""
    wanted = AclBindingFilter(
        resource, name, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    (future,) = admin.delete_acls([wanted]).values()
    return len(future.result(SECONDS))


def eventually(ask: Callable[[], Answer], wanted: Callable[[Answer], bool]) -> Answer:
    """Repeat until the answer is as wanted: servers apply the catalog at different times."""
    deadline = time.monotonic() + SECONDS
    while not wanted(answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def produced(secured: ReplicaSet, topic: str) -> int | None:
    """Return the error of producing one record; None if there was none."""
    producer = Producer({"bootstrap.servers": secured.bootstrap, "message.timeout.ms": 10_000})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    (error,) = errors
    return None if error is None else error.code()


def consumed(secured: ReplicaSet, topic: str, group: str) -> int | None:
    """Return the error of reading one record in a group; None if there was none."""
    consumer = Consumer(
        {
            "bootstrap.servers": secured.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None:
                return None if message.error() is None else message.error().code()
    except KafkaException as error:
        return error.args[0].code()
    finally:
        consumer.close()
    raise AssertionError("neither a record nor an error")


def test_acls_are_created_described_and_deleted(admin: AdminClient) -> None:
    """Literal and prefixed ones, by resource and by match."""
    bindings = [
        acl("described", AclOperation.READ, ALLOW, principal="User:alice"),
        acl("desc", AclOperation.WRITE, ALLOW, pattern=ResourcePatternType.PREFIXED),
        acl("described", AclOperation.READ, DENY, resource=ResourceType.GROUP),
    ]
    create(admin, *bindings)

    def matching() -> list[AclBinding]:
        wanted = AclBindingFilter(
            ResourceType.TOPIC, "described", ResourcePatternType.MATCH, None, None,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        found: list[AclBinding] = admin.describe_acls(wanted).result(SECONDS)
        return found

    assert set(eventually(matching, lambda found: len(found) == 2)) == set(bindings[:2])
    assert delete(admin, "described") == 1
    assert delete(admin, "desc") == 1
    assert delete(admin, "described", ResourceType.GROUP) == 1
    assert eventually(matching, lambda found: not found) == []


def test_topic_is_closed_and_opened_to_producers_and_consumers(
    secured: ReplicaSet, admin: AdminClient, made: Topics
) -> None:
    """ACLs close and open a topic, which is invisible to clients that may not describe it."""
    topic = made.create("closed", partitions=1)
    assert produced(secured, topic) is None
    create(admin, acl(topic, AclOperation.WRITE, DENY), acl(topic, AclOperation.READ, ALLOW))
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert eventually(lambda: produced(secured, topic), lambda error: error is not None) == refused
    assert consumed(secured, topic, f"{topic}-readers") is None
    create(admin, acl(topic, AclOperation.ALL, DENY))
    visible = eventually(lambda: topic in admin.list_topics().topics, lambda there: not there)
    assert not visible
    assert consumed(secured, topic, f"{topic}-readers") == refused
    assert delete(admin, topic) == 3
    assert eventually(lambda: produced(secured, topic), lambda error: error is None) is None


def test_group_is_closed(secured: ReplicaSet, admin: AdminClient, made: Topics) -> None:
    """Permission for the topic alone is not enough."""
    topic = made.create("grouped", partitions=1)
    assert produced(secured, topic) is None
    group = f"{topic}-closed"
    create(
        admin,
        acl(group, AclOperation.READ, ALLOW, resource=ResourceType.GROUP, principal="User:bob"),
    )
    refused = KafkaError.GROUP_AUTHORIZATION_FAILED
    assert (
        eventually(lambda: consumed(secured, topic, group), lambda error: error is not None)
        == refused
    )
    assert consumed(secured, topic, f"{topic}-open") is None
    assert delete(admin, group, ResourceType.GROUP) == 1


def test_topics_are_made_where_a_prefix_allows_it(admin: AdminClient, made: Topics) -> None:
    """A client that may not create topics in the cluster may create those of a prefix."""
    allowed, refused = made.unused_name("mine"), made.unused_name("other")
    prefix = allowed[:-2]
    create(
        admin,
        acl("kafka-cluster", AclOperation.ALTER, ALLOW, resource=ResourceType.BROKER),
        acl(prefix, AclOperation.CREATE, ALLOW, pattern=ResourcePatternType.PREFIXED),
        acl(refused, AclOperation.READ, ALLOW),
    )

    def made_one(name: str) -> int | None:
        (future,) = admin.create_topics([NewTopic(name, 1, 3)]).values()
        try:
            future.result(SECONDS)
        except KafkaException as error:
            return error.args[0].code()
        return None

    assert made_one(refused) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert made_one(allowed) is None
    for name, kind in (
        (prefix, ResourceType.TOPIC), (refused, ResourceType.TOPIC),
        ("kafka-cluster", ResourceType.BROKER),
    ):  # fmt: skip
        assert delete(admin, name, kind) == 1


def test_acls_change_under_load_and_nobody_else_notices(
    secured: ReplicaSet, admin: AdminClient, made: Topics
) -> None:
    """No request of a client with permission fails.

    A client without is refused on every server within a second, and admitted again as quickly.
    """
    kept, revoked = made.create("kept", partitions=3), made.create("revoked", partitions=1)
    create(admin, acl(revoked, AclOperation.ALL, ALLOW))
    denial = acl(revoked, AclOperation.DESCRIBE, DENY)
    stop = threading.Event()
    errors: list[KafkaError | None] = []
    refusals: list[tuple[float, bool]] = []

    def produce() -> None:
        producer = Producer({"bootstrap.servers": secured.bootstrap, "linger.ms": 0, "retries": 0})
        while not stop.is_set():
            producer.produce(kept, b"x", on_delivery=lambda error, _: errors.append(error))
            producer.poll(0.002)
        producer.flush(SECONDS)

    def ask(server_id: int) -> None:
        host, _, port = secured.address(server_id).partition(":")
        asked = ListOffsetsTopic(revoked, [ListOffsetsPartition(0, -1, -1)])
        connection = RawConnection((host, int(port)))
        try:
            while not stop.wait(0.005):
                answer = connection.ask(ListOffsetsRequest(-1, 0, [asked]), key=2, version=4)
                code = answer.topics[0].partitions[0].error_code
                refusals.append((time.monotonic(), code == ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        finally:
            connection.close()

    threads = [threading.Thread(target=produce)]
    threads += [threading.Thread(target=ask, args=(server,)) for server in secured.server_ids]
    for thread in threads:
        thread.start()
    changes: list[tuple[float, bool]] = [(time.monotonic(), False)]
    ends: list[float] = []
    try:
        for _ in range(3):
            time.sleep(PHASE_SECONDS)
            ends.append(time.monotonic())
            create(admin, denial, acl(f"{kept}-x", AclOperation.READ, DENY))
            changes.append((time.monotonic(), True))
            time.sleep(PHASE_SECONDS)
            ends.append(time.monotonic())
            (future,) = admin.delete_acls([filter_of(denial)]).values()
            assert future.result(SECONDS) == [denial]
            changes.append((time.monotonic(), False))
        time.sleep(PHASE_SECONDS)
        ends.append(time.monotonic())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(errors) > 100
    assert set(errors) == {None}
    for (at, is_closed), until in zip(changes, ends, strict=True):
        settled = [refused for when, refused in refusals if at + REVOKED_SECONDS_MAX < when < until]
        assert len(settled) > 10
        assert set(settled) == {is_closed}


def filter_of(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def test_what_was_denied_stands_in_the_audit_log(secured: ReplicaSet, made: Topics) -> None:
    """The audit log has principal, host and operation of every denial in this test.

    Each line is a JSON object.
    """
    lines = [
        json.loads(line)
        for path in Path(secured.directory).rglob("audit.log")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    denied = [line for line in lines if line["event"] == "denied"]
    allowed = [line for line in lines if line["event"] == "allowed"]
    assert denied
    assert {(line["principal"], line["host"]) for line in denied} == {(ANYBODY, "127.0.0.1")}
    assert {"Produce", "CreateTopics"} <= {line["api"] for line in denied}
    assert {"CreateAcls", "DeleteAcls"} <= {line["api"] for line in allowed}
