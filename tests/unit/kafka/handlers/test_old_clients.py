"""Produce v0 to v2 and Fetch v0 to v3: clients before Kafka 0.11 beside current ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kafka.fake_host import WALL_MS, FakeStream, World, batch, fill
from tests.unit.kafka.handlers.test_fetch import FETCH, fetch, parts
from tests.unit.kafka.handlers.test_produce import PRODUCE, error_of, only, produce
from tests.unit.kafka_wire.message_sets import changed, message, shallow, wrapped
from vdl.errors import ErrorCode
from vdl.kafka.partitions import down_conversion, record_checks
from vdl.kafka.partitions.record_checks import RecordChecks
from vdl.kafka.wire.fetch import PartitionData
from vdl.records.batch import (
    BatchFields,
    Record,
    build_batch,
    crc_matches,
    iter_records,
    read_header,
)
from vdl.records.compression import Compression

PRODUCE_VERSIONS = pytest.mark.parametrize("version", [0, 1, 2])
FETCH_VERSIONS = pytest.mark.parametrize("version", [0, 1, 2, 3])
LIMIT = record_checks.LOOP_BYTES_IN_PYTHON


def messages(*values: bytes | None, magic: int = 1, timestamp: int = WALL_MS) -> bytes:
    """Return a message set."""
    return b"".join(
        message(magic, value, offset=index, timestamp=timestamp)
        for index, value in enumerate(values)
    )


def stored(stream: FakeStream) -> list[Record]:
    """Return all records of a partition, from sealed batches."""
    found: list[Record] = []
    for one in stream.batches:
        assert crc_matches(memoryview(one.data))
        found += iter_records(memoryview(one.data))
    return found


def append(stream: FakeStream, *records: Record, **fields: Any) -> None:
    """Commit one batch."""
    data = memoryview(build_batch(records, BatchFields(**fields)))
    stream.append(data, read_header(data), deadline_ns=0, done=lambda _: None)
    stream.commit()


# --- Produce ---


@PRODUCE_VERSIONS
@pytest.mark.parametrize("magic", [0, 1])
def test_produce_of_messages_stores_one_batch(version: int, magic: int) -> None:
    """The response has the first message's offset. The batch has a timestamp in either magic."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    for base in (0, 3):
        request = produce(bytearray(messages(b"a", None, b"c", magic=magic)))
        answer = only(client.ask(PRODUCE, version, request))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, base)
    assert [one.value for one in stored(stream)] == [b"a", None, b"c"] * 2
    expected = WALL_MS if magic else -1
    assert {one.timestamp for one in stored(stream)} == {expected}
    assert [len(list(iter_records(memoryview(one.data)))) for one in stream.batches] == [3, 3]
    assert all(one.timestamp >= WALL_MS for one in stream.batches), "retention would not age it"


@pytest.mark.parametrize("size", [100, LIMIT - 200, LIMIT + 1, 10 * LIMIT])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.LZ4])
def test_produce_of_any_size_is_converted(size: int, codec: Compression) -> None:
    """Converted on the event loop or off it, before or after decompression."""
    world = World()
    (stream,) = world.topic()
    data = messages(b"x" * size)
    if codec:
        data = wrapped(1, data, codec)
    assert error_of(world, produce(bytearray(data)), 2) == ErrorCode.NONE
    (one,) = stored(stream)
    assert one.value == b"x" * size
    assert read_header(stream.batches[0].data).codec == codec
    left_loop = world.context.record_checks.left_loop
    assert left_loop == (len(data) > LIMIT or size > LIMIT)


def test_produce_of_a_set_off_the_loop_keeps_its_place() -> None:
    """Requests sent later on the connection are appended later."""
    jobs: list[tuple[Any, Any]] = []
    world = World()
    checks = RecordChecks(lambda job, done: jobs.append((job, done)), 1 << 20)
    world.context.record_checks = checks
    (stream,) = world.topic()
    client = world.client()
    client.request(PRODUCE, 1, produce(bytearray(messages(b"x" * 2 * LIMIT))))
    client.request(PRODUCE, 1, produce(bytearray(messages(b"second"))))
    client.request(PRODUCE, 9, produce(batch(size=3)))
    world.run()
    assert stream.batches == []
    ((job, done),) = jobs
    done(job())
    world.run()
    assert [only(answer).base_offset for answer in client.answers()] == [0, 1, 2]
    assert [len(one.value or b"") for one in stored(stream)] == [2 * LIMIT, 6, 3]


