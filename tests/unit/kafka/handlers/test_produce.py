"""Produce: validation, responses and their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kafka.fake_host import WALL_MS, Client, World, batch
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.configs.topic_configs import BATCH_BYTES_MAX
from vdl.kafka.partitions import record_checks
from vdl.kafka.partitions.record_checks import (
    CHECKS_AT_ONCE,
    LARGE_BYTES_COUNTED,
    RecordChecks,
)
from vdl.kafka.security.principal import Principal
from vdl.kafka.wire.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.logstream.options import LARGE_LED_BYTES_MAX
from vdl.records.batch import (
    HEADER_BYTES,
    Record,
    build_batch,
    crc_matches,
    iter_records,
    read_header,
    seal,
)
from vdl.records.compression import Compression, compress
from vdl.state import commands
from vdl.state.answer import CommandAnswer

PRODUCE = 0


def produce(
    *records: bytes | bytearray | None,
    topic: str = "t",
    topic_id: bytes = bytes(16),
    acks: int = -1,
    first_partition: int = 0,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Return a request with one batch a partition, from `first_partition` on."""
    data = [
        PartitionProduceData(first_partition + index, None if item is None else memoryview(item))
        for index, item in enumerate(records)
    ]
    return ProduceRequest(transactional_id, acks, 1000, [TopicProduceData(topic, topic_id, data)])


def only(response: object) -> PartitionProduceResponse:
    """Return the partition response of a request with one partition."""
    (topic,) = response.responses  # type: ignore[attr-defined]
    (partition,) = topic.partition_responses
    return partition  # type: ignore[no-any-return]


def error_of(world: World, request: ProduceRequest, version: int = 9) -> int:
    return only(world.client().ask(PRODUCE, version, request)).error_code


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_of_each_version_is_appended_and_answered(version: int) -> None:
    """A batch is stored as sent except for offset and epoch, which lie outside its CRC."""
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
    """An acknowledgement means that a majority has the batch, so none is sent before the commit."""
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
    """Appends happen in arrival order while earlier ones wait.

    Responses leave in order, together.
    """
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


def test_produce_that_names_a_partition_twice_gets_one_batch_in() -> None:
    """One request must not have any number of batches checked in one turn."""
    world = World()
    (stream,) = world.topic()
    request = produce(batch(), batch())
    request.topic_data[0].partition_data[1].index = 0
    (topic,) = world.client().ask(PRODUCE, 9, request).responses
    errors = [partition.error_code for partition in topic.partition_responses]
    assert errors == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert len(stream.batches) == 1


def test_produce_with_all_acks_asks_for_min_insync_replicas_copies() -> None:
    """Only acks=all does, as in Kafka. The topic's setting takes precedence over the server's."""
    world = World(KafkaOptions(min_insync_replicas=2))
    (plain,) = world.topic()
    (strict,) = world.topic("strict", configs={"min.insync.replicas": "3"})
    client = world.client()
    for acks in (-1, 1):
        for topic in ("t", "strict"):
            answer = only(client.ask(PRODUCE, 9, produce(batch(), topic=topic, acks=acks)))
            assert answer.error_code == ErrorCode.NONE
    assert (plain.copies_asked, strict.copies_asked) == ([2, 1], [3, 1])


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_produce_with_other_acks_is_refused(acks: int) -> None:
    """Kafka knows acks -1, 0 and 1."""
    world = World()
    (stream,) = world.topic()
    assert error_of(world, produce(batch(), acks=acks)) == ErrorCode.INVALID_REQUIRED_ACKS
    assert stream.batches == []


def test_produce_without_acks_gets_no_answer() -> None:
    """acks=0: no response, and the next request is answered as the first."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(PRODUCE, 9, produce(batch(), acks=0))
    client.expected.clear()
    assert only(client.ask(PRODUCE, 9, produce(batch()))).base_offset == 1
    assert stream.high_watermark == 2


def test_produce_without_acks_that_fails_closes_the_connection() -> None:
    """acks=0 has no other way to report an error."""
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
        (batch(is_transactional=True), ErrorCode.INVALID_RECORD),
        (
            batch(is_transactional=True, producer_id=-2, producer_epoch=0, base_sequence=0),
            ErrorCode.INVALID_RECORD,
        ),
        (
            batch(is_transactional=True, producer_id=4, producer_epoch=0, base_sequence=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (batch(producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch(size=2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(timestamp=WALL_MS + 4_000_000), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_produce_of_a_bad_batch_is_refused(records: bytearray | None, error: ErrorCode) -> None:
    """Each error has Kafka's code. Nothing is appended and the connection stays open."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    assert only(client.ask(PRODUCE, 9, produce(records))).error_code == error
    assert stream.batches == []
    assert only(client.ask(PRODUCE, 9, produce(batch()))).error_code == ErrorCode.NONE


