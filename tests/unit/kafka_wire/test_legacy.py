"""Message formats 0 and 1: conversion from producers and for consumers."""

from __future__ import annotations

import gzip
import random
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka_wire.message_sets import (
    TIME_MS,
    changed,
    message,
    resealed,
    shallow,
    wrapped,
)
from vdl.errors import ErrorCode, KafkaError
from vdl.records import legacy
from vdl.records.batch import (
    BatchFields,
    Record,
    build_batch,
    iter_records,
    patch_log_append_time,
    patch_position,
    read_header,
    seal,
)
from vdl.records.compression import Compression, CorruptCompression, compress
from vdl.records.legacy import down_convert, is_legacy, take, with_lz4_checksum, xxh32

CODECS = (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
BYTES_MAX = 1 << 20
SCRATCH = memoryview(bytearray(BYTES_MAX))
WRAPPER_ATTRIBUTES = 17
LOG_APPEND_TIME = 8


def taken(data: bytes, *, bytes_max: int = BYTES_MAX) -> list[Record]:
    """Return the records of the batch that a set becomes."""
    found = take(memoryview(data), SCRATCH, bytes_max=bytes_max)
    batch = memoryview(found.batch(max_timestamp=7))
    header = read_header(batch)
    assert (header.codec, header.count, header.max_timestamp) == (found.codec, found.count, 7)
    return list(iter_records(batch))


def code_of(data: bytes, *, bytes_max: int = BYTES_MAX) -> ErrorCode:
    try:
        taken(data, bytes_max=bytes_max)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def as_set(
    batch: bytes | bytearray,
    magic: int,
    *,
    first: int = 0,
    bytes_max: int = 1 << 30,
    records_max: int = 1 << 30,
) -> bytes:
    converted = down_convert(
        [memoryview(batch)],
        magic=magic,
        first_offset=first,
        bytes_max=bytes_max,
        records_max=records_max,
    )
    joined = b"".join(converted.buffers)
    assert len(joined) == converted.bytes
    return joined


def some_records(count: int = 20) -> list[Record]:
    return [
        Record(
            key=b"k%d" % index if index % 3 else None,
            value=b"v" * index if index % 5 else None,
            timestamp=TIME_MS + index,
        )
        for index in range(count)
    ]


# --- bytes of other clients ---

OTHERS = {
    (0, Compression.NONE): (
        "0000000000000000000000162356c1370000000000036b65790000000576616c7565000000000000"
        "00010000001f88da7c2a0000ffffffff0000001176616c75652076616c75652076616c7565000000"
        "00000000020000000e3d314895000000000000ffffffff"
    ),
    (0, Compression.GZIP): (
        "00000000000000000000005b05867f5b0001ffffffff0000004d1f8b08002093076b02ff63608003"
        "31e5b083e6601673766a2590622d4bcc294d85ca3202b17cc7ad1a2d0686ff4000e40982a5159048"
        "a8522620e6b335f4980ae1829403008bf14afd67000000"
    ),
    (0, Compression.SNAPPY): (
        "00000000000000000000007142b96b770002ffffffff0000006382534e4150505900000000010000"
        "00010000004f670000190110162356c137050f30036b65790000000576616c756505125000000100"
        "00001f88da7c2a0000ffffffff00000011051f00201d060d2b48020000000e3d3148950000000000"
        "00ffffffff"
    ),
    (0, Compression.LZ4): (
        "00000000000000000000007179dcb62a0003ffffffff0000006304224d1860401a54000000160001"
        "0051162356c1370f00d1036b65790000000576616c75651200f1060000010000001f88da7c2a0000"
        "ffffffff000000111f0017200600002800f007000000020000000e3d314895000000000000ffffff"
        "ff00000000"
    ),
    (1, Compression.NONE): (
        "00000000000000000000001e05d9e4f3010000000145f680b000000000036b65790000000576616c"
        "756500000000000000010000002794d198fb010000000145f680b001ffffffff0000001176616c75"
        "652076616c75652076616c7565000000000000000200000016170e4755010000000145f680b00200"
        "000000ffffffff"
    ),
    (1, Compression.GZIP): (
        "00000000000000000000006feeaf161001010000000000000000ffffffff000000591f8b08002093"
        "076b02ff6360800339d69b4f3e3302198caedf1a36804498b3532b81146b59624e692a54154881fa"
        "948b337ec35532fe0702204710ac4c0189846a61026231713ef750b816900803481b00c8ce7a637f"
        "000000"
    ),
    (1, Compression.SNAPPY): (
        "00000000000000000000008a63d34f1201020000000000000000ffffffff0000007482534e415050"
        "59000000000100000001000000607f00001901341e05d9e4f3010000000145f680b0011830036b65"
        "790000000576616c75650111011d1c0000002794d198fb0109052a2001ffffffff00000011052700"
        "201d0601302c0000000200000016170e47551533200200000000ffffffff"
    ),
    (1, Compression.LZ4): (
        "00000000000000000000008bb6358cfd01030000000000000000ffffffff0000007504224d186840"
        "7f00000000000000405e00000016000100e01e05d9e4f3010000000145f680b01800d0036b657900"
        "00000576616c75651100001d00850000002794d198fb2a009101ffffffff00000011270017200600"
        "013100b500000200000016170e47553300900200000000ffffffff00000000"
    ),
}  # fmt: skip
"""Bytes that kafka-python 2.0.2 sends for three records, by magic and codec.

Its LZ4 of magic 0 has the broken checksum; its wrappers have offset 0 and timestamp 0.
"""


@pytest.mark.parametrize("key", OTHERS, ids=str)
def test_set_of_another_client_is_taken(key: tuple[int, Compression]) -> None:
    """The bytes were not made by this code."""
    magic, codec = key
    data = bytes.fromhex(OTHERS[key])
    assert taken(data) == [
        Record(record_key, value, timestamp=TIME_MS + index if magic else -1, offset=index)
        for index, (record_key, value) in enumerate(
            [(b"key", b"value"), (None, b"value value value"), (b"", None)]
        )
    ]
    if codec is Compression.NONE:
        batch = build_batch(taken(data))
        assert as_set(batch, magic) == data, "what consumers get is byte for byte the same"


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"Nobody inspects", None)],
)
def test_xxh32_gives_the_sums_that_its_specification_gives(
    data: bytes, expected: int | None
) -> None:
    """The values are the reference's, and one that the codec's own library writes."""
    if expected is not None:
        assert xxh32(data) == expected
    frame = compress(Compression.LZ4, data)
    assert bytes(with_lz4_checksum(memoryview(frame), is_broken=False)) == frame


