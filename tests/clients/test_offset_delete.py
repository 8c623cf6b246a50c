"""Deletion of a consumer group's offsets by unmodified clients, as with Kafka (KIP-496)."""

from __future__ import annotations

import time

import pytest

from tests.clients.clients import Client
from tests.clients.conftest import Drivers
from tests.clients.scenarios import numbered, read
from tests.clients.topics import Topics
from vdl.errors import ErrorCode

SECONDS = 20.0


def test_deleted_offsets_are_gone_and_those_in_use_stay(
    client: Client, drivers: Drivers, topics: Topics
) -> None:
    """A live group keeps those of its members' subscribed topics; an empty one keeps none."""
    if client.name == "confluent-kafka":
        pytest.skip("confluent-kafka does not offer DeleteConsumerGroupOffsets")
    driver = drivers.of(client, 1)[0]
    used, left = topics.create("used"), topics.create("left")
    places = [(left, 0), (used, 0)]
    group = topics.unused_name("group")
    assert driver.delete_offsets(group, places) == [ErrorCode.GROUP_ID_NOT_FOUND] * 2
    driver.produce(numbered(used, range(3)) + numbered(left, range(3)))
    driver.open(group=group)
    driver.ask("subscribe", topics=[used, left])
    read(driver, 6)
    driver.ask("commit")
    driver.ask("close")

    driver.open(group=group)
    driver.ask("subscribe", topics=[used])
    deadline = time.monotonic() + SECONDS
    while not driver.poll().owned:
        assert time.monotonic() < deadline
    errors = driver.delete_offsets(group, places)
    assert errors == [ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert driver.committed(places) == [None, 3]
    driver.ask("close")

    for _ in range(2):
        assert driver.delete_offsets(group, places) == [ErrorCode.NONE] * 2
    unknown = (topics.unused_name("no"), 0)
    errors = driver.delete_offsets(group, [unknown])
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    driver.open(group=group)
    driver.ask("subscribe", topics=[used])
    assert driver.committed(places) == [None, None]
    driver.ask("close")