def test_produce_of_one_bad_and_one_good_batch_answers_each() -> None:
    """Each partition has its own error."""
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
    """The topic's `max.message.bytes` applies, at the limit and one past it."""
    world = World()
    world.topic(configs={"max.message.bytes": str(len(batch(size=500)))})
    assert error_of(world, produce(batch(size=500))) == ErrorCode.NONE
    assert error_of(world, produce(batch(size=501))) == ErrorCode.MESSAGE_TOO_LARGE


def test_large_batches_are_checked_one_at_a_time_and_wait_for_those_before() -> None:
    """A large batch waits while another is checked or too much of it is in memory.

    Small ones pass it.
    """
    world = World()
    (stream,) = world.topic(configs={"max.message.bytes": str(BATCH_BYTES_MAX)})
    large = produce(batch(size=LARGE_BYTES_COUNTED + 1))
    for large_bytes, waits in ((LARGE_LED_BYTES_MAX, True), (0, False)):
        world.host.large_bytes = large_bytes
        client, before = world.client(), len(stream.batches)
        client.request(PRODUCE, 9, large)
        world.run(100)
        assert (len(stream.batches) == before) is waits
        assert only(world.client().ask(PRODUCE, 9, produce(batch()))).error_code == ErrorCode.NONE
        world.host.large_bytes = 0
        world.run(100)
        assert only(client.answers()[0]).error_code == ErrorCode.NONE
    assert not world.context.record_checks.has_large


def test_produce_with_log_append_time_stamps_the_batch() -> None:
    """KIP-32: the batch carries the server's time, and so does the response."""
    world = World()
    (stream,) = world.topic(configs={"message.timestamp.type": "LogAppendTime"})
    answer = only(world.client().ask(PRODUCE, 9, produce(batch(timestamp=5))))
    header = read_header(stream.batches[0].data)
    assert header.is_log_append_time
    assert answer.log_append_time_ms == header.max_timestamp
    assert WALL_MS <= header.max_timestamp < WALL_MS + 1000


def test_produce_for_an_unknown_topic_or_partition_is_refused() -> None:
    """The error is UNKNOWN_TOPIC_OR_PARTITION by name, UNKNOWN_TOPIC_ID by id (KIP-516)."""
    world = World()
    world.topic()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_of(world, produce(batch(), topic="other")) == unknown
    assert error_of(world, produce(batch(), first_partition=1)) == unknown
    assert error_of(world, produce(batch(), first_partition=-1)) == unknown
    by_id = produce(batch(), topic="", topic_id=b"x" * 16)
    assert error_of(world, by_id, 13) == ErrorCode.UNKNOWN_TOPIC_ID


