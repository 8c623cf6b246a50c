"""Record batches: checks of a produce, patching, reading, building."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.errors import ErrorCode, KafkaError
from vdl.records.batch import (
    HEADER_BYTES,
    BatchFields,
    CorruptBatch,
    Record,
    build_batch,
    check_batch,
    crc_matches,
    first_at_or_after,
    iter_records,
    patch_log_append_time,
    patch_position,
    read_header,
    read_varint,
    seal,
    split_batches,
    write_varint,
)
from vdl.records.compression import Compression

BYTES_MAX = 1_048_588


def batch_of(count: int = 3, **fields: object) -> bytearray:
    records = [Record(b"k%d" % i, b"v" * 20, timestamp=1_000 + i) for i in range(count)]
    return build_batch(records, BatchFields(**fields))  # type: ignore[arg-type]


def code_of(
    records: bytearray | bytes | None, *, version: int = 9, bytes_max: int = BYTES_MAX
) -> ErrorCode:
    """Return the error code of a produce of these records."""
    view = None if records is None else memoryview(records)
    try:
        check_batch(view, produce_version=version, bytes_max=bytes_max)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def changed(position: int, value: bytes, *, sealed: bool = True) -> bytearray:
    """Return a valid batch with some bytes replaced, with or without a recomputed CRC."""
    batch = batch_of()
    batch[position : position + len(value)] = value
    if sealed:
        seal(batch)
    return batch


def test_good_batch_passes_and_gives_its_header() -> None:
    """Nothing valid is refused."""
    batch = batch_of(5, producer_id=7, producer_epoch=1, base_sequence=0)
    header = check_batch(memoryview(batch), produce_version=9, bytes_max=len(batch))
    assert header == read_header(batch)
    assert (header.size, header.count, header.max_timestamp) == (len(batch), 5, 1_004)


@pytest.mark.parametrize("codec", Compression)
def test_batch_of_every_codec_passes(codec: Compression) -> None:
    """The payload is not decompressed."""
    assert code_of(batch_of(compression=codec)) is ErrorCode.NONE


INVALID = ErrorCode.INVALID_RECORD
CORRUPT = ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, INVALID),
        (b"", INVALID),
        (bytes(16), INVALID),
        (batch_of()[:-1], INVALID),
        (batch_of()[:40], INVALID),
        (batch_of() + batch_of(), INVALID),
        (batch_of() + b"x", INVALID),
        (changed(8, (13).to_bytes(4)), CORRUPT),
        (changed(8, (-1).to_bytes(4, signed=True)), CORRUPT),
        (changed(8, (48).to_bytes(4)), CORRUPT),
        (changed(16, b"\x03"), CORRUPT),
        (changed(16, b"\xff"), CORRUPT),
        (changed(16, b"\x01"), INVALID),
        (changed(16, b"\x00"), INVALID),
        (changed(70, b"!", sealed=False), CORRUPT),
        (changed(0, (1).to_bytes(8)), INVALID),
        (changed(57, (0).to_bytes(4)), INVALID),
        (changed(57, (4).to_bytes(4)), INVALID),
        (changed(23, (5).to_bytes(4)), INVALID),
        (changed(21, (0x20).to_bytes(2)), INVALID),
        (batch_of(producer_id=5, producer_epoch=0, base_sequence=-1), INVALID),
        (changed(21, (5).to_bytes(2)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (changed(21, (7).to_bytes(2)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (changed(21, (8).to_bytes(2)), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_bad_batch_is_answered_with_kafkas_code(records: bytes | None, code: ErrorCode) -> None:
    """One row for each kind of bad batch."""
    assert code_of(records) is code


def test_flipped_bit_anywhere_under_the_crc_is_corrupt_and_never_final() -> None:
    """The CRC is checked before any field it covers is trusted: producers retry."""
    batch = batch_of()
    for bit in range(17 * 8, len(batch) * 8):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        assert code_of(flipped) is CORRUPT


def test_batch_above_the_topics_limit_is_too_large_and_at_it_is_not() -> None:
    """`max.message.bytes` counts the whole batch."""
    batch = batch_of()
    assert code_of(batch, bytes_max=len(batch)) is ErrorCode.NONE
    assert code_of(batch, bytes_max=len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE


def test_zstd_is_refused_before_produce_version_7() -> None:
    """KIP-110."""
    batch = batch_of(compression=Compression.ZSTD)
    assert code_of(batch, version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert code_of(batch, version=7) is ErrorCode.NONE


def test_old_formats_are_no_batch() -> None:
    """Callers that accept them try `vdl.records.legacy` first."""
    for magic in (b"\0", b"\1"):
        assert code_of(changed(16, magic), version=3) is ErrorCode.INVALID_RECORD


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_answered_and_nothing_else_is_raised(data: bytes) -> None:
    """Any bytes give an error code."""
    assert code_of(data) is not ErrorCode.NONE


def test_patching_the_position_leaves_the_crc_good() -> None:
    """Base offset and leader epoch lie outside the CRC."""
    batch = batch_of()
    patch_position(memoryview(batch), base_offset=2**40, leader_epoch=17)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (2**40, 17)
    assert header.last_offset == 2**40 + 2
    assert crc_matches(memoryview(batch))


def test_log_append_time_is_every_records_time_and_reseals_the_batch() -> None:
    """This is the one patch that recomputes the CRC."""
    batch = batch_of()
    patch_log_append_time(memoryview(batch), 99_000)
    header = read_header(batch)
    assert header.is_log_append_time
    assert header.max_timestamp == 99_000
    assert crc_matches(memoryview(batch))
    assert {record.timestamp for record in iter_records(memoryview(batch))} == {99_000}


def test_header_tells_what_the_attributes_say() -> None:
    """Covers flags, codec and sequence arithmetic."""
    batch = batch_of(
        3,
        producer_id=1,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        is_transactional=True,
        is_control=True,
        compression=Compression.LZ4,
    )
    header = read_header(batch)
    assert header.is_transactional
    assert header.is_control
    assert header.has_producer_id
    assert not header.is_log_append_time
    assert header.codec == Compression.LZ4
    assert header.last_sequence == 0
    assert not read_header(batch_of()).has_producer_id
    assert not read_header(batch_of(producer_id=-2)).has_producer_id, "no server gives it"


OPTIONAL_BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        Record,
        key=OPTIONAL_BYTES,
        value=OPTIONAL_BYTES,
        headers=st.lists(st.tuples(st.text(max_size=9), OPTIONAL_BYTES), max_size=3),
        timestamp=st.integers(-1, 2**50),
    ),
    min_size=1,
    max_size=20,
)


@given(records=RECORDS, codec=st.sampled_from(Compression), base_offset=st.integers(0, 2**60))
@settings(max_examples=150, deadline=None)
def test_records_of_a_built_batch_come_back(
    records: list[Record], codec: Compression, base_offset: int
) -> None:
    """iter_records(build_batch(r)) == r, with dense offsets."""
    batch = memoryview(
        build_batch(records, BatchFields(base_offset=base_offset, compression=codec))
    )
    for delta, record in enumerate(records):
        record.offset = base_offset + delta
    assert list(iter_records(batch)) == records
    assert crc_matches(batch)
    assert read_header(batch).max_timestamp == max(record.timestamp for record in records)


@pytest.mark.parametrize("codec", Compression)
def test_damaged_records_raise_corrupt_batch_and_nothing_else(codec: Compression) -> None:
    """The payload is truncated, flipped or replaced, with a header that states more."""
    rng = random.Random(codec)
    good = build_batch(
        [Record(rng.randbytes(8), rng.randbytes(30), [("h", b"x")], 5) for _ in range(8)],
        BatchFields(compression=codec),
    )
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(HEADER_BYTES, len(bad))] = rng.choice((0, 1, 127, 128, 255))
        for hostile in (bad, good[: rng.randrange(len(good))]):
            try:
                for _record in iter_records(memoryview(hostile)):
                    pass
            except CorruptBatch:
                pass


def test_unknown_codec_cannot_be_read() -> None:
    """Codecs 5 to 7 do not exist."""
    with pytest.raises(CorruptBatch):
        list(iter_records(memoryview(changed(21, (6).to_bytes(2)))))


def test_split_gives_whole_batches_and_leaves_a_cut_one_out() -> None:
    """A fetch may end in the middle of a batch; clients ignore that part."""
    first, second = batch_of(1), batch_of(2)
    whole = bytes(first + second)
    assert split_batches(memoryview(whole)) == [first, second]
    for cut in range(len(whole)):
        expected = [first] if cut >= len(first) else []
        assert split_batches(memoryview(whole)[:cut]) == expected


def test_split_refuses_what_cannot_be_a_batch() -> None:
    """Covers a length below the header's, and another magic."""
    for position, value in ((8, (48).to_bytes(4)), (16, b"\x01")):
        with pytest.raises(CorruptBatch) as caught:
            split_batches(memoryview(batch_of() + changed(position, value)))
        assert caught.value.position == len(batch_of()) + position


