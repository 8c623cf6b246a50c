"""Produce: what is checked, what is answered, and in which order."""

from __future__ import annotations

import pytest

from tests.unit.kafka.twin import WALL_MS, Client, World, batch
from vdl.compression import Compression
from vdl.errors import ErrorCode
from vdl.kafka.wire.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from vdl.records import read_header

PRODUCE = 0


def produce(
    *records: bytes | bytearray | None,
    topic: str = "t",
    topic_id: bytes = bytes(16),
    acks: int = -1,
    first_partition: int = 0,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One batch a partition, from `first_partition` on."""
    data = [
        PartitionProduceData(first_partition + index, None if item is None else memoryview(item))
        for index, item in enumerate(records)
    ]
    return ProduceRequest(transactional_id, acks, 1000, [TopicProduceData(topic, topic_id, data)])


def only(response: object) -> PartitionProduceResponse:
    """The answer of a request with one partition."""
    (topic,) = response.responses  # type: ignore[attr-defined]
    (partition,) = topic.partition_responses
    return partition  # type: ignore[no-any-return]


def error_of(world: World, request: ProduceRequest, version: int = 9) -> int:
    return only(world.client().ask(PRODUCE, version, request)).error_code


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_of_each_version_is_appended_and_answered(version: int) -> None:
    """A batch is stored as sent but for offset and epoch, which lie outside its CRC."""
    world = World()
    (stream,) = world.topic()
    topic = world.host.catalog.topics["t"]
    sent = batch(3)
    request = produce(sent, topic="" if version >= 13 else "t", topic_id=topic.topic_id)
    if version < 13:
        request.topic_data[0].topic_id = bytes(16)
    answer = only(world.client().ask(PRODUCE, version, request))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
    assert stream.batches[0].data[16:] == bytes(sent[16:])
    assert read_header(stream.batches[0].data).leader_epoch == stream.term
    second = only(world.client().ask(PRODUCE, version, request))
    assert second.base_offset == 3


def test_produce_is_answered_only_when_committed() -> None:
    """An acknowledgement means a majority has it: nothing is said before the commit."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    client.request(PRODUCE, 9, produce(batch()))
    world.run(500)
    assert client.answers() == []
    stream.commit()
    world.run()
    assert only(client.answers()[0]).error_code == ErrorCode.NONE


def test_produce_of_one_connection_overlaps_and_keeps_its_order() -> None:
    """Appends happen in arrival order while earlier ones wait; answers leave in order, together."""
    world = World()
    first, second = world.topic(partitions=2)
    first.auto_commit = second.auto_commit = False
    client = world.client()
    for index in (0, 1, 0):
        client.request(PRODUCE, 9, produce(batch(), first_partition=index))
    assert (len(first.batches), len(second.batches)) == (2, 1)
    second.commit()
    world.run()
    assert client.answers() == []
    first.commit()
    world.run()
    assert [only(answer).base_offset for answer in client.answers()] == [0, 0, 1]
    assert client.sends == 1


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_produce_with_other_acks_is_refused(acks: int) -> None:
    """Kafka knows acks -1, 0 and 1."""
    world = World()
    (stream,) = world.topic()
    assert error_of(world, produce(batch(), acks=acks)) == ErrorCode.INVALID_REQUIRED_ACKS
    assert stream.batches == []


def test_produce_without_acks_gets_no_answer() -> None:
    """acks=0: silence, and the next request is answered as the first."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(PRODUCE, 9, produce(batch(), acks=0))
    client.expected.clear()
    assert only(client.ask(PRODUCE, 9, produce(batch()))).base_offset == 1
    assert stream.high_watermark == 2


def test_produce_without_acks_that_fails_closes_the_connection() -> None:
    """acks=0 has no other way to say that something is wrong."""
    world = World()
    client = world.client()
    client.request(PRODUCE, 9, produce(batch(), topic="missing", acks=0))
    world.run()
    assert client.closed
    assert client.received == b""


def corrupt(position: int, data: bytearray) -> bytearray:
    data[position] ^= 0x40
    return data


def old_format(magic: int) -> bytearray:
    data = batch()
    data[16] = magic
    return data


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (bytearray(), ErrorCode.INVALID_RECORD),
        (batch()[:-1], ErrorCode.INVALID_RECORD),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (old_format(1), ErrorCode.INVALID_RECORD),
        (old_format(3), ErrorCode.CORRUPT_MESSAGE),
        (corrupt(70, batch()), ErrorCode.CORRUPT_MESSAGE),
        (corrupt(11, batch(size=200)), ErrorCode.INVALID_RECORD),
        (batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (batch(is_control=True), ErrorCode.INVALID_RECORD),
        (batch(is_transactional=True), ErrorCode.INVALID_TXN_STATE),
        (batch(producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch(size=2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(timestamp=WALL_MS + 4_000_000), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_produce_of_a_bad_batch_is_refused(records: bytearray | None, error: ErrorCode) -> None:
    """Each flaw has Kafka's code; nothing is appended and the connection goes on."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    assert only(client.ask(PRODUCE, 9, produce(records))).error_code == error
    assert stream.batches == []
    assert only(client.ask(PRODUCE, 9, produce(batch()))).error_code == ErrorCode.NONE


def test_produce_of_one_bad_and_one_good_batch_answers_each() -> None:
    """A partition's error is its own."""
    world = World()
    world.topic(partitions=2)
    response = world.client().ask(PRODUCE, 9, produce(corrupt(70, batch()), batch()))
    codes = [answer.error_code for answer in response.responses[0].partition_responses]
    assert codes == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]