# --- from producers ---


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_set_becomes_a_batch_with_its_codec(magic: int, codec: Compression) -> None:
    """Keys, values, nulls and timestamps are kept; magic 0 has no timestamps."""
    records = some_records()
    inside = b"".join(
        message(magic, one.value, key=one.key, offset=index, timestamp=one.timestamp)
        for index, one in enumerate(records)
    )
    data = wrapped(magic, inside, codec, offset=len(records) - 1) if codec else inside
    assert is_legacy(memoryview(data))
    found = taken(data)
    assert [(one.key, one.value) for one in found] == [(one.key, one.value) for one in records]
    assert [one.timestamp for one in found] == [one.timestamp if magic else -1 for one in records]
    assert [one.offset for one in found] == list(range(len(records)))


@pytest.mark.parametrize("offset", [0, 1, 41])
def test_offsets_of_a_producer_do_not_count(offset: int) -> None:
    """Absolute or relative, dense or not (librdkafka wrote 0 everywhere): new ones are assigned."""
    inside = message(1, b"a", offset=offset) + message(1, b"b", offset=offset)
    assert [one.offset for one in taken(wrapped(1, inside, offset=offset))] == [0, 1]


def test_lz4_of_magic_0_may_have_either_checksum() -> None:
    """KAFKA-3160: the broken one is the rule, the correct one is what some clients wrote."""
    inside = message(0, b"a" * 100)
    sound = message(0, compress(Compression.LZ4, inside), attributes=Compression.LZ4)
    broken = wrapped(0, inside, Compression.LZ4)
    assert sound != broken
    assert taken(sound) == taken(broken)


def test_lz4_of_magic_1_must_have_the_sound_checksum() -> None:
    inside = message(1, b"a" * 100)
    frame = with_lz4_checksum(memoryview(compress(Compression.LZ4, inside)), is_broken=True)
    with pytest.raises(CorruptCompression):
        taken(message(1, bytes(frame), attributes=Compression.LZ4))


def test_messages_of_both_magics_may_follow_one_another() -> None:
    found = taken(message(0, b"a") + message(1, b"b"))
    assert [(one.value, one.timestamp) for one in found] == [(b"a", -1), (b"b", TIME_MS)]


PLAIN = message(1, b"value", key=b"key")
NESTED = wrapped(1, wrapped(1, message(1, b"a")))

