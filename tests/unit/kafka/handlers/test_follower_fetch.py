"""Fetch from followers (KIP-392): redirects by the leader and responses of a follower."""

from __future__ import annotations

import pytest

from tests.unit.kafka.fake_host import FakeStream, World, batch, fill
from vdl.errors import ErrorCode
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from vdl.kafka.wire.fetch import PartitionData as Answer
from vdl.records.batch import read_header, split_batches

FETCH = 1
RACK = "rack2"


def request(
    offset: int,
    *,
    rack: str = RACK,
    wait_ms: int = 0,
    epoch: int = -1,
    last_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> FetchRequest:
    named = FetchPartition(
        0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=1 << 20,
    )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic("t", bytes(16), [named] if session[1] < 1 else [])],
        rack_id=rack,
    )


def one(response: FetchResponse) -> Answer:
    (topic,) = response.responses
    (part,) = topic.partitions
    return part


def batches(part: Answer) -> int:
    return len(split_batches(memoryview(part.records or b"")))


@pytest.fixture
def led() -> tuple[World, FakeStream]:
    """Leader with three records; its host redirects consumers with a rack to server 2."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 3)
    world.host.preferred = 2
    return world, stream


@pytest.fixture
def followed() -> tuple[World, FakeStream]:
    """Follower with three records that may serve them."""
    world = World()
    (stream,) = world.topic()
    fill(stream, 3)
    world.run(5)
    stream.is_leader = stream.serving = False
    world.host.may_follow = True
    return world, stream


def test_leader_names_the_replica_and_gives_no_records(led: tuple[World, FakeStream]) -> None:
    """The response is immediate: there is nothing to wait for here."""
    world, _ = led
    part = one(world.client().ask(FETCH, 11, request(0, wait_ms=500)))
    assert (part.error_code, part.preferred_read_replica, batches(part)) == (0, 2, 0)
    assert world.host.preference_asked == [(RACK, 0)]


@pytest.mark.parametrize(("version", "rack"), [(10, RACK), (11, "")])
def test_consumer_without_a_rack_reads_from_the_leader(
    led: tuple[World, FakeStream], version: int, rack: str
) -> None:
    world, _ = led
    part = one(world.client().ask(FETCH, version, request(0, rack=rack)))
    assert (part.error_code, part.preferred_read_replica, batches(part)) == (0, -1, 1)
    assert world.host.preference_asked == []


def test_replica_that_this_listener_cannot_reach_is_not_named(
    led: tuple[World, FakeStream],
) -> None:
    world, _ = led
    world.host.preferred = 9
    part = one(world.client().ask(FETCH, 11, request(0)))
    assert (part.preferred_read_replica, batches(part)) == (-1, 1)


def test_offset_beyond_the_end_is_the_leaders_to_judge(led: tuple[World, FakeStream]) -> None:
    world, _ = led
    part = one(world.client().ask(FETCH, 11, request(9, wait_ms=0)))
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.host.preference_asked == []


def test_session_tells_of_the_replica_each_time(led: tuple[World, FakeStream]) -> None:
    """Incremental responses omit unchanged partitions, but must not omit the read replica."""
    world, _ = led
    client = world.client()
    response = client.ask(FETCH, 11, request(0, session=(0, 0)))
    assert one(response).preferred_read_replica == 2
    for epoch in (1, 2):
        again = client.ask(FETCH, 11, request(0, session=(response.session_id, epoch)))
        assert one(again).preferred_read_replica == 2


def test_follower_serves_what_it_knows_to_be_committed(followed: tuple[World, FakeStream]) -> None:
    world, stream = followed
    part = one(world.client().ask(FETCH, 11, request(0)))
    assert (part.error_code, batches(part), part.high_watermark) == (0, 1, 3)
    assert part.preferred_read_replica == -1
    stream.auto_commit = False
    stream.is_leader = True
    data = memoryview(batch())
    stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    stream.is_leader = False
    assert batches(one(world.client().ask(FETCH, 11, request(3)))) == 0


@pytest.mark.parametrize(
    ("version", "rack", "may_follow"), [(10, RACK, True), (11, "", True), (11, RACK, False)]
)
def test_follower_sends_others_to_the_leader(
    followed: tuple[World, FakeStream], version: int, rack: str, may_follow: bool
) -> None:
    """A consumer without a rack assumed this was the leader.

    An out-of-sync follower serves no reads.
    """
    world, _ = followed
    world.host.may_follow = may_follow
    part = one(world.client().ask(FETCH, version, request(0, rack=rack)))
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_follower_checks_the_leader_epoch(followed: tuple[World, FakeStream]) -> None:
    """KIP-320 applies to followers as to leaders."""
    world, stream = followed
    fenced = one(world.client().ask(FETCH, 11, request(0, epoch=stream.term - 1)))
    assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
    unknown = one(world.client().ask(FETCH, 11, request(0, epoch=stream.term + 1)))
    assert unknown.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_follower_never_calls_an_offset_out_of_range(followed: tuple[World, FakeStream]) -> None:
    """The error makes a consumer reset, while a follower may only lag."""
    world, stream = followed
    for offset in (4, 1_000):
        # Nor does it compare epochs of records that it may not have yet.
        part = one(world.client().ask(FETCH, 12, request(offset, last_epoch=stream.term)))
        assert part.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    stream.log_start_offset = 2
    part = one(world.client().ask(FETCH, 11, request(1)))
    assert part.error_code == ErrorCode.OFFSET_NOT_AVAILABLE


def test_follower_waits_for_the_news_that_an_offset_is_committed(
    followed: tuple[World, FakeStream],
) -> None:
    """The leader that redirected the consumer knows the commit up to 50 ms earlier."""
    world, stream = followed
    client = world.client()
    client.request(FETCH, 11, request(4, wait_ms=500))
    world.run(40)
    assert client.answers() == []
    stream.is_leader = True
    fill(stream, 2)
    stream.is_leader = False
    world.run(40)
    (response,) = client.answers()
    assert batches(one(response)) == 1


def test_session_of_a_follower_asks_again_each_time(followed: tuple[World, FakeStream]) -> None:
    """A partition whose follower falls out of sync must not stay silent in its session forever."""
    world, _ = followed
    client = world.client()
    response = client.ask(FETCH, 11, request(3, session=(0, 0)))
    assert one(response).error_code == 0
    world.host.may_follow = False
    again = client.ask(FETCH, 11, request(3, session=(response.session_id, 1)))
    assert one(again).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("version", "may_follow"), [(9, True), (12, True), (12, False)])
def test_debugging_consumer_reads_each_replica_where_it_is(
    followed: tuple[World, FakeStream], version: int, may_follow: bool
) -> None:
    """Replica -2, as sent by Kafka's ReplicaVerificationTool: no rack, any version.

    A replica that must not serve reads still serves none.
    """
    world, _ = followed
    world.host.may_follow = may_follow
    asked = request(0, rack="")
    asked.replica_id = -2
    part = one(world.client().ask(FETCH, version, asked))
    error = ErrorCode.NONE if may_follow else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (part.error_code, batches(part)) == (error, int(may_follow))
