"""ElectLeaders: preferred leaders by leadership transfer; unclean elections are refused."""

from __future__ import annotations

import pytest

from tests.unit.kafka.fake_host import World
from vdl.errors import ErrorCode
from vdl.kafka.wire.elect_leaders import ElectLeadersRequest, TopicPartitions

ELECT_LEADERS = 43
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def world() -> World:
    """Topic t: partition 0 has its preferred leader 1, partition 1 leader 2, partition 2 none."""
    world = World()
    world.topic("t", 3)
    first, second, third = world.host.catalog.topics["t"].partitions
    world.host.leaders |= {first: (1, 5), second: (2, 6), third: (-1, -1)}
    return world


def elect(
    world: World,
    topics: list[TopicPartitions] | None,
    *,
    kind: int = PREFERRED,
    version: int = 2,
    wait_ms: int = 50,
    timeout_ms: int = 1_000,
) -> dict[tuple[str, int], int]:
    request = ElectLeadersRequest(kind, topics, timeout_ms)
    answer = world.client().ask(ELECT_LEADERS, version, request, wait_ms)
    assert answer.error_code == ErrorCode.NONE
    return {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in answer.replica_election_results
        for partition in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
def test_preferred_leaders_are_elected_where_they_can_be(world: World, version: int) -> None:
    """Each partition has its own response, with Kafka's codes."""
    asked = [TopicPartitions("t", [0, 1, 2, 3, -1]), TopicPartitions("nobody", [0])]
    assert elect(world, asked, version=version) == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 1): ErrorCode.NONE,
        ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nobody", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    second = world.host.catalog.topics["t"].partitions[1]
    assert world.host.leader_of(second) == (1, 7)


def test_all_partitions_are_answered_without_those_that_need_no_election(world: World) -> None:
    """Same as Kafka's response to a null list of topics."""
    assert elect(world, None) == {
        ("t", 1): ErrorCode.NONE,
        ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert elect(world, []) == {}


def test_preferred_replica_that_is_not_in_sync_is_not_elected(world: World) -> None:
    """Its leader receives no transfer request either.

    A leader that receives one may know better.
    """
    asked = [TopicPartitions("t", [1])]
    second = world.host.catalog.topics["t"].partitions[1]
    refused = {("t", 1): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    world.host.in_sync = [2, 3]
    assert elect(world, asked) == refused
    world.host.in_sync = [1, 2, 3]
    world.host.kept = {second}
    assert elect(world, asked) == refused
    assert world.host.leader_of(second) == (2, 6)


def test_election_that_nobody_sees_done_is_not_called_done(world: World) -> None:
    """The leader has not answered; it may still hand over later."""
    world.host.says_nothing = True
    asked = [TopicPartitions("t", [1])]
    found = elect(world, asked, timeout_ms=300, wait_ms=350)
    assert found == {("t", 1): ErrorCode.REQUEST_TIMED_OUT}
    client = world.client()
    client.request(ELECT_LEADERS, 2, ElectLeadersRequest(PREFERRED, asked, 1_000))
    world.run(100)
    second = world.host.catalog.topics["t"].partitions[1]
    world.host.leaders[second] = (1, 9)
    world.run(50)
    (answer,) = client.answers()
    (result,) = answer.replica_election_results[0].partition_result
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)


@pytest.mark.parametrize("version", [1, 2])
def test_unclean_election_is_refused(world: World, version: int) -> None:
    """Refused with or without need; no leader changes."""
    before = dict(world.host.leaders)
    asked = [TopicPartitions("t", [0, 1, 2])]
    assert elect(world, asked, kind=UNCLEAN, version=version) == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
        ("t", 2): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
    assert world.host.leaders == before


def test_election_of_an_unknown_kind_is_refused_as_a_whole(world: World) -> None:
    """The error is set for the request and for each partition."""
    request = ElectLeadersRequest(7, [TopicPartitions("t", [0])], 1_000)
    answer = world.client().ask(ELECT_LEADERS, 2, request)
    (topic,) = answer.replica_election_results
    codes = [answer.error_code, topic.partition_result[0].error_code]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2
