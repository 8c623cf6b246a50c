"""A batch that passes the check is readable, by us and by clients, with the count it claims."""

from __future__ import annotations

import random
import struct
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.host import at_once
from vdl.kafka.partitions import record_checks
from vdl.kafka.partitions.record_checks import (
    Bounds,
    Codec,
    Recompressed,
    RecordChecks,
    RecordsRefused,
    Scratch,
)
from vdl.records.batch import (
    HEADER_BYTES,
    LENGTH_FROM,
    BatchFields,
    Record,
    build_batch,
    check_batch,
    iter_records,
    pack_batch,
    read_header,
    seal,
    write_varint,
)
from vdl.records.compression import OUTPUT_BYTES_MAX, Compression
from vdl.records.walk import ANY_TIME

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch

BOUNDS = (*ANY_TIME, False)


def passes(batch: bytearray, loop_bytes: int) -> bool:
    """Return True if a server would append the batch."""
    view = memoryview(batch)
    verdicts: list[int | BaseException | None] = []
    try:
        header = check_batch(view, produce_version=9, bytes_max=1 << 24)
        checks = RecordChecks(at_once, loop_bytes)
        verdicts.append(checks.check(view, header, BOUNDS))
        if verdicts.pop() is None:
            checks.check_later(view, header, BOUNDS, verdicts.append)
    except KafkaError:
        return False
    return not any(isinstance(verdict, KafkaError) for verdict in verdicts)


RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=12),
        value=st.none() | st.binary(max_size=80),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))),
        timestamp=st.integers(-1, 1 << 40),
    ),
    min_size=1,
    max_size=8,
)