def test_produce_of_zstd_before_version_7_is_refused() -> None:
    """KIP-110: a consumer of that time could not read it."""
    world = World()
    world.topic()
    zstd = batch(compression=Compression.ZSTD)
    assert error_of(world, produce(zstd), 6) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert error_of(world, produce(zstd), 7) == ErrorCode.NONE


def test_produce_obeys_the_topics_own_limit() -> None:
    """`max.message.bytes` of the topic counts, at the limit and one past it."""
    world = World()
    world.topic(configs={"max.message.bytes": str(len(batch(size=500)))})
    assert error_of(world, produce(batch(size=500))) == ErrorCode.NONE
    assert error_of(world, produce(batch(size=501))) == ErrorCode.MESSAGE_TOO_LARGE


def test_produce_with_log_append_time_stamps_the_batch() -> None:
    """KIP-32: the batch carries the server's time, and so does the answer."""
    world = World()
    (stream,) = world.topic(configs={"message.timestamp.type": "LogAppendTime"})
    answer = only(world.client().ask(PRODUCE, 9, produce(batch(timestamp=5))))
    header = read_header(stream.batches[0].data)
    assert header.is_log_append_time
    assert answer.log_append_time_ms == header.max_timestamp
    assert WALL_MS <= header.max_timestamp < WALL_MS + 1000


def test_produce_for_an_unknown_topic_or_partition_is_refused() -> None:
    """By name UNKNOWN_TOPIC_OR_PARTITION, by id UNKNOWN_TOPIC_ID (KIP-516)."""
    world = World()
    world.topic()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_of(world, produce(batch(), topic="other")) == unknown
    assert error_of(world, produce(batch(), first_partition=1)) == unknown
    assert error_of(world, produce(batch(), first_partition=-1)) == unknown
    by_id = produce(batch(), topic="", topic_id=b"x" * 16)
    assert error_of(world, by_id, 13) == ErrorCode.UNKNOWN_TOPIC_ID


def test_produce_to_a_follower_names_the_leader() -> None:
    """KIP-951: from v10 on the answer says who leads and where that is."""
    world = World()
    (stream,) = world.topic()
    stream.lose_leadership()
    world.host.leaders[stream.group_id] = (3, 6)
    old = world.client().ask(PRODUCE, 9, produce(batch()))
    assert only(old).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    response = world.client().ask(PRODUCE, 10, produce(batch()))
    leader = only(response).current_leader
    assert (leader.leader_id, leader.leader_epoch) == (3, 6)
    (node,) = response.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (3, "host3", 9093, "rack3")


def test_produce_whose_leader_is_deposed_has_an_open_fate() -> None:
    """Appended and then not known to be committed: REQUEST_TIMED_OUT, never a final answer."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    client.request(PRODUCE, 9, produce(batch()))
    stream.lose_leadership()
    world.run()
    assert only(client.answers()[0]).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_produce_with_a_transactional_id_is_refused() -> None:
    """There are no transactions: no transactional id can have one open."""
    world = World()
    world.topic()
    request = produce(batch(), transactional_id="tx")
    assert error_of(world, request) == ErrorCode.INVALID_TXN_STATE


def test_produce_waits_while_the_host_has_no_room() -> None:
    """Too much unflushed: producers are held back, and let go when there is room."""
    world = World()
    (stream,) = world.topic()
    world.host.overloaded = True
    client = world.client()
    client.request(PRODUCE, 9, produce(batch()))
    world.run(100)
    assert stream.batches == []
    world.host.overloaded = False
    world.run(100)
    assert only(client.answers()[0]).error_code == ErrorCode.NONE


def test_produce_in_the_old_formats_is_refused_in_the_old_versions() -> None:
    """v0–v2 are advertised for librdkafka's sake (KAFKA-18659); old formats are not converted."""
    world = World()
    world.topic()
    request = produce(old_format(1))
    assert error_of(world, request, 2) == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_clients_that_go_away_leave_their_appends() -> None:
    """What was appended is appended; the fate has nobody to tell."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    client: Client = world.client()
    client.request(PRODUCE, 9, produce(batch()))
    client.session.connection_lost()
    stream.commit()
    world.run()
    assert stream.high_watermark == 1
    assert len(world.frontend) == 0