REFUSED = {
    "crc": (changed(PLAIN, 12, b"\0\0\0\0"), ErrorCode.CORRUPT_MESSAGE),
    "value bit": (changed(PLAIN, len(PLAIN) - 1, b"E"), ErrorCode.CORRUPT_MESSAGE),
    "crc of the second": (PLAIN + changed(PLAIN, 12, b"\0"), ErrorCode.CORRUPT_MESSAGE),
    "crc inside": (
        wrapped(1, changed(PLAIN, 12, b"\0\0\0\0")),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "magic 2 behind": (PLAIN + changed(PLAIN, 16, b"\2"), ErrorCode.CORRUPT_MESSAGE),
    "size 0": (changed(PLAIN, 8, bytes(4)), ErrorCode.CORRUPT_MESSAGE),
    "size below 0": (changed(PLAIN, 8, b"\xff" * 4), ErrorCode.CORRUPT_MESSAGE),
    "size of magic 0": (changed(PLAIN, 8, (21).to_bytes(4)), ErrorCode.CORRUPT_MESSAGE),
    "size too large": (changed(PLAIN, 8, b"\x7f\xff\xff\xff"), ErrorCode.INVALID_RECORD),
    "cut off": (PLAIN[:-1], ErrorCode.INVALID_RECORD),
    "second cut off": (PLAIN + PLAIN[:20], ErrorCode.INVALID_RECORD),
    "second hardly begun": (PLAIN + PLAIN[:9], ErrorCode.INVALID_RECORD),
    "key length": (resealed(changed(PLAIN, 26, b"\0\0\1\0")), ErrorCode.INVALID_RECORD),
    "key length -2": (resealed(changed(PLAIN, 26, b"\xff\xff\xff\xfe")), ErrorCode.INVALID_RECORD),
    "value length": (resealed(changed(PLAIN, 33, b"\0\0\0\4")), ErrorCode.INVALID_RECORD),
    "value beyond": (resealed(changed(PLAIN, 33, b"\0\0\0\6")), ErrorCode.INVALID_RECORD),
    "key to the end": (resealed(changed(PLAIN, 26, b"\0\0\0\x0c")), ErrorCode.INVALID_RECORD),
    "nested": (NESTED, ErrorCode.INVALID_RECORD),
    "other magic inside": (wrapped(1, message(0, b"a")), ErrorCode.INVALID_RECORD),
    "nothing inside": (wrapped(1, b""), ErrorCode.INVALID_RECORD),
    "cut off inside": (wrapped(1, PLAIN + PLAIN[:-1]), ErrorCode.INVALID_RECORD),
    "no value": (message(1, None, attributes=1), ErrorCode.INVALID_RECORD),
    "two wrappers": (2 * wrapped(1, PLAIN), ErrorCode.INVALID_RECORD),
    "wrapper behind": (PLAIN + wrapped(1, PLAIN), ErrorCode.INVALID_RECORD),
    "message behind a wrapper": (wrapped(1, PLAIN) + PLAIN, ErrorCode.INVALID_RECORD),
    "zstd": (
        message(1, compress(Compression.ZSTD, PLAIN), attributes=4),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "codec 7": (message(1, b"x", attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "append time": (message(1, b"x", attributes=8), ErrorCode.INVALID_TIMESTAMP),
    "negative time": (message(1, b"x", timestamp=-2), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("name", REFUSED)
def test_set_that_is_not_sound_is_refused(name: str) -> None:
    """The codes are those of `check_batch` and Kafka; the whole set is refused."""
    data, expected = REFUSED[name]
    assert code_of(data) is expected


@pytest.mark.parametrize("codec", CODECS[1:])
def test_wrapper_that_does_not_decompress_is_corrupt(codec: Compression) -> None:
    with pytest.raises(CorruptCompression):
        taken(message(1, b"not compressed at all", attributes=codec))


def test_wrapper_that_becomes_too_much_is_refused() -> None:
    """The buffer's size is the bound."""
    bomb = message(1, gzip.compress(bytes(BYTES_MAX + 1)), attributes=Compression.GZIP)
    with pytest.raises(CorruptCompression):
        taken(bomb)


def test_set_is_bounded_message_by_message_and_as_a_batch() -> None:
    """As in Kafka: each message, then the batch that they become."""
    assert code_of(PLAIN, bytes_max=len(PLAIN)) is ErrorCode.NONE
    assert code_of(PLAIN, bytes_max=len(PLAIN) - 1) is ErrorCode.MESSAGE_TOO_LARGE
    assert code_of(100 * PLAIN, bytes_max=len(PLAIN)) is ErrorCode.MESSAGE_TOO_LARGE


@given(st.binary(max_size=120), st.integers(0, 1))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused_with_a_code(data: bytes, magic: int) -> None:
    """Any bytes give an error code."""
    if len(data) > 16:
        data = changed(data, 16, bytes([magic]))
    try:
        assert code_of(data) is not ErrorCode.NONE
    except CorruptCompression:
        pass


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_set_with_changed_bytes_is_refused_or_sound(data: st.DataObject) -> None:
    """Bytes changed inside, with valid CRCs, give an error or records, nothing else."""
    magic = data.draw(st.integers(0, 1))
    inside = bytearray(message(magic, b"value", key=b"key") + message(magic, None))
    position = data.draw(st.integers(0, len(inside) - 1))
    inside[position] = data.draw(st.integers(0, 255))
    whole = wrapped(magic, bytes(inside), data.draw(st.sampled_from(CODECS[1:])))
    position = data.draw(st.integers(16, len(whole) - 1))
    if data.draw(st.booleans()):
        whole = resealed(changed(whole, position, bytes([data.draw(st.integers(0, 255))])))
    try:
        code_of(whole)
    except CorruptCompression:
        pass


# --- for consumers ---


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_batch_becomes_a_set_with_its_codec_and_offsets(magic: int, codec: Compression) -> None:
    """Headers and producer fields are dropped; the rest is returned."""
    records = some_records()
    records[3].headers = [("h", b"1")]
    fields = BatchFields(
        base_offset=1000, compression=codec, producer_id=9, producer_epoch=1, base_sequence=4
    )
    data = as_set(build_batch(records, fields), magic)
    found = shallow(data)
    if codec:
        ((offset, wrapper),) = found
        assert offset == 1000 + len(records) - 1
        assert wrapper[WRAPPER_ATTRIBUTES] == codec
    else:
        assert [offset for offset, _ in found] == list(range(1000, 1000 + len(records)))
    back = taken(data)
    assert [(one.key, one.value) for one in back] == [(one.key, one.value) for one in records]
    assert [one.timestamp for one in back] == [one.timestamp if magic else -1 for one in records]


def inner_offsets(data: bytes) -> list[int]:
    """Return the offsets inside the one gzip wrapper of a set."""
    value_at = 26 if data[16] == 0 else 34
    return [offset for offset, _ in shallow(gzip.decompress(data[value_at:]))]


def test_offsets_inside_a_wrapper_are_absolute_in_magic_0_and_relative_in_magic_1() -> None:
    """KIP-31."""
    fields = BatchFields(base_offset=500, compression=Compression.GZIP)
    batch = build_batch(some_records(3), fields)
    assert inner_offsets(as_set(batch, 0)) == [500, 501, 502]
    assert inner_offsets(as_set(batch, 1)) == [0, 1, 2]


def test_wrapper_has_the_largest_time_of_its_messages() -> None:
    """KIP-32."""
    records = [Record(None, b"", timestamp=TIME_MS + delta) for delta in (3, 9, 1)]
    data = as_set(build_batch(records, BatchFields(compression=Compression.GZIP)), 1)
    assert Struct(">q").unpack_from(data, 18)[0] == TIME_MS + 9


@pytest.mark.parametrize("codec", CODECS)
def test_append_time_is_that_of_the_batch(codec: Compression) -> None:
    """Magic 1 marks it in its attributes; magic 0 has no field for it."""
    batch = build_batch(some_records(3), BatchFields(compression=codec))
    patch_log_append_time(memoryview(batch), TIME_MS + 77)
    for _, one in shallow(as_set(batch, 1)):
        assert one[WRAPPER_ATTRIBUTES] == LOG_APPEND_TIME | codec
        assert Struct(">q").unpack_from(one, 18)[0] == TIME_MS + 77
    for _, one in shallow(as_set(batch, 0)):
        assert one[WRAPPER_ATTRIBUTES] == codec


@pytest.mark.parametrize("codec", CODECS)
def test_records_before_the_first_offset_are_left_out(codec: Compression) -> None:
    """Otherwise a reader of small responses would get the start of a large batch forever."""
    batch = build_batch(some_records(10), BatchFields(base_offset=100, compression=codec))
    back = taken(as_set(batch, 1, first=107))
    assert [one.timestamp - TIME_MS for one in back] == [7, 8, 9]
    assert as_set(batch, 1, first=110) == b""


def test_records_are_found_by_their_offset_where_some_are_missing() -> None:
    """Compaction removes records from a batch; the others keep their offsets."""
    whole = build_batch([Record(None, b"%d" % index) for index in range(4)])
    record_bytes = (len(whole) - 61) // 4
    thinned = whole[:61] + whole[61 + record_bytes :]
    thinned[8:12] = (len(thinned) - 12).to_bytes(4)
    thinned[57:61] = (3).to_bytes(4)
    seal(thinned)
    for first, expected in ((0, [1, 2, 3]), (2, [2, 3]), (3, [3]), (4, [])):
        found = shallow(as_set(thinned, 1, first=first))
        assert [offset for offset, _ in found] == expected


def test_set_ends_at_a_whole_message_within_the_bound_and_has_at_least_one() -> None:
    """KIP-74's rule applies to the old formats too."""
    batch = build_batch([Record(None, bytes(100)) for _ in range(10)])
    one = len(as_set(batch, 0)) // 10
    for bytes_max, count in ((0, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (10 * one, 10)):
        assert len(as_set(batch, 0, bytes_max=bytes_max)) == count * one


@pytest.mark.parametrize("codec", CODECS)
def test_set_ends_after_so_many_records(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed, very many records fit few bytes; a wrapper is not parsed to count them."""
    batch = build_batch([Record(None, b"")] * 40, BatchFields(compression=codec))
    monkeypatch.setattr(legacy, "WRAPPER_BYTES", 10 * 34)
    for records_max, expected in ((0, 1), (1, 1), (9, 9), (10, 10), (11, 11), (40, 40)):
        last, _ = shallow(as_set(batch, 1, records_max=records_max))[-1]
        assert last + 1 == (-(-max(1, expected) // 10) * 10 if codec else expected)


def test_large_batch_becomes_several_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader continues after the last one it got, until it has all."""
    monkeypatch.setattr(legacy, "WRAPPER_BYTES", 300)
    records = some_records(40)
    for magic in (0, 1):
        batch = build_batch(records, BatchFields(base_offset=70, compression=Compression.SNAPPY))
        values: list[bytes | None] = []
        position = 70
        while data := as_set(batch, magic, first=position, bytes_max=1):
            ((offset, wrapper),) = shallow(data)
            values += [one.value for one in taken(wrapper)]
            assert offset - position + 1 == len(taken(wrapper))
            position = offset + 1
        assert values == [one.value for one in records]


def test_control_batches_and_emptied_batches_are_left_out() -> None:
    """Old consumers know neither."""
    control = build_batch([Record(b"k", b"v")], BatchFields(base_offset=5, is_control=True))
    assert as_set(control, 1) == b""
    plain = build_batch([Record(None, b"v")], BatchFields(base_offset=6))
    assert [offset for offset, _ in shallow(as_set(control + plain, 1))] == [6]
    emptied = bytearray(plain[:61])
    emptied[8:12] = (61 - 12).to_bytes(4)
    emptied[57:61] = bytes(4)
    seal(emptied)
    assert as_set(emptied, 1) == b""


def test_zstd_ends_the_set_and_is_told() -> None:
    """KIP-110: the messages before it are sent first."""
    plain = build_batch([Record(None, b"v")])
    zstd = build_batch(
        [Record(None, b"w")], BatchFields(base_offset=1, compression=Compression.ZSTD)
    )
    converted = down_convert(
        [memoryview(plain + zstd)],
        magic=1,
        first_offset=0,
        bytes_max=BYTES_MAX,
        records_max=BYTES_MAX,
    )
    assert len(converted.buffers) == 1
    assert converted.error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    alone = down_convert(
        [memoryview(zstd)], magic=1, first_offset=0, bytes_max=BYTES_MAX, records_max=BYTES_MAX
    )
    assert (alone.bytes, alone.error) == (0, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def test_round_trip_of_random_records_gives_them_back() -> None:
    """Covers both directions, each codec, and any offset."""
    rng = random.Random(7)
    for _ in range(60):
        count = rng.randrange(1, 30)
        records = [
            Record(
                rng.choice([None, b"", rng.randbytes(rng.randrange(9))]),
                rng.choice([None, b"", rng.randbytes(rng.randrange(300))]),
                timestamp=rng.choice([-1, 0, TIME_MS + rng.randrange(-9, 9)]),
            )
            for _ in range(count)
        ]
        batch = build_batch(records, BatchFields(compression=rng.choice(CODECS)))
        base = rng.randrange(1 << 40)
        patch_position(memoryview(batch), base_offset=base, leader_epoch=3)
        first = rng.randrange(count)
        back = taken(as_set(batch, 1, first=base + first))
        expected = [(one.key, one.value, one.timestamp) for one in records[first:]]
        assert [(one.key, one.value, one.timestamp) for one in back] == expected
