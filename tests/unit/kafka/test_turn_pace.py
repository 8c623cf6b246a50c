"""Nobody waits behind long requests and long answers of others: they take turns."""

from __future__ import annotations

from functools import cache
from struct import pack

from tests.unit.kafka.twin import Client, World, batch, fill
from vdl.clock import MS
from vdl.kafka.context import KafkaOptions
from vdl.kafka.turn_pace import (
    ANSWER_BYTES,
    FEW_BYTES,
    FRAME_BYTES,
    READ_BYTES_MIN,
    SHORT_BYTES,
    AnswerPace,
    FramePace,
)
from vdl.kafka.wire import produce
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
MIB = 1 << 20
LONG = 5 * MIB


@cache
def body_of(size: int) -> bytes:
    data = PartitionProduceData(0, memoryview(batch(size=size)))
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", bytes(16), [data])])
    return b"".join(produce.encode_request(request, 9))


class Sender:
    """A client of a long request: always has more to send."""

    def __init__(self, world: World, size: int = LONG) -> None:
        self.client = world.client()
        self.rest = memoryview(self.client.frame(PRODUCE, 9, body_of(size)))

    def send(self) -> int:
        """What the server reads in one turn: once, as a transport does."""
        client = self.client
        if not client.reading or client.closed or not self.rest:
            return 0
        into = client.session.get_buffer(1 << 18)
        count = min(len(into), len(self.rest))
        into[:count] = self.rest[:count]
        client.session.buffer_updated(count)
        self.rest = self.rest[count:]
        return count


def world_of_requests() -> World:
    world = World(KafkaOptions(message_max_bytes=2 * LONG))
    world.topic()
    world.run(1)
    return world


def test_long_requests_of_many_take_little_of_each_turn() -> None:
    """And all are read to their end."""
    world = world_of_requests()
    senders = [Sender(world) for _ in range(30)]
    for _ in range(10):  # until it shows how long they are
        for sender in senders:
            sender.send()
        world.run(20)
    most = 0
    for _ in range(2_600):
        most = max(most, sum(sender.send() for sender in senders))
        world.run(1)
    assert most <= FRAME_BYTES + len(senders) * READ_BYTES_MIN
    assert all(len(sender.client.answers()) == 1 for sender in senders)
    assert not world.frontend.frame_pace


def test_long_requests_of_few_are_read_faster() -> None:
    """Two producers with large requests are no crowd."""
    world = world_of_requests()
    senders = [Sender(world) for _ in range(2)]
    for _ in range(10):
        for sender in senders:
            sender.send()
        world.run(4)
    waited = 0
    before = sum(len(sender.rest) for sender in senders)
    for _ in range(6):
        for _ in range(8):
            for sender in senders:
                sender.send()
        waited += len(world.frontend.frame_pace)
        world.run(4)
    assert waited, "the pace was not needed"
    assert before - sum(len(sender.rest) for sender in senders) >= 2 * 6 * FRAME_BYTES


def test_short_requests_are_read_as_they_come() -> None:
    """What clients send by default does not wait for others, however many there are."""
    world = world_of_requests()
    long = [Sender(world) for _ in range(30)]
    short = [Sender(world, SHORT_BYTES - 1000) for _ in range(10)]
    for _ in range(30):
        for sender in [*long, *short]:
            sender.send()
    assert world.frontend.frame_pace
    assert not any(sender.rest for sender in short)


def test_who_waits_for_its_turn_is_not_late() -> None:
    """Its turn comes later than a client may be silent while others wait for memory."""
    options = KafkaOptions(
        request_bytes_max=8 * MIB,
        request_memory_max=48 * MIB,
        message_max_bytes=8 * MIB,
        frame_deadline_ms=240,
    )
    world = World(options)
    world.topic()
    world.run(1)
    senders = [Sender(world, 6 * MIB) for _ in range(100)]
    waited = 0
    for _ in range(1_000):
        for sender in senders:
            sender.send()
        world.run(1)
        waited += bool(world.context.requests.waiting and world.frontend.frame_pace)
        now_ns, deadline_ns = world.clock.now_ns(), options.frame_deadline_ms * MS
        for sender in senders:
            assert not sender.client.session.is_stalled(now_ns, deadline_ns)
            assert not sender.client.session.is_slow(now_ns, deadline_ns)
    assert waited


def test_a_client_that_goes_away_waits_no_more() -> None:
    world = world_of_requests()
    senders = [Sender(world) for _ in range(30)]
    for _ in range(5):
        for sender in senders:
            sender.send()
    assert len(world.frontend.frame_pace) > 10
    for sender in senders:
        sender.client.session.connection_lost()
    assert not world.frontend.frame_pace


class Nobody:
    def read_on(self) -> None: ...


def test_a_pace_that_nobody_needs_sets_no_timer() -> None:
    world = World()
    pace, answers = FramePace(world.clock), AnswerPace(world.clock)
    pace.took(Nobody(), 1)
    answers.sent(1)
    world.run(20)
    assert pace.left == FEW_BYTES
    assert not world.time.step()


# --- answers --------------------------------------------------------------------------------------


def fetch(max_wait_ms: int = 0) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=0, partition_max_bytes=MIB)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=MIB,
        topics=[FetchTopic("t", bytes(16), [partition])],
    )


def world_of_answers() -> tuple[World, list[Client]]:
    world = World()
    (stream,) = world.topic()
    for _ in range(10):
        fill(stream, size=100_000)
    world.run(1)
    return world, [world.client() for _ in range(30)]


def test_long_answers_of_one_turn_leave_in_several() -> None:
    """Somebody who asks for little is answered at once."""
    world, readers = world_of_answers()
    for reader in readers:
        reader.request(FETCH, 11, fetch())
    other = world.client()
    other.request(API_VERSIONS, 0, ApiVersionsRequest())
    world.time.run_until(world.time.now_ns)
    assert 0 < sum(len(reader.received) for reader in readers) <= ANSWER_BYTES + MIB + 1000
    assert len(other.answers()) == 1
    assert len(world.frontend.answer_pace) > 20
    # One that waits asks for more, and is answered in order.
    readers[-1].request(API_VERSIONS, 0, ApiVersionsRequest())
    world.run(1)
    for reader in readers:
        assert reader.answers()[0].responses[0].partitions[0].records
    assert not world.frontend.answer_pace
    assert world.context.answers.used == 0
    assert all(reader.reading for reader in readers)


def test_an_answer_that_waits_for_its_turn_leaves_before_its_connection_is_closed() -> None:
    world, readers = world_of_answers()
    for reader in readers:
        reader.request(FETCH, 11, fetch())
    world.time.run_until(world.time.now_ns)
    assert world.frontend.answer_pace
    readers[-1].session.receive(pack(">i", -1))  # nonsense ends a connection
    world.run(1)
    assert readers[-1].closed
    assert readers[-1].answers()[0].responses[0].partitions[0].records


def test_a_reader_that_goes_away_waits_no_more() -> None:
    world, readers = world_of_answers()
    for reader in readers:
        reader.request(FETCH, 11, fetch())
    for reader in readers:
        reader.session.connection_lost()
    assert not world.frontend.answer_pace
    assert world.context.answers.used == 0
