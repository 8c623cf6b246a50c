"""Unmodified clients with group.protocol=consumer, also beside classic members (KIP-848)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tests.clients.clients import Client
from tests.clients.conftest import Drivers
from tests.clients.driver import Driver, Partition
from tests.clients.scenarios import numbered
from tests.clients.topics import Topics

SPEAKERS = ("confluent-kafka", "java-4.4")
PARTITIONS = 4
SECONDS = 40.0


def wait_shared(drivers: Sequence[Driver], topic: str, values: set[bytes]) -> list[bytes]:
    """Poll until the drivers share all partitions and these values have come.

    Return all values that came.
    """
    deadline = time.monotonic() + SECONDS
    everything = {(topic, index) for index in range(PARTITIONS)}
    came: list[bytes] = []
    while True:
        polled = [driver.poll() for driver in drivers]
        came += [record.value or b"" for one in polled for _, record in one.records]
        owned: list[set[Partition]] = [set(one.owned) for one in polled]
        if (
            set().union(*owned) == everything
            and sum(map(len, owned)) == PARTITIONS
            and max(map(len, owned)) == PARTITIONS // len(drivers)
            and values <= set(came)
        ):
            return came
        assert time.monotonic() < deadline, (owned, values - set(came))


def produce(driver: Driver, topic: str, numbers: range) -> set[bytes]:
    """Produce `numbers` to each partition; return the values, which are all different."""
    values: set[bytes] = set()
    for partition in range(PARTITIONS):
        own = range(1_000 * partition + numbers.start, 1_000 * partition + numbers.stop)
        driver.produce(numbered(topic, own, partition=partition))
        values.update(b"%d" % number for number in own)
    return values


@pytest.mark.parametrize("first", ["consumer", "classic"])
def test_members_share_partitions_and_commit(
    client: Client, drivers: Drivers, topics: Topics, first: str
) -> None:
    """The second one uses the newer protocol.

    A classic group is converted while its member is active. When the first leaves, the second
    continues at its positions.
    """
    if client.name not in SPEAKERS:
        pytest.skip(f"{client.name} does not offer group.protocol=consumer")
    one, two = drivers.of(client, 2)
    topic = topics.create("shared", partitions=PARTITIONS)
    group = topics.unused_name("group")
    one.open(group=group, protocol=first)
    one.ask("subscribe", topics=[topic])
    wait_shared([one], topic, produce(one, topic, range(10)))
    one.ask("commit")
    two.open(group=group, protocol="consumer")
    if client.name == "confluent-kafka":
        # Matched by the coordinator, in RE2's language.
        two.ask("subscribe_pattern", pattern=f"^{topic}$")
    else:
        two.ask("subscribe", topics=[topic])
    wait_shared([one, two], topic, set())
    values = produce(one, topic, range(10, 20))
    assert sorted(wait_shared([one, two], topic, values)) == sorted(values)
    for driver in (one, two):
        driver.ask("commit")
    one.ask("close")
    values = produce(one, topic, range(20, 30))
    assert sorted(wait_shared([two], topic, values)) == sorted(values)
    two.ask("commit")
    assert two.committed([(topic, index) for index in range(PARTITIONS)]) == [30] * PARTITIONS
    two.ask("close")
