"""Settings of servers, consumer groups and metrics subscriptions, by an unmodified client."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.clients.topics import Topics

SECONDS = 20.0
PAUSE_SECONDS = 0.05


@pytest.fixture
def admin(bootstrap: str) -> Iterator[AdminClient]:
    client = AdminClient({"bootstrap.servers": bootstrap})
    yield client
    limit_batches(client, None)  # servers' settings must not outlive a failing test


def limit_batches(admin: AdminClient, limit: str | None) -> None:
    """Set the largest batch on every server; None: as in its file."""
    for server in admin.list_topics(timeout=SECONDS).brokers:
        alter(admin, ResourceType.BROKER, str(server), "message.max.bytes", limit)


def alter(
    admin: AdminClient, kind: ResourceType, name: str, setting: str, value: str | None
) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(setting, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def described(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    entries: dict[str, ConfigEntry] = future.result(SECONDS)
    return entries


def fate(bootstrap: str, topic: str, size: int) -> KafkaError | None:
    """Return the result for the producer of one record."""
    told: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        told.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 10_000_000})
    producer.produce(topic, bytes(size), partition=0, on_delivery=delivered)
    assert producer.flush(SECONDS) == 0
    return told[0]


def test_setting_of_servers_is_in_force_without_a_restart(
    admin: AdminClient, bootstrap: str, topics: Topics
) -> None:
    """A setting takes effect on the leader of any partition as soon as it has applied it.

    Its removal takes effect as quickly.
    """
    topic = topics.create("limited", partitions=1)
    for limit, code in (("2000", KafkaError.MSG_SIZE_TOO_LARGE), (None, None)):
        limit_batches(admin, limit)
        deadline = time.monotonic() + SECONDS
        while True:
            error = fate(bootstrap, topic, 5_000)
            if (None if error is None else error.code()) == code:
                break
            assert time.monotonic() < deadline, error
            time.sleep(PAUSE_SECONDS)


def test_server_shows_what_was_set_for_it(admin: AdminClient) -> None:
    """Each server shows its own; a setting that only its file may change is refused."""
    server = next(iter(admin.list_topics(timeout=SECONDS).brokers))
    alter(admin, ResourceType.BROKER, str(server), "log.cleaner.threads", "3")
    entry = described(admin, ResourceType.BROKER, str(server))["log.cleaner.threads"]
    assert (entry.value, entry.is_read_only) == ("3", False)
    alter(admin, ResourceType.BROKER, str(server), "log.cleaner.threads", None)
    with pytest.raises(KafkaException):
        alter(admin, ResourceType.BROKER, str(server), "num.partitions", "3")