@given(records=RECORDS, codec=st.sampled_from(Compression), seed=st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
def test_damaged_batch_that_passes_is_read_by_every_reader(
    records: list[Record], codec: Compression, seed: int
) -> None:
    """The verdict is the same on the event loop and off it."""
    rng = random.Random(seed)
    batch = build_batch(records, BatchFields(compression=codec))
    assert passes(batch, 1 << 20)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(HEADER_BYTES, len(batch)) if len(batch) > HEADER_BYTES else 57
        change = rng.randrange(4)
        if change == 0:
            batch[at] ^= 1 << rng.randrange(8)
        elif change == 1 and len(batch) > HEADER_BYTES:
            del batch[at : at + rng.randint(1, 4)]
        elif change == 2:
            batch[at:at] = batch[at : at + rng.randint(1, 9)]
        else:
            count = read_header(batch).count + rng.choice((-1, 1, 3))
            batch[57:61] = count.to_bytes(4, "big", signed=True)
            batch[23:27] = (count - 1).to_bytes(4, "big", signed=True)
    batch[8:12] = (len(batch) - LENGTH_FROM).to_bytes(4, "big")
    seal(batch)
    sound = passes(batch, 1 << 20)
    assert sound == passes(batch, 0)
    if sound:
        count = read_header(batch).count
        ours = list(iter_records(memoryview(batch)))
        assert [record.offset for record in ours] == list(range(count))
        theirs = list(DefaultRecordBatch(bytes(batch)))
        assert [record.offset for record in theirs] == list(range(count))
        assert [record.value for record in theirs] == [record.value for record in ours]


def sized(size: int, codec: Compression = Compression.NONE) -> memoryview:
    batch = build_batch([Record(None, b"")], BatchFields(compression=codec))
    value = max(0, size - len(batch) - 3)
    return memoryview(
        build_batch(
            [Record(None, random.Random(7).randbytes(value))], BatchFields(compression=codec)
        )
    )


@pytest.mark.parametrize("excess", [0, 1])
def test_batch_leaves_the_loop_one_byte_above_the_limit(excess: int) -> None:
    """A batch at the limit is checked on the event loop."""
    batch = sized(5_000)
    checks = RecordChecks(at_once, len(batch) - excess)
    verdict = checks.check(batch, read_header(batch), BOUNDS)
    assert (verdict is None) == bool(excess)


@pytest.mark.parametrize("size", [record_checks.LOOP_DECOMPRESSED_BYTES - 20_000, 200_000])
def test_compressed_batch_leaves_the_loop_when_it_becomes_large(size: int) -> None:
    """A kilobyte that inflates to a hundred is checked on the event loop.

    One that inflates to two hundred is not, and passes all the same.
    """
    batch = memoryview(
        build_batch([Record(None, bytes(size))], BatchFields(compression=Compression.ZSTD))
    )
    checks = RecordChecks(at_once, 1 << 20)
    verdict = checks.check(batch, read_header(batch), BOUNDS)
    assert (verdict is None) == (size > record_checks.LOOP_DECOMPRESSED_BYTES)
    later: list[int | BaseException] = []
    checks.check_later(batch, read_header(batch), BOUNDS, later.append)
    assert later == [-1]


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
@pytest.mark.parametrize("more", [0, 1])
def test_batch_may_become_as_large_as_the_room_for_it(codec: Compression, more: int) -> None:
    """Megabytes of zeros in some kilobytes are accepted, as in Kafka.

    One byte past the buffer the batch is walked piece by piece, and no more than the buffer is
    held.
    """
    plain = build_batch([Record(None, bytes(1 << 20))] * 15, BatchFields())
    size = OUTPUT_BYTES_MAX - (len(plain) - HEADER_BYTES) - 11 + more
    records = [Record(None, bytes(1 << 20))] * 15 + [Record(None, bytes(size))]
    batch = memoryview(build_batch(records, BatchFields(compression=codec)))
    checks = RecordChecks(at_once, 1 << 20)
    header = check_batch(batch, produce_version=9, bytes_max=1 << 24)
    assert checks.check(batch, header, BOUNDS) is None
    verdicts: list[object] = []
    checks.check_later(batch, header, BOUNDS, verdicts.append)
    assert verdicts == [-1]
    assert checks.long == more


def large(codec: Compression, *, spoil: int = -1, key: bytes | None = b"k") -> memoryview:
    """Return a batch of 24 records, small and large in turn, that inflates beyond the buffer.

    `spoil`: the record with a wrong offset.
    """
    payload = bytearray()
    for index in range(24):
        size = 3 << 20 if index % 2 else 10
        body = bytearray(1)
        write_varint(body, index)
        write_varint(body, index + (index == spoil))
        write_varint(body, -1 if key is None else len(key))
        body += key or b""
        write_varint(body, size)
        body += bytes(size)
        body += bytes(1)
        write_varint(payload, len(body))
        payload += body
    return memoryview(
        pack_batch(
            payload, BatchFields(compression=codec), count=24, base_timestamp=1_000,
            max_timestamp=1_023,
        )
    )  # fmt: skip


def verdict_of_large(batch: memoryview, bounds: Bounds = BOUNDS) -> object:
    """Return the check's verdict; assert that the check leaves nothing behind."""
    checks = RecordChecks(at_once, 1 << 20)
    header = check_batch(batch, produce_version=9, bytes_max=1 << 24)
    verdicts: list[object] = []
    checks.check_later(batch, header, bounds, verdicts.append)
    assert checks.long == 1
    assert not checks.has_its_share("")
    return verdicts[0]


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_batch_that_becomes_more_than_the_room_is_judged_as_any_other(codec: Compression) -> None:
    """Covers a valid batch, a record out of order, unwanted records, and a truncated batch."""
    assert verdict_of_large(large(codec)) == 1_023
    broken = verdict_of_large(large(codec, spoil=20))
    assert isinstance(broken, KafkaError)
    assert (broken.code, broken.message) == (
        ErrorCode.INVALID_RECORD, "record 20: its offset delta is not its position in the batch",
    )  # fmt: skip
    keyless = verdict_of_large(large(codec, key=None), (0, 2_000, True))
    assert isinstance(keyless, RecordsRefused)
    assert [index for index, _ in keyless.record_errors] == list(range(24))
    batch = bytearray(large(codec))
    del batch[-5:]
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_FROM)
    seal(memoryview(batch))
    cut = verdict_of_large(memoryview(batch))
    assert isinstance(cut, KafkaError)
    assert cut.code is ErrorCode.INVALID_RECORD


def test_long_checks_come_one_at_a_time_and_others_pass_them() -> None:
    """They release their thread between pieces."""
    jobs: list[tuple[Any, Any]] = []
    checks = RecordChecks(lambda job, done: jobs.append((job, done)), 0)
    long, short, ended = large(Compression.ZSTD), sized(500, Compression.ZSTD), []
    for name in ("first", "second"):
        checks.check_later(
            long, read_header(long), BOUNDS, lambda _, name=name: ended.append(name), asker=name
        )
    for _ in range(2):
        job, done = jobs.pop(0)
        done(job())
    for number in range(3):
        checks.check_later(
            short, read_header(short), BOUNDS, lambda _, number=number: ended.append(number)
        )
    while jobs:
        assert len(jobs) <= record_checks.CHECKS_AT_ONCE + 1
        job, done = jobs.pop(0)
        done(job())
    assert ended == [0, 1, 2, "first", "second"]