def test_first_record_at_or_after_a_timestamp_is_the_earliest_in_offset_order() -> None:
    """ListOffsets by time: the least offset whose timestamp is not earlier."""
    records = [Record(value=b"v", timestamp=time) for time in (10, 30, 20, 40)]
    batch = memoryview(build_batch(records, BatchFields(base_offset=100)))
    found = {time: first_at_or_after(batch, time) for time in (5, 10, 11, 30, 31, 41)}
    assert found == {
        5: (100, 10), 10: (100, 10), 11: (101, 30), 30: (101, 30), 31: (103, 40), 41: None,
    }  # fmt: skip


def test_batch_of_no_records_cannot_be_built() -> None:
    """A batch holds at least one."""
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


@given(st.integers(-(2**63), 2**63 - 1))
def test_varint_comes_back(value: int) -> None:
    """read(write(v)) == v for 64 bits."""
    out = bytearray()
    write_varint(out, value)
    assert read_varint(out, 0) == (value, len(out))


def test_varint_that_never_ends_is_corrupt() -> None:
    """Ten bytes are the most a 64-bit value takes."""
    with pytest.raises(CorruptBatch):
        read_varint(b"\xff" * 20, 0)
    with pytest.raises(IndexError):
        read_varint(b"\xff", 0)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_records_behind_skipped_ones_are_the_same(compression: Compression) -> None:
    """For any number of skipped records: none, some, all, and more than there are."""
    records = [Record(b"k%d" % index, b"v" * index, [("h", b"x")], 5 + index) for index in range(9)]
    batch = memoryview(build_batch(records, BatchFields(compression=compression)))
    everything = list(iter_records(batch))
    for skip in (0, 1, 5, 9, 10):
        assert list(iter_records(batch, skip)) == everything[skip:]


def test_skipping_stops_at_what_is_no_record() -> None:
    """Covers impossible lengths and missing records."""
    batch = build_batch([Record(None, b"value"), Record(None, b"value")])
    negative = bytearray(batch)
    negative[61] = 1
    for damaged, skip in ((negative, 1), (batch[:62], 2), (batch[:61], 1)):
        with pytest.raises(CorruptBatch):
            list(iter_records(memoryview(damaged), skip))