def test_produce_to_a_follower_names_the_leader() -> None:
    """KIP-951: from v10 on the response names the leader and its address."""
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
    """Appended but not known to be committed: REQUEST_TIMED_OUT, never a final error."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    client = world.client()
    client.request(PRODUCE, 9, produce(batch()))
    stream.lose_leadership()
    world.run()
    assert only(client.answers()[0]).error_code == ErrorCode.REQUEST_TIMED_OUT


def transactional() -> bytearray:
    return batch(is_transactional=True, producer_id=4, producer_epoch=2, base_sequence=0)


@pytest.mark.parametrize("version", [3, 11, 12, 13])
def test_produce_of_a_transaction_asks_its_coordinator(version: int) -> None:
    """KIP-890: from v12 on the server adds the partition.

    Before, it only verifies that the client did.
    """
    world = World()
    (stream,) = world.topic()
    topic = world.host.catalog.topics["t"]
    name, topic_id = ("", topic.topic_id) if version >= 13 else ("t", bytes(16))
    request = produce(transactional(), topic=name, topic_id=topic_id, transactional_id="tx")
    assert error_of(world, request, version) == ErrorCode.NONE
    adds = version >= 12
    assert world.host.commands == [
        commands.AddToTransaction(
            "tx", 4, 2, topic.partitions, verify_only=not adds, version=2 if adds else 1
        )
    ]
    assert len(stream.batches) == 1


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (None, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_produce_is_told_what_the_coordinator_says_as_kafka_puts_it(
    said: ErrorCode | None, version: int, told: ErrorCode
) -> None:
    """Nothing is appended then. None: no coordinator answered."""
    world = World()
    (stream,) = world.topic()
    world.host.command_outcome = Outcome(OutcomeKind.UNKNOWN)
    if said is not None:
        world.host.command_outcome = Outcome(OutcomeKind.APPLIED, CommandAnswer(said))
    request = produce(transactional(), transactional_id="tx")
    assert error_of(world, request, version) == told
    assert not stream.batches


def test_produce_with_a_transactional_id_may_hold_other_batches() -> None:
    """As in Kafka: the batch's own fields count."""
    world = World()
    world.topic()
    assert error_of(world, produce(batch(), transactional_id="tx")) == ErrorCode.NONE
    assert not world.host.commands


@pytest.mark.parametrize(
    ("acks", "timeout_ms", "producer_id", "is_appended"),
    [
        (-1, 1_000, -1, False),
        (1, 1_000, -1, False),
        (-1, 1_100, -1, True),
        (-1, 0, -1, True),
        (0, 1_000, -1, True),
        (-1, 1_000, 7, True),
    ],
)
def test_produce_that_its_client_gave_up_before_it_started_is_not_appended(
    acks: int, timeout_ms: int, producer_id: int, is_appended: bool
) -> None:
    """A request past its timeout is dropped, with two exceptions.

    With acks=0 no client waits for a response, and a producer with an id would have later sequence
    numbers refused without it.
    """
    world = World()
    (stream,) = world.topic()
    world.host.overloaded = True
    client = world.client()
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    request = produce(batch(**fields) if producer_id >= 0 else batch(), acks=acks)
    request.timeout_ms = timeout_ms
    client.request(PRODUCE, 9, request)
    world.run(1_000)
    world.host.overloaded = False
    world.run(20)
    assert bool(stream.batches) is is_appended
    if acks:
        error = ErrorCode.NONE if is_appended else ErrorCode.REQUEST_TIMED_OUT
        assert only(client.answers()[0]).error_code == error


def test_produce_that_waited_to_be_started_has_less_time_for_its_append() -> None:
    """The request's timeout runs from its arrival."""
    world = World()
    (stream,) = world.topic()
    stream.auto_commit = False
    deadlines = []
    append = stream.append

    def noted(*args: Any, deadline_ns: int, **named: Any) -> None:
        deadlines.append(deadline_ns)
        append(*args, deadline_ns=deadline_ns, **named)

    stream.append = noted  # type: ignore[method-assign]
    came_ns = world.clock.now_ns()
    world.host.overloaded = True
    world.client().request(PRODUCE, 9, produce(batch()))
    world.run(400)
    world.host.overloaded = False
    world.run(20)
    assert deadlines == [came_ns + 1_000 * MS]


def test_produce_waits_while_the_host_has_no_room() -> None:
    """Producers are held back while too much is unflushed, and resume when there is room."""
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


def test_clients_that_go_away_leave_their_appends() -> None:
    """An appended batch stays appended; its outcome has no recipient."""
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


# --- contents of a batch ---


def claiming(
    count: int, *, records: int = 1, size: int = 10, codec: Compression = Compression.NONE
) -> bytearray:
    """Return a batch whose header claims `count` records."""
    data = batch(records, size, compression=codec)
    data[23:27] = (count - 1).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    seal(data)
    return data


def with_garbage(*, size: int = 10) -> bytearray:
    """Return a batch with trailing bytes after its record."""
    data = batch(size=size) + b"garbage"
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    seal(data)
    return data