def test_what_becomes_more_than_any_client_reads_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers gigabytes in some kilobytes: refused as soon as the limit is reached."""
    monkeypatch.setattr(record_checks, "INFLATED_BYTES_MAX", 36 << 20)
    refused = verdict_of_large(large(Compression.ZSTD))
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INVALID_RECORD
    monkeypatch.setattr(record_checks, "INFLATED_BYTES_MAX", 37 << 20)
    assert verdict_of_large(large(Compression.ZSTD)) == 1_023


def test_small_batches_that_become_large_count_for_that() -> None:
    """Otherwise thousands could wait, and other producers' batches behind them for minutes."""
    jobs: list[object] = []
    checks = RecordChecks(lambda job, done: jobs.append((job, done)), 0)
    batch = sized(500, Compression.LZ4)
    count = 0
    while not checks.has_its_share("asker"):
        asker = f"asker {count}"
        checks.check_later(batch, read_header(batch), BOUNDS, lambda _: None, asker=asker)
        count += 1
    assert count * OUTPUT_BYTES_MAX <= 101 * record_checks.WAITING_BYTES_MAX


def test_checks_in_threads_are_few_and_use_their_buffers_again() -> None:
    """The number of threads bounds what is held decompressed, however many checks wait."""
    jobs: list[tuple[object, object]] = []
    made: list[Scratch] = []
    checks = RecordChecks(lambda job, done: jobs.append((job, done)), 0)
    batch = sized(500, Compression.LZ4)
    ended: list[int | BaseException] = []
    for _ in range(10):
        checks.check_later(batch, read_header(batch), BOUNDS, ended.append)
        assert len(jobs) <= record_checks.CHECKS_AT_ONCE
    while jobs:
        job, done = jobs.pop(0)
        made.append(job.args[-1])  # type: ignore[attr-defined]
        done(job())  # type: ignore[operator]
        assert len(jobs) <= record_checks.CHECKS_AT_ONCE
    assert ended == [-1] * 10
    assert len(set(map(id, made))) == record_checks.CHECKS_AT_ONCE
    assert sum(len(one.view) for one in {id(one): one for one in made}.values()) <= (
        record_checks.CHECKS_AT_ONCE * OUTPUT_BYTES_MAX
    )


def test_checks_in_threads_take_turns_between_askers() -> None:
    """A client with many batches delays others by those in the threads only."""
    jobs: list[tuple[Any, Any]] = []
    checks = RecordChecks(lambda job, done: jobs.append((job, done)), 0)
    batch = sized(500, Compression.LZ4)
    header, ended = read_header(batch), []

    def check(asker: str) -> None:
        checks.check_later(batch, header, BOUNDS, lambda _: ended.append(asker), asker=asker)

    for _ in range(6):
        check("eve")
    check("alice")
    check("bob")
    while jobs:
        job, done = jobs.pop(0)
        done(job())
    assert ended == ["eve", "eve", "eve", "alice", "bob", "eve", "eve", "eve"]


def test_what_one_asker_sends_leaves_room_for_what_others_send() -> None:
    """One has half of the bytes that may wait; a second one at least half of what is left."""
    jobs: list[tuple[Any, Any]] = []
    checks = RecordChecks(lambda job, done: jobs.append((job, done)), 0)
    batch = sized(1 << 20)
    header = read_header(batch)

    def fill(asker: str) -> int:
        count = 0
        while not checks.has_its_share(asker):
            checks.check_later(batch, header, BOUNDS, lambda _: None, asker=asker)
            count += 1
        return count * len(batch)

    assert not checks.is_short
    of_eve, of_alice = fill("eve"), fill("alice")
    assert checks.is_short
    half = record_checks.WAITING_BYTES_MAX // 2
    assert half <= of_eve <= half + len(batch)
    assert half // 2 - len(batch) <= of_alice <= half // 2 + len(batch)
    assert not checks.has_its_share("bob")
    while jobs:
        job, done = jobs.pop(0)
        done(job())
    assert not checks.has_its_share("eve")


