"""Walk over records: its results, and the equality of both implementations."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vdl.records import walk as record_walk
from vdl.records.batch import HEADER_BYTES, Record, build_batch, write_varint
from vdl.records.walk import (
    ANY_TIME,
    FAULT_TEXTS,
    OUT_OF_TIME,
    PLACE,
    REFUSED_MAX,
    WITHOUT_KEY,
    Fault,
    places_in_python,
    walk_in_python,
)

BASE = 1_000_000
WALKS = [walk_in_python]
if record_walk.IS_NATIVE:
    WALKS.append(record_walk.walk)


def number(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def field(data: bytes | None) -> bytes:
    return number(-1) if data is None else number(len(data)) + data


def record(
    index: int = 0,
    *,
    delta: bytes = number(0),
    key: bytes = field(b"k"),
    value: bytes = field(b"v"),
    headers: bytes = number(0),
    more: bytes = b"",
    length: int | None = None,
    attributes: bytes = b"\0",
) -> bytes:
    """Return one record, built field by field."""
    body = attributes + delta + number(index) + key + value + headers + more
    return number(len(body) if length is None else length) + body


def walked(
    data: bytes, count: int, *, bounds: tuple[int, int] = ANY_TIME, keys: bool = False
) -> record_walk.Walked:
    """Return the result on which all walks agree."""
    found = [walk(data, count, BASE, *bounds, keys, False) for walk in WALKS]
    found += [walk(memoryview(data), count, BASE, *bounds, keys, True) for walk in WALKS]
    assert all(one == found[0] for one in found), found
    return found[0]


def test_walk_of_sound_records_counts_them_and_finds_the_latest() -> None:
    """The index after the last record is their number."""
    data = record(0, delta=number(5)) + record(1, delta=number(9)) + record(2, delta=number(-4))
    assert walked(data, 3) == (Fault.NONE, 3, BASE + 9, ())


TOO_LONG_32 = b"\x80\x80\x80\x80\x10"
TOO_LONG_64 = b"\x80" * 9 + b"\x02"


@pytest.mark.parametrize(
    ("data", "count", "fault", "index"),
    [
        (b"", 1, Fault.MISSING, 0),
        (record(0), 2, Fault.MISSING, 1),
        (record(0), (1 << 31) - 1, Fault.MISSING, 1),
        (record(0) + b"garbage", 1, Fault.TRAILING_BYTES, 1),
        (record(0) + record(1), 1, Fault.TRAILING_BYTES, 1),
        (record(0) + b"\x80", 2, Fault.CUT_OFF, 1),
        (record(0) + number(0), 2, Fault.CUT_OFF, 1),
        (record(0)[:-1], 1, Fault.RECORD_LENGTH, 0),
        (record(0, length=-1), 1, Fault.RECORD_LENGTH, 0),
        (record(0, length=(1 << 31) - 1), 1, Fault.RECORD_LENGTH, 0),
        (record(0, length=-(1 << 31)), 1, Fault.RECORD_LENGTH, 0),
        (TOO_LONG_32 + record(0), 1, Fault.VARINT, 0),
        (b"\x80" * 6 + record(0), 1, Fault.VARINT, 0),
        (record(0, delta=TOO_LONG_64), 1, Fault.VARINT, 0),
        (record(0, delta=number((1 << 63) - 1)), 1, Fault.TIMESTAMP, 0),
        (record(0, delta=b"\xff" * 9 + b"\x01"), 1, Fault.NONE, 1),
        (record(0) + record(0), 2, Fault.OFFSET_DELTA, 1),
        (record(0) + record(2), 2, Fault.OFFSET_DELTA, 1),
        (record(0) + record(-1), 2, Fault.OFFSET_DELTA, 1),
        (record(0, key=number(-2)), 1, Fault.FIELD_LENGTH, 0),
        (record(0, key=number(100)), 1, Fault.FIELD_LENGTH, 0),
        (record(0, value=number((1 << 31) - 1)), 1, Fault.FIELD_LENGTH, 0),
        (record(0, value=b"", headers=b""), 1, Fault.CUT_OFF, 0),
        (record(0, headers=number(-1)), 1, Fault.HEADER_COUNT, 0),
        (record(0, headers=number(1 << 30)), 1, Fault.HEADER_COUNT, 0),
        (record(0, headers=number(1) + field(b"h") + field(None)), 1, Fault.NONE, 1),
        (record(0, headers=number(1) + field(None) + field(b"x")), 1, Fault.HEADER_NAME, 0),
        (record(0, headers=number(1) + field(b"\xff") + field(b"")), 1, Fault.HEADER_NAME, 0),
        (record(0, headers=number(1) + field(b"h") + number(5)), 1, Fault.FIELD_LENGTH, 0),
        (record(0, more=b"\0"), 1, Fault.UNREAD_BYTES, 0),
        (record(0, attributes=b"\x7f"), 1, Fault.NONE, 1),
        (record(0, attributes=b"\x80"), 1, Fault.ATTRIBUTES, 0),
    ],
)
def test_walk_of_broken_records_names_the_rule_and_the_record(
    data: bytes, count: int, fault: Fault, index: int
) -> None:
    """Some bytes break each rule of the format, and only that rule."""
    assert walked(data, count)[:2] == (fault, index)


def test_walk_never_reads_past_the_end_of_its_bytes() -> None:
    """Each prefix of valid records is found truncated, wherever it ends: none passes."""
    headers = number(2) + field("ü".encode()) + field(b"x") + field(b"b") + field(None)
    data = record(0, headers=headers) + record(1, key=field(None))
    for end in range(len(data)):
        assert walked(data[:end], 2)[0] != Fault.NONE, end
    assert walked(data, 2)[0] == Fault.NONE


def test_walk_refuses_records_out_of_time_or_without_key_by_index() -> None:
    """KIP-467: each refused record is named; a missing key comes first, as in Kafka.

    -1 is no timestamp, and so never out of bounds.
    """
    data = (
        record(0, delta=number(-11))
        + record(1, key=field(None), delta=number(50))
        + record(2, delta=number(-1 - BASE))
        + record(3, delta=number(11))
    )
    bounds = (BASE - 10, BASE + 10)
    late, early = (0, OUT_OF_TIME, BASE - 11), (3, OUT_OF_TIME, BASE + 11)
    assert walked(data, 4, bounds=bounds, keys=True) == (
        (Fault.NONE, 4, BASE + 50, (late, (1, WITHOUT_KEY, BASE + 50), early))
    )
    only_time = walked(data, 4, bounds=bounds)[3]
    assert only_time == (late, (1, OUT_OF_TIME, BASE + 50), early)


def test_walk_names_no_more_refused_records_than_its_limit() -> None:
    """A batch of a million records without key does not become a million texts."""
    data = b"".join(record(index, key=field(None)) for index in range(REFUSED_MAX + 1))
    refused = walked(data, REFUSED_MAX + 1, keys=True)[3]
    assert len(refused) == REFUSED_MAX
    fewer = b"".join(record(index, key=field(None)) for index in range(REFUSED_MAX))
    assert len(walked(fewer, REFUSED_MAX, keys=True)[3]) == REFUSED_MAX


def test_walk_gives_no_timestamp_where_all_are_below_none() -> None:
    """Kafka's largest timestamp starts at -1."""
    assert walked(record(0, delta=number(-BASE - 7)), 1)[2] == -1