def repacked(
    codec: Compression, change: Callable[[bytes], bytes], *, count: int = 3, size: int = 10
) -> bytearray:
    """Return a batch whose compressed records were changed."""
    plain = batch(count, size, compression=codec)
    data = plain[:HEADER_BYTES] + change(bytes(plain[HEADER_BYTES:]))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    seal(data)
    return data


CODECS = [codec for codec in Compression if codec is not Compression.NONE]
LOOP_BYTES = [0, 2 << 20]
"""Check everything off the event loop, or small batches on it."""


def world_with(loop_bytes: int) -> World:
    return World(KafkaOptions(record_check_loop_bytes=loop_bytes))


@pytest.mark.parametrize("loop_bytes", LOOP_BYTES)
@pytest.mark.parametrize(
    "records",
    [
        claiming((1 << 31) - 1),
        claiming(10),
        claiming(2),
        claiming(2, records=3),
        with_garbage(),
        *(claiming(10, codec=codec) for codec in CODECS),
        *(claiming(2, records=3, codec=codec) for codec in CODECS),
        *(repacked(codec, lambda data: data[:-3]) for codec in CODECS),
        *(repacked(codec, lambda data: data + b"more") for codec in CODECS),
        *(repacked(codec, lambda data: b"") for codec in CODECS),
        *(repacked(codec, lambda data: b"\xff" * 30) for codec in CODECS),
    ],
)
def test_produce_of_a_lying_batch_is_refused_and_takes_no_offset(
    records: bytearray, loop_bytes: int
) -> None:
    """The number of offsets equals the number of records, and everything stored can be read."""
    world = world_with(loop_bytes)
    (stream,) = world.topic()
    client = world.client()
    answer = only(client.ask(PRODUCE, 9, produce(records)))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.error_message
    assert answer.log_start_offset == stream.log_start_offset
    assert stream.batches == []
    assert only(client.ask(PRODUCE, 9, produce(batch()))).base_offset == 0


@pytest.mark.parametrize("loop_bytes", LOOP_BYTES)
@pytest.mark.parametrize("codec", Compression)
def test_produce_of_sound_batches_passes_wherever_they_are_checked(
    codec: Compression, loop_bytes: int
) -> None:
    """Covers small and large batches with each codec."""
    world = world_with(loop_bytes)
    (stream,) = world.topic()
    client = world.client()
    for count, size in ((1, 0), (50, 100), (200, 4_000)):
        answer = only(client.ask(PRODUCE, 9, produce(batch(count, size, compression=codec))))
        assert answer.error_code == ErrorCode.NONE
    assert [len(list(iter_records(memoryview(one.data)))) for one in stream.batches] == [1, 50, 200]


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_produce_of_a_decompression_bomb_is_refused(codec: Compression) -> None:
    """A few kilobytes would decompress to 64 MiB."""
    world = World()
    (stream,) = world.topic()
    zeros = compress(codec, bytes(64 << 20))
    bomb = repacked(codec, lambda data: zeros)
    assert len(bomb) < 1 << 20
    assert error_of(world, produce(bomb)) == ErrorCode.INVALID_RECORD
    assert stream.batches == []


@pytest.mark.parametrize("loop_bytes", LOOP_BYTES)
def test_produce_with_a_wrong_largest_timestamp_is_corrected(loop_bytes: int) -> None:
    """As in Kafka: the header is set to the records' largest timestamp, with a valid CRC."""
    world = world_with(loop_bytes)
    (stream,) = world.topic()
    for lie in (WALL_MS + 1_000_000, 0, -1):
        data = batch(3)
        data[35:43] = lie.to_bytes(8, "big", signed=True)
        seal(data)
        assert error_of(world, produce(data)) == ErrorCode.NONE
    for stored in stream.batches:
        assert read_header(stored.data).max_timestamp == WALL_MS + 2
        assert crc_matches(memoryview(stored.data))


def test_produce_without_timestamps_is_filed_under_the_time_of_its_append() -> None:
    """This lets retention age the batch; the records themselves still have no timestamp."""
    world = World()
    (stream,) = world.topic()
    assert error_of(world, produce(batch(timestamp=-1))) == ErrorCode.NONE
    (stored,) = stream.batches
    assert read_header(stored.data).max_timestamp == -1
    assert WALL_MS <= stored.timestamp < WALL_MS + 1_000


