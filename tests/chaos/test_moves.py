"""Partitions move under load, while servers die, a throttle is set, and moves are cancelled."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import wait_healthy
from tests.chaos.harness.load import IDEMPOTENT, Load, assert_kept, read_back
from tests.chaos.harness.moves import ask, move, moving, replicas, wait_moved
from tests.chaos.harness.replica_set import ReplicaSet, serving
from tests.wire import AnyApiClient
from vdl.kafka.wire.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from vdl.kafka.wire.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC = "moving"
PARTITIONS = 30
ROUNDS = 4
ACKS_BETWEEN = 100
FLUSH_SECONDS_MAX = 60.0
RNG_SEED = 7
FILLED_BYTES = 16_000
FILLED_BATCHES = 40
RATE = 2_000_000
"""Bytes a second of moving partitions that server 4 may receive."""
CANCELLED = range(0, PARTITIONS, 3)


@pytest.fixture
def four_servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    """Yield four servers: one more than a partition needs."""
    with serving(4, request.node.name) as servers:
        yield servers


def create(servers: ReplicaSet) -> None:
    placed = [CreatableReplicaAssignment(index, [1, 2, 3]) for index in range(PARTITIONS)]
    request = CreateTopicsRequest([CreatableTopic(TOPIC, -1, -1, placed)], 10_000)
    answer = ask(servers.bootstrap, 19, request)
    assert answer.topics[0].error_code == 0, answer  # type: ignore[attr-defined]


def test_partitions_that_move_under_load_lose_nothing(
    four_servers: ReplicaSet, figure: Figure
) -> None:
    """All partitions are repeatedly reassigned, while servers are killed and restarted.

    In every other round one is killed at some point. Acknowledged records are there, at their
    offsets.
    """
    rng = random.Random(RNG_SEED)
    create(four_servers)
    load = Load(four_servers.bootstrap, TOPIC, IDEMPOTENT)
    load.start()
    seen_moving = 0
    try:
        load.wait_acknowledged(ACKS_BETWEEN)
        for number in range(ROUNDS):
            targets = {index: rng.sample(range(1, 5), 3) for index in range(PARTITIONS)}
            move(four_servers.bootstrap, TOPIC, targets)
            seen_moving += moving(four_servers.bootstrap)
            if number % 2:
                victim = rng.randint(1, 4)
                time.sleep(rng.random())
                four_servers.kill(victim)
                load.wait_acknowledged(ACKS_BETWEEN)
                four_servers.up()
            figure(f"round_{number + 1}_seconds", round(wait_moved(four_servers.bootstrap), 2))
            assert replicas(four_servers.bootstrap, TOPIC) == targets
            load.wait_acknowledged(ACKS_BETWEEN)
        wait_healthy(four_servers)
    finally:
        load.stop()
    assert load.failures == {}
    assert seen_moving, "nobody could see that anything moved"
    figure("acknowledged", len(load.acks))
    figure("longest_gap_ms", round(load.longest_gap_ms(0, time.monotonic_ns())))
    assert_kept(load, read_back(four_servers.bootstrap, TOPIC))


def set_limits(servers: ReplicaSet, rate: int | None, listed: dict[int, list[int]]) -> None:
    """Set the throttles as `kafka-reassign-partitions --throttle` does.

    Without a rate, remove them as `--verify` does at the end. `listed`: by partition, the leader
    replicas that feed it.
    """
    operation = 0 if rate is not None else 1  # SET, DELETE
    leaders = ",".join(f"{p}:{server}" for p, of in listed.items() for server in of)
    followers = ",".join(f"{p}:4" for p in listed)
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    lists = {
        "leader.replication.throttled.replicas": leaders,
        "follower.replication.throttled.replicas": followers,
    }
    # The same rate for all, as the tool sets it; each server has its own config resource.
    for server in range(1, 5):
        told = [AlterableConfig(name, operation, str(rate)) for name in rates]
        alter_configs(servers, AlterConfigsResource(4, str(server), told), server=server)
    told = [AlterableConfig(name, operation, value) for name, value in lists.items()]
    alter_configs(servers, AlterConfigsResource(2, TOPIC, told), server=1)


def alter_configs(servers: ReplicaSet, resource: AlterConfigsResource, *, server: int) -> None:
    host, _, port = servers.address(server).rpartition(":")
    with AnyApiClient(host, int(port), timeout_seconds=10.0) as client:
        answer = client.request(44, IncrementalAlterConfigsRequest([resource], False))
    assert [row.error_code for row in answer.responses] == [0], answer


def fill(servers: ReplicaSet) -> None:
    """Produce incompressible data that is to be moved."""
    rng = random.Random(RNG_SEED)
    producer = Producer({"bootstrap.servers": servers.bootstrap, "linger.ms": 0, "log_level": 0})
    for _ in range(FILLED_BATCHES):
        for partition in range(1, PARTITIONS):  # the first has the load
            producer.produce(TOPIC, rng.randbytes(FILLED_BYTES), partition=partition)
        assert not producer.flush(FLUSH_SECONDS_MAX)


def test_moves_keep_to_a_limit_and_can_be_cancelled(
    four_servers: ReplicaSet, figure: Figure
) -> None:
    """Thirty partitions get a replica on server 4, at 2 MB/s in all.

    A third of them is cancelled midway. Producers are not affected, and nothing is lost.
    """
    create(four_servers)
    fill(four_servers)
    before = replicas(four_servers.bootstrap, TOPIC)
    load = Load(four_servers.bootstrap, TOPIC, IDEMPOTENT)
    load.start()
    try:
        load.wait_acknowledged(ACKS_BETWEEN)
        set_limits(four_servers, RATE, before)
        began = time.monotonic()
        targets = {index: [4, *of[:2]] for index, of in before.items()}
        move(four_servers.bootstrap, TOPIC, targets)
        at_first = moving(four_servers.bootstrap)
        assert at_first, "nobody could see that anything moved"
        move(four_servers.bootstrap, TOPIC, dict.fromkeys(CANCELLED))
        wait_moved(four_servers.bootstrap)
        seconds = time.monotonic() - began
        kept = [index for index in range(PARTITIONS) if index not in CANCELLED]
        moved_bytes = len(set(kept) - {0}) * FILLED_BATCHES * FILLED_BYTES
        figure("moved_mb", round(moved_bytes / 1e6, 1))
        figure("seconds", round(seconds, 1))
        # The data that each lacks when it becomes a member, and the load's data, are small beside
        # this.
        assert moved_bytes / seconds < 1.1 * RATE
        after = replicas(four_servers.bootstrap, TOPIC)
        assert {index: after[index] for index in kept} == {index: targets[index] for index in kept}
        assert {index: sorted(after[index]) for index in CANCELLED} == {
            index: sorted(before[index]) for index in CANCELLED
        }
        set_limits(four_servers, None, before)
        move(four_servers.bootstrap, TOPIC, {index: targets[index] for index in CANCELLED})
        figure("without_a_limit_seconds", round(wait_moved(four_servers.bootstrap), 1))
        load.wait_acknowledged(ACKS_BETWEEN)
        wait_healthy(four_servers)
    finally:
        load.stop()
    assert load.failures == {}
    figure("acknowledged", len(load.acks))
    figure("longest_gap_ms", round(load.longest_gap_ms(0, time.monotonic_ns())))
    assert_kept(load, read_back(four_servers.bootstrap, TOPIC))