def test_faults_each_have_a_text_for_clients() -> None:
    """A producer receives a text."""
    assert set(FAULT_TEXTS) == set(Fault) - {Fault.NONE}


@pytest.mark.skipif(not record_walk.IS_NATIVE, reason="no C compiler was there")
@pytest.mark.parametrize("lead", [*range(0x7E, 0x82), *range(0xBE, 0x100)])
def test_header_names_are_utf8_for_both_walks_alike(lead: int) -> None:
    """Covers each second and third byte after each lead byte, as RFC 3629 has them."""
    edges = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    for second in edges:
        for third in edges:
            for tail in (b"", b"\x80", b"\x80\x80"):
                name = bytes((lead, second, third)) + tail
                for cut in range(1, len(name) + 1):
                    headers = number(1) + field(name[:cut]) + field(None)
                    walked(record(0, headers=headers), 1)


RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=12),
        value=st.none() | st.binary(max_size=40),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))),
        timestamp=st.integers(-2, 1 << 40),
    ),
    min_size=1,
    max_size=8,
)


@given(records=RECORDS, seed=st.integers(0, 1 << 32), count=st.integers(-1, 12))
@settings(max_examples=400, deadline=None)
@example(records=[Record()], seed=0, count=1)
def test_both_walks_find_the_same_in_damaged_batches(
    records: list[Record], seed: int, count: int
) -> None:
    """Real records with some bytes changed, cut out, repeated or put in."""
    rng = random.Random(seed)
    data = bytearray(build_batch(records)[HEADER_BYTES:])
    walked(bytes(data), len(records))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        change = rng.randrange(4)
        if change == 0 and data:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif change == 1:
            del data[at : at + rng.randint(1, 5)]
        elif change == 2:
            data[at:at] = data[at : at + rng.randint(1, 20)]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 10))
    bounds = (rng.randint(0, 1 << 20), rng.randint(1 << 20, 1 << 40))
    walked(bytes(data), count, bounds=bounds, keys=rng.random() < 0.5)
    walked(bytes(data), len(records), bounds=bounds, keys=rng.random() < 0.5)