@pytest.mark.parametrize("loop_bytes", LOOP_BYTES)
def test_produce_names_each_record_that_is_out_of_time(loop_bytes: int) -> None:
    """KIP-467: the index and error of each from v8 on. The rest of the request is appended."""
    world = world_with(loop_bytes)
    world.topic(configs={"message.timestamp.before.max.ms": "1000"})
    times = [WALL_MS, WALL_MS - 5_000, WALL_MS, WALL_MS + 4_000_000]
    data = build_batch([Record(None, b"v", timestamp=time) for time in times])
    answer = only(world.client().ask(PRODUCE, 9, produce(data)))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert answer.error_message
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    assert str(times[1]) in answer.record_errors[0].batch_index_error_message
    before = only(world.client().ask(PRODUCE, 7, produce(data)))
    assert (before.error_code, before.record_errors) == (ErrorCode.INVALID_TIMESTAMP, [])


def test_produce_where_keys_are_required_names_the_records_without() -> None:
    """A compacted topic keeps records by key."""
    world = World()
    world.topic(configs={"cleanup.policy": "compact"})
    keys = [b"a", None, b"b", None]
    data = build_batch([Record(key, b"v", timestamp=WALL_MS) for key in keys])
    answer = only(world.client().ask(PRODUCE, 9, produce(data)))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1, 3]


class Threads:
    """Jobs that wait until a test runs them, in any order."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def compute(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append(lambda: done(job()))


def threaded_world() -> tuple[World, Threads]:
    world, threads = world_with(100), Threads()
    world.context.record_checks = RecordChecks(threads.compute, 100)
    return world, threads


def test_produce_that_left_the_loop_holds_back_those_behind_it() -> None:
    """The log has a connection's batches in the order in which they were sent."""
    world, threads = threaded_world()
    (stream,) = world.topic()
    client, other = world.client(), world.client()
    client.request(PRODUCE, 9, produce(batch(5, 100)))
    client.request(PRODUCE, 9, produce(batch(1)))
    other.request(PRODUCE, 9, produce(batch(2)))
    world.run()
    assert [read_header(one.data).count for one in stream.batches] == [2]
    threads.jobs.pop()()
    world.run()
    assert [read_header(one.data).count for one in stream.batches] == [2, 5, 1]
    assert [only(answer).base_offset for answer in client.answers()] == [2, 7]


def test_produce_of_several_partitions_keeps_their_order_within_the_request() -> None:
    """Checks may end in another order than they began. A refused batch delays no other."""
    world, threads = threaded_world()
    first, second, third, fourth = world.topic(partitions=4)
    client = world.client()
    bad, large, small = with_garbage(size=200), batch(3, 200), batch(1)
    request = produce()
    request.topic_data[0].partition_data = [
        PartitionProduceData(partition, memoryview(data))
        for partition, data in ((1, small), (0, bad), (2, large), (3, batch(2)))
    ]
    client.request(PRODUCE, 9, request)
    assert (len(first.batches), len(second.batches)) == (0, 1)
    while threads.jobs:
        threads.jobs.pop()()
    world.run()
    (answer,) = client.answers()
    rows = answer.responses[0].partition_responses
    assert [row.error_code for row in rows] == [0, ErrorCode.INVALID_RECORD, 0, 0]
    assert [row.base_offset for row in rows] == [0, -1, 0, 0]
    assert (len(first.batches), len(third.batches), len(fourth.batches)) == (0, 1, 1)


