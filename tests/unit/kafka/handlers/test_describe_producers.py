"""DescribeProducers: the producers that a partition remembers."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.unit.kafka.fake_host import World
from vdl.errors import ErrorCode
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers import producer_ids
from vdl.kafka.wire.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    ProducerState,
    TopicRequest,
)
from vdl.state.producers import ActiveProducer

DESCRIBE_PRODUCERS = 61


def describe(world: World, *topics: TopicRequest) -> list[tuple[str, PartitionResponse]]:
    answer = world.client().ask(DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(list(topics)))
    return [(topic.name, partition) for topic in answer.topics for partition in topic.partitions]


def test_producers_of_a_partition_are_described() -> None:
    """Includes the open transaction of one and the coordinator epoch that ended its last one."""
    world = World()
    _, second = world.topic("t", 2)
    second.active_producers = [
        ActiveProducer(7, 2, 41, 1_700, 3, 29),
        ActiveProducer(9, 0, 0, -1, -1, -1),
    ]
    found = describe(world, TopicRequest("t", [1, 0]))
    assert [(name, p.partition_index, p.error_code) for name, p in found] == [
        ("t", 1, ErrorCode.NONE),
        ("t", 0, ErrorCode.NONE),
    ]
    assert found[0][1].active_producers == [
        ProducerState(7, 2, 41, 1_700, 3, 29),
        ProducerState(9, 0, 0, -1, -1, -1),
    ]
    assert found[1][1].active_producers == []


def test_description_leaves_nothing_for_the_collector_of_garbage() -> None:
    """A response may have megabytes. The collector looks at old objects only every ten minutes."""
    world = World()
    (stream,) = world.topic("t")
    stream.active_producers = [ActiveProducer(n, 0, 0, -1, -1, -1) for n in range(5_000)]
    client = world.client()
    request = DescribeProducersRequest([TopicRequest("t", [0, 9])])
    client.ask(DESCRIBE_PRODUCERS, 0, request)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            client.ask(DESCRIBE_PRODUCERS, 0, request)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_producers_of_what_is_not_here_are_refused() -> None:
    """Uses Kafka's error codes."""
    world = World()
    world.topic("elsewhere", servers=(2, 3))
    asked = [TopicRequest("elsewhere", [0, 1]), TopicRequest("no", [0]), TopicRequest("a/b", [0])]
    answers = [partition for _, partition in describe(world, *asked)]
    assert [partition.error_code for partition in answers] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert answers[2].error_message, "what is not there is named"


def test_many_producers_are_collected_in_pieces_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop runs in between; a response that does not fit is refused as too large."""
    monkeypatch.setattr(producer_ids, "_PRODUCERS_PER_STEP", 10)
    monkeypatch.setattr(producer_ids, "_PRODUCERS_PER_ANSWER_MAX", 50)
    world = World()
    streams = world.topic("t", 8)
    for stream in streams:
        stream.active_producers = [ActiveProducer(n, 0, 0, 0, -1, -1) for n in range(10)]
    steps: list[int] = []

    def noted(ctx: RequestContext, name: str, index: int, told: int) -> Iterator[ActiveProducer]:
        steps.append(world.time.events)
        return collect(ctx, name, index, told)

    collect = producer_ids._active_producers
    monkeypatch.setattr(producer_ids, "_active_producers", noted)
    found = describe(world, TopicRequest("t", list(range(8))))
    assert len(set(steps)) >= 5
    counts = [len(partition.active_producers) for _, partition in found]
    assert counts == [10] * 5 + [0] * 3
    codes = [partition.error_code for _, partition in found]
    assert codes == [ErrorCode.NONE] * 5 + [ErrorCode.POLICY_VIOLATION] * 3


def test_many_producers_of_one_partition_are_collected_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition may remember tens of thousands of producers."""
    monkeypatch.setattr(producer_ids, "_PRODUCERS_PER_STEP", 10)
    world = World()
    (stream,) = world.topic("t")
    steps: list[int] = []

    def producers() -> Iterator[ActiveProducer]:
        for number in range(35):
            steps.append(world.time.events)
            yield ActiveProducer(number, 0, 0, 0, -1, -1)

    monkeypatch.setattr(stream, "producers", producers)
    ((_, partition),) = describe(world, TopicRequest("t", [0]))
    assert [one.producer_id for one in partition.active_producers] == list(range(35))
    assert max(steps.count(step) for step in set(steps)) == 10