@given(data=st.binary(max_size=60), count=st.integers(-2, 9))
@settings(max_examples=400, deadline=None)
def test_both_walks_find_the_same_in_any_bytes(data: bytes, count: int) -> None:
    """No field of a batch is trusted."""
    walked(data, count)


PLACES = [places_in_python]
if record_walk.places is not places_in_python:
    PLACES.append(record_walk.places)


def placed(data: bytes, count: int) -> tuple[list[tuple[int, ...]], int]:
    """Return the places on which both ways to find records agree."""
    found = [places(data, count) for places in PLACES]
    found += [places(memoryview(data), count) for places in PLACES]
    assert all(one == found[0] for one in found), found
    return list(PLACE.iter_unpack(found[0][0])), found[0][1]


def test_places_of_records_are_those_of_their_fields() -> None:
    """Holds for any offset deltas: other records were removed."""
    records = [
        record(0, key=field(b"first"), value=field(None)),
        record(7, key=field(None), value=field(b"xy"), headers=number(1) + field(b"h") + number(0)),
        record(9, key=field(b""), value=field(b"")),
    ]
    found, is_whole = placed(b"".join(records), 3)
    assert is_whole
    position = 0
    for (start, end, delta, at, key, value), data, expected in zip(
        found, records, [(0, b"first", -1), (7, None, 2), (9, b"", 0)], strict=True
    ):
        assert (start, end) == (position, position + len(data))
        name = b"".join(records)[at : at + key] if key >= 0 else None
        assert (delta, name, value) == expected
        position = end
    assert placed(b"".join(records), 2) == (found[:2], 0)
    assert placed(b"".join(records), (1 << 31) - 1) == (found, 0)
    assert placed(b"", 0) == ([], 1)
    assert placed(b"x", 0) == ([], 0)


@given(st.binary(max_size=60), st.integers(-1, 40))
@settings(max_examples=500)
def test_places_in_any_bytes_are_the_same_both_ways(data: bytes, count: int) -> None:
    """Each lies within the bytes, after the previous one."""
    found, _ = placed(data, count)
    position = 0
    for start, end, _, at, key, _ in found:
        assert start == position
        assert start < at <= end <= len(data)
        assert at + max(0, key) <= end
        position = end


@given(st.data())
@settings(max_examples=200)
def test_places_in_sound_records_that_are_hurt(data: st.DataObject) -> None:
    """Holds also if one byte differs."""
    records = bytearray(b"".join(record(n, value=field(b"v" * n)) for n in range(5)))
    at = data.draw(st.integers(0, len(records) - 1))
    records[at] = data.draw(st.integers(0, 255))
    found, _ = placed(bytes(records), 5)
    assert len(found) <= 5