def test_produce_whose_topic_goes_while_it_is_checked_is_not_appended() -> None:
    """The log it was meant for no longer exists."""
    world, threads = threaded_world()
    world.topic()
    client = world.client()
    client.request(PRODUCE, 9, produce(batch(5, 100)))
    world.host.streams.clear()
    threads.jobs.pop()()
    world.run()
    assert only(client.answers()[0]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_produce_without_acks_that_lies_closes_the_connection() -> None:
    """Holds also if the error is found off the event loop."""
    world, threads = threaded_world()
    (stream,) = world.topic()
    client = world.client()
    client.request(PRODUCE, 9, produce(with_garbage(size=200), acks=0))
    threads.jobs.pop()()
    world.run()
    assert client.closed
    assert stream.batches == []


def test_produce_waits_while_too_much_waits_for_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes held for checks are bounded over all connections of a principal.

    At the bound none of its requests starts; one batch below it all do. Other principals continue.
    """
    large = batch(5, 100)
    monkeypatch.setattr(record_checks, "WAITING_BYTES_MAX", 8 * len(large))
    world, threads = threaded_world()
    (stream,) = world.topic()
    for _ in range(3):
        world.client().request(PRODUCE, 9, produce(large))
    small, other = world.client(), world.client()
    other.session.info.principal = Principal("bob")
    assert only(small.ask(PRODUCE, 9, produce(batch()))).error_code == ErrorCode.NONE
    world.client().request(PRODUCE, 9, produce(large))
    assert len(threads.jobs) == CHECKS_AT_ONCE
    small.request(PRODUCE, 9, produce(batch()))
    world.run()
    assert small.answers() == []
    assert only(other.ask(PRODUCE, 9, produce(batch()))).error_code == ErrorCode.NONE
    threads.jobs.pop()()
    world.run()
    assert only(small.answers()[0]).error_code == ErrorCode.NONE
    while threads.jobs:
        threads.jobs.pop()()
    world.run()
    assert stream.high_watermark == 4 * 5 + 3


def test_produce_duplicate_is_answered_with_the_originals_append_time() -> None:
    """KIP-98, as in Kafka: not with the current time."""
    world = World()
    (stream,) = world.topic(configs={"message.timestamp.type": "LogAppendTime"})
    stream.duplicate_timestamp = WALL_MS - 77
    answer = only(world.client().ask(PRODUCE, 9, produce(batch())))
    assert answer.log_append_time_ms == WALL_MS - 77


@pytest.mark.parametrize("size", [50, 5_000])
def test_batch_is_kept_in_the_codec_of_its_topic(size: int) -> None:
    """A batch in another codec is recompressed, on or off the event loop, with the same records."""
    world, threads = threaded_world()
    world.context.record_checks = RecordChecks(threads.compute, 1 << 20)
    (stream,) = world.topic(configs={"compression.type": "zstd", "compression.zstd.level": "7"})
    client = world.client()
    for codec in Compression:
        client.request(PRODUCE, 9, produce(batch(5, size, compression=codec)))
    while threads.jobs:
        threads.jobs.pop(0)()
        world.run()
    world.run()
    assert [only(answer).base_offset for answer in client.answers()] == [0, 5, 10, 15, 20]
    for kept in stream.batches:
        assert read_header(kept.data).codec == Compression.ZSTD
        assert crc_matches(memoryview(kept.data))
        values = [record.value for record in iter_records(memoryview(kept.data))]
        assert values == [bytes(size)] * 5
    assert world.context.record_checks.recompressed == 4


def test_batch_that_grows_beyond_its_topics_limit_is_refused() -> None:
    """The limit applies to the batch as stored, not as sent."""
    world = World()
    (stream,) = world.topic(
        configs={"compression.type": "uncompressed", "max.message.bytes": "500"}
    )
    sent = batch(1, 1_000, compression=Compression.GZIP)
    assert error_of(world, produce(sent)) == ErrorCode.MESSAGE_TOO_LARGE
    assert stream.batches == []


def test_topics_without_a_setting_follow_the_servers() -> None:
    """Covers codec, timestamp type and timestamp bounds."""
    world = World(
        KafkaOptions(
            compression_type="gzip", timestamp_before_max_ms=1_000, timestamp_after_max_ms=500
        )
    )
    (stream,) = world.topic()
    assert error_of(world, produce(batch())) == ErrorCode.NONE
    assert read_header(stream.batches[0].data).codec == Compression.GZIP
    for timestamp, error in (
        (WALL_MS - 1_000, ErrorCode.INVALID_TIMESTAMP),  # some virtual time has passed
        (WALL_MS + 5_000, ErrorCode.INVALID_TIMESTAMP),
        (WALL_MS, ErrorCode.NONE),
    ):
        assert error_of(world, produce(batch(timestamp=timestamp))) == error
    world = World(KafkaOptions(timestamp_type="LogAppendTime"))
    (stream,) = world.topic()
    assert error_of(world, produce(batch(timestamp=5))) == ErrorCode.NONE
    assert read_header(stream.batches[0].data).is_log_append_time