def verdict_of(batch: bytearray, codec: Codec, *, in_thread: bool) -> object:
    """Return the check's verdict on a batch whose topic sets a codec."""
    view = memoryview(batch)
    header = check_batch(view, produce_version=9, bytes_max=1 << 24)
    checks = RecordChecks(at_once, 1 << 20)
    verdicts: list[object] = []
    if in_thread:
        checks.check_later(view, header, BOUNDS, verdicts.append, codec)
    else:
        try:
            verdicts.append(checks.check(view, header, BOUNDS, codec))
        except KafkaError as error:
            verdicts.append(error)
    return verdicts[0]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("sent", Compression)
@pytest.mark.parametrize("wanted", Compression)
def test_batch_gets_the_codec_of_its_topic(
    sent: Compression, wanted: Compression, in_thread: bool
) -> None:
    """Records, timestamps and sequence numbers stay; a batch in that codec is stored as sent."""
    records = [
        Record(b"k", bytes(20), [("h", None)], timestamp=1_000 + number) for number in range(9)
    ]
    fields = BatchFields(compression=sent, producer_id=7, producer_epoch=2, base_sequence=5)
    batch = build_batch(records, fields)
    verdict = verdict_of(batch, Codec(wanted, None, 1 << 20), in_thread=in_thread)
    if sent is wanted:
        assert verdict == 1_008
        return
    assert isinstance(verdict, Recompressed)
    assert verdict.max_timestamp == 1_008
    header = check_batch(verdict.batch, produce_version=9, bytes_max=1 << 20)
    assert header == verdict.header
    before = read_header(batch)
    for name in ("base_timestamp", "max_timestamp", "producer_id", "producer_epoch",
                 "base_sequence", "count", "last_offset_delta"):  # fmt: skip
        assert getattr(header, name) == getattr(before, name), name
    assert header.attributes == before.attributes & ~7 | wanted
    assert list(iter_records(verdict.batch)) == list(iter_records(memoryview(batch)))
    assert passes(bytearray(verdict.batch), 1 << 20)


@pytest.mark.parametrize("in_thread", [False, True])
def test_batch_that_becomes_too_large_is_refused(in_thread: bool) -> None:
    """The limit is for the stored batch: a kilobyte of zeros is larger without compression.

    At the limit it is accepted, one byte above refused.
    """
    batch = build_batch([Record(None, bytes(1_000))], BatchFields(compression=Compression.GZIP))
    taken = verdict_of(batch, Codec(Compression.NONE, None, 1 << 20), in_thread=in_thread)
    assert isinstance(taken, Recompressed)
    for size, fits in ((len(taken.batch), True), (len(taken.batch) - 1, False)):
        verdict = verdict_of(batch, Codec(Compression.NONE, None, size), in_thread=in_thread)
        assert isinstance(verdict, Recompressed) is fits
        if not fits:
            assert isinstance(verdict, KafkaError)
            assert verdict.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("wanted", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_batch_that_becomes_too_small_can_still_be_read(wanted: Compression) -> None:
    """Readers here refuse more than hundredfold inflation, but zeros may exceed it."""
    batch = build_batch([Record(b"k", bytes(1 << 20)) for _ in range(4)])
    verdict = verdict_of(batch, Codec(wanted, None, 8 << 20), in_thread=True)
    assert isinstance(verdict, Recompressed)
    assert verdict.header.attributes & ~7 == read_header(batch).attributes
    assert list(iter_records(verdict.batch)) == list(iter_records(memoryview(batch)))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_large_batch_is_compressed_off_the_loop(codec: Compression) -> None:
    """Applies if it is large as sent, or only when decompressed."""
    limit = record_checks.LOOP_RECOMPRESSED_BYTES
    wanted = Codec(Compression.GZIP, 1, 1 << 20)
    for size, leaves in ((limit - 200, False), (limit, True)):
        batch = build_batch([Record(None, bytes(size))], BatchFields(compression=codec))
        assert (verdict_of(batch, wanted, in_thread=False) is None) is leaves


def test_damaged_batch_is_refused_before_it_is_compressed() -> None:
    """It cannot be read in its own codec, so nothing is recompressed."""
    batch = build_batch([Record(None, bytes(500))], BatchFields(compression=Compression.LZ4))
    batch[HEADER_BYTES + 4] ^= 0xFF
    seal(memoryview(batch))
    verdict = verdict_of(batch, Codec(Compression.ZSTD, 3, 1 << 20), in_thread=True)
    assert isinstance(verdict, KafkaError)
    assert verdict.code is ErrorCode.INVALID_RECORD