def test_produce_of_a_bad_set_off_the_loop_is_refused() -> None:
    """The set is refused with its error code; the next request is served."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    good = messages(b"x" * 2 * LIMIT)
    for data, code in (
        (changed(good, 40, b"y"), ErrorCode.CORRUPT_MESSAGE),
        (message(1, b"no gzip", attributes=1), ErrorCode.INVALID_RECORD),
        (wrapped(1, b"x" * 3 * LIMIT), ErrorCode.CORRUPT_MESSAGE),
        (good, ErrorCode.NONE),
    ):
        assert only(client.ask(PRODUCE, 1, produce(bytearray(data)))).error_code == code
    assert len(stream.batches) == 1


def test_produce_of_messages_is_for_old_versions_only() -> None:
    """KIP-98: from v3 on there is one batch."""
    world = World()
    world.topic()
    data = bytearray(messages(b"a"))
    assert error_of(world, produce(data), 2) == ErrorCode.NONE
    assert error_of(world, produce(data), 3) == ErrorCode.INVALID_RECORD


@PRODUCE_VERSIONS
def test_produce_of_a_batch_is_taken_in_old_versions(version: int) -> None:
    """Kafka does not require the magic that belongs to v0 to v2."""
    world = World()
    (stream,) = world.topic()
    assert error_of(world, produce(batch(2)), version) == ErrorCode.NONE
    assert len(stored(stream)) == 2


def test_produce_of_messages_obeys_the_topic() -> None:
    """Size, timestamp and key are checked as for a batch."""
    world = World()
    world.topic("small", configs={"max.message.bytes": "200"})
    world.topic("keyed", configs={"cleanup.policy": "compact"})
    (stamped,) = world.topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
    world.topic()

    def code(topic: str, data: bytes) -> int:
        return error_of(world, produce(bytearray(data), topic=topic), 2)

    assert code("small", messages(bytes(100))) == ErrorCode.NONE
    assert code("small", messages(bytes(200))) == ErrorCode.MESSAGE_TOO_LARGE
    assert code("small", messages(bytes(100), bytes(100))) == ErrorCode.MESSAGE_TOO_LARGE
    assert code("keyed", messages(b"no key")) == ErrorCode.INVALID_RECORD
    assert code("keyed", message(1, b"v", key=b"k", timestamp=WALL_MS)) == ErrorCode.NONE
    assert code("t", messages(b"a", timestamp=WALL_MS + 4_000_000)) == ErrorCode.INVALID_TIMESTAMP
    assert code("stamped", messages(b"a", timestamp=5)) == ErrorCode.NONE
    assert code("stamped", messages(b"a", magic=0)) == ErrorCode.NONE
    assert all(one.timestamp >= WALL_MS for one in stored(stamped))


def test_produce_of_messages_answers_the_append_time() -> None:
    """v2 has a field for it (KIP-32)."""
    world = World()
    (stream,) = world.topic(configs={"message.timestamp.type": "LogAppendTime"})
    answer = only(world.client().ask(PRODUCE, 2, produce(bytearray(messages(b"a")))))
    assert answer.log_append_time_ms == stored(stream)[0].timestamp


# --- Fetch ---


def values(part: PartitionData) -> list[bytes | None]:
    """Return the values of uncompressed messages."""
    found: list[bytes | None] = []
    for _, data in shallow(bytes(part.records or b"")):
        at = (22 if data[16] == 0 else 30) - 4
        key = int.from_bytes(data[at : at + 4], signed=True)
        at += 4 + max(0, key)
        length = int.from_bytes(data[at : at + 4], signed=True)
        found.append(None if length < 0 else data[at + 4 :])
    return found


@FETCH_VERSIONS
def test_fetch_of_an_old_version_gets_messages(version: int) -> None:
    """Magic 0 before v2, magic 1 from then on; offsets are those of the log."""
    world = World()
    (stream,) = world.topic()
    append(stream, Record(b"k", b"a", timestamp=5), Record(None, None, timestamp=6))
    append(stream, Record(None, b"c", [("h", b"x")], timestamp=7))
    (part,) = parts(world.client().ask(FETCH, version, fetch(1)))
    assert (part.error_code, part.high_watermark) == (ErrorCode.NONE, 3)
    found = shallow(bytes(part.records or b""))
    assert [offset for offset, _ in found] == [1, 2]
    assert {data[16] for _, data in found} == {int(version >= 2)}
    assert values(part) == [None, b"c"]


@FETCH_VERSIONS
def test_fetch_of_an_old_version_waits_and_answers_errors(version: int) -> None:
    """Long polls, the end of the log and offsets beyond it behave as in newer versions."""
    world = World()
    (stream,) = world.topic()
    client = world.client()
    client.request(FETCH, version, fetch(0, max_wait_ms=10_000))
    world.run(500)
    assert client.answers() == []
    fill(stream, 2)
    world.run(20)
    (answer,) = client.answers()
    assert len(values(parts(answer)[0])) == 2
    (part,) = parts(client.ask(FETCH, version, fetch(9)))
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (part,) = parts(client.ask(FETCH, version, fetch(2)))
    assert (part.error_code, bytes(part.records or b"")) == (ErrorCode.NONE, b"")


def test_fetch_of_an_old_version_reads_all_in_small_pieces() -> None:
    """Each response has a message, however small its limit; all arrive once, in order."""
    world = World()
    (stream,) = world.topic()
    sent = [b"%d" % index * 50 for index in range(9)]
    append(stream, *(Record(None, value) for value in sent[:6]))
    append(stream, *(Record(None, value) for value in sent[6:]))
    for version in (0, 3):
        client, found = world.client(), []
        while len(found) < len(sent):
            request = fetch(len(found), partition_max_bytes=1, max_bytes=1)
            got = values(parts(client.ask(FETCH, version, request))[0])
            assert len(got) == 1
            found += got
        assert found == sent


def test_fetch_of_an_old_version_reads_from_disk() -> None:
    world = World()
    (stream,) = world.topic()
    fill(stream, 4)
    stream.on_disk_below = 4
    (part,) = parts(world.client().ask(FETCH, 1, fetch(2)))
    assert len(values(part)) == 2
    assert stream.cold_reads == 1


def test_fetch_of_an_old_version_steps_over_control_batches() -> None:
    """A consumer that never receives them would not advance past them."""
    world = World()
    first, second = world.topic(partitions=2)
    append(first, Record(None, b"a"))
    for _ in range(20):
        append(first, Record(b"k", b"v"), is_control=True)
    append(first, Record(None, b"b"))
    fill(second, 1)
    client = world.client()
    first_part, second_part = parts(client.ask(FETCH, 2, fetch(1, 0, partition_max_bytes=100)))
    assert values(first_part) == [b"b"]
    assert len(values(second_part)) == 1
    append(first, Record(b"k", b"v"), is_control=True)
    client.request(FETCH, 2, fetch(22, max_wait_ms=10_000))
    world.run(100)
    assert client.answers() == []
    append(first, Record(None, b"c"))
    world.run(20)
    (answer,) = client.answers()
    assert values(parts(answer)[0]) == [b"c"]


def test_fetch_of_an_old_version_at_control_batches_ends_with_its_time() -> None:
    """The response is empty and is sent at max_wait."""
    world = World()
    (stream,) = world.topic()
    append(stream, Record(b"k", b"v"), is_control=True)
    (part,) = parts(world.client().ask(FETCH, 2, fetch(0), wait_ms=100))
    assert (part.error_code, bytes(part.records or b"")) == (ErrorCode.NONE, b"")


def test_fetch_of_zstd_in_an_old_version_is_refused() -> None:
    """KIP-110; other partitions are answered."""
    world = World()
    first, second = world.topic(partitions=2)
    append(first, Record(None, b"a"), compression=Compression.ZSTD)
    fill(second, 1)
    first_part, second_part = parts(world.client().ask(FETCH, 3, fetch(0, 0)))
    assert first_part.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert len(values(second_part)) == 1


def test_fetch_of_an_old_version_is_bounded_and_every_partition_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a consumer sends its partitions in a fixed order, without a limit on the response."""
    monkeypatch.setattr("vdl.kafka.handlers.fetch.BYTES_MAX", 4_000)
    world = World()
    for stream in world.topic(partitions=5):
        for _ in range(4):
            fill(stream, 1, 1_000)
    client = world.client()
    positions = [0] * 5
    for _ in range(40):
        answer = client.ask(FETCH, 1, fetch(*positions))
        sizes = [len(bytes(part.records or b"")) for part in parts(answer)]
        assert sum(sizes) <= 5_000
        for index, part in enumerate(parts(answer)):
            positions[index] += len(values(part))
    assert positions == [4] * 5


def test_fetch_of_an_old_version_ends_after_so_many_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partitions beyond the record limit have no records and are served another time."""
    monkeypatch.setattr(down_conversion, "RECORDS_MAX", 5)
    world = World()
    for stream in world.topic(partitions=3):
        fill(stream, 4)
    client = world.client()
    positions = [0] * 3
    for _ in range(20):
        answer = client.ask(FETCH, 2, fetch(*positions))
        found = [len(values(part)) for part in parts(answer)]
        assert sum(found) <= 5
        assert all(part.error_code == ErrorCode.NONE for part in parts(answer))
        positions = [position + count for position, count in zip(positions, found, strict=True)]
    assert positions == [4] * 3


def test_conversions_for_consumers_run_one_at_a_time() -> None:
    """A consumer that has disconnected meanwhile gets no response."""
    jobs: list[tuple[Any, Any]] = []
    world = World()
    world.context.down_conversion = down_conversion.DownConversion(
        lambda job, done: jobs.append((job, done))
    )
    (stream,) = world.topic()
    fill(stream, 2)
    clients = [world.client() for _ in range(3)]
    for client in clients:
        client.request(FETCH, 2, fetch(0))
    world.run()
    assert len(jobs) == 1
    clients[1].session.connection_lost()
    while jobs:
        job, done = jobs.pop()
        done(job())
        world.run()
        assert len(jobs) <= 1
    assert [len(client.answers()) for client in (clients[0], clients[2])] == [1, 1]
    assert not clients[1].received
    assert world.context.down_conversion.converted == 3
    assert not world.context.answers.used


# --- both directions ---


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "codec", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]
)
def test_what_one_generation_writes_the_other_reads(magic: int, codec: Compression) -> None:
    world = World()
    (stream,) = world.topic()
    client = world.client()
    inside = messages(b"old", b"er", magic=magic)
    data = wrapped(magic, inside, codec, offset=1) if codec else inside
    assert only(client.ask(PRODUCE, magic, produce(bytearray(data)))).error_code == 0
    new = build_batch([Record(None, b"new")], BatchFields(compression=codec))
    assert only(client.ask(PRODUCE, 9, produce(new))).error_code == 0
    assert [one.value for one in stored(stream)] == [b"old", b"er", b"new"]
    (part,) = parts(client.ask(FETCH, magic + 1, fetch(0)))
    again = world.topic("again")[0]
    sets = [data for _, data in shallow(bytes(part.records or b""))]
    for piece in sets if codec else [b"".join(sets)]:
        request = produce(bytearray(piece), topic="again")
        assert only(client.ask(PRODUCE, 2, request)).error_code == 0
    assert [one.value for one in stored(again)] == [b"old", b"er", b"new"]
    assert {read_header(one.data).codec for one in again.batches} == {codec}
