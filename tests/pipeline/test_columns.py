"""Record batches to columns: vectorized decoding equals the walk over single records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.records.batch import BatchFields, Record, build_batch, iter_records, patch_log_append_time
from vdl.records.compression import Compression

pytest.importorskip("pyarrow", reason="needs the `spark` extra")

from vdl.pipeline.columns import CHUNK_BYTES, CHUNK_RECORDS, Gathered, Lane, open_lane
from vdl.pipeline.errors import UndecodableBatch
from vdl.pipeline.inflated import Inflated
from vdl.pipeline.options import COLUMNS
from vdl.pipeline.positions import OffsetRange

GZIP = Compression.GZIP
EVERY = (*COLUMNS, "headers")
TEXTS = st.none() | st.binary(max_size=300)
RECORDS = st.builds(
    Record,
    key=TEXTS,
    value=TEXTS,
    headers=st.lists(st.tuples(st.text(max_size=5), TEXTS), max_size=2),
    timestamp=st.integers(0, 1 << 41),
)
BATCHES = st.lists(
    st.tuples(st.lists(RECORDS, min_size=1, max_size=12), st.sampled_from(Compression)),
    min_size=1,
    max_size=5,
)


def sealed(batches: list[tuple[list[Record], Compression]], base: int = 0) -> list[memoryview]:
    made = []
    for records, compression in batches:
        fields = BatchFields(base_offset=base, compression=compression)
        made.append(memoryview(build_batch(records, fields)))
        base += len(records)
    return made


def gathered(
    lanes: list[Lane], names: Sequence[str] = EVERY, start: int = 0, end: int = 1 << 62
) -> Gathered:
    made = Gathered(OffsetRange("t", 3, start, end), names, Inflated())
    for lane in lanes:
        made.add(lane)
    return made


def columns(batches: list[memoryview], **limits: int) -> list[dict[str, Any]]:
    lanes = [lane for batch in batches if (lane := open_lane(batch)) is not None]
    return list(gathered(lanes, **limits).take().to_pylist())


@settings(deadline=None)
@given(BATCHES)
def test_columns_of_any_batches_equal_the_walk(
    batches: list[tuple[list[Record], Compression]],
) -> None:
    """Keys, values, headers, offsets and times, with every codec."""
    made = sealed(batches, base=70)
    wanted = [record for batch in made for record in iter_records(batch)]
    found = columns(made)
    assert [r["offset"] for r in found] == [r.offset for r in wanted]
    assert [r["key"] for r in found] == [r.key for r in wanted]
    assert [r["value"] for r in found] == [r.value for r in wanted]
    times = [round(r["timestamp"].timestamp() * 1000) for r in found]
    assert times == [r.timestamp for r in wanted]
    headers = [[(h["key"], h["value"]) for h in r["headers"] or ()] for r in found]
    assert headers == [r.headers for r in wanted]
    assert {(r["topic"], r["partition"], r["timestampType"]) for r in found} == {("t", 3, 0)}


@settings(deadline=None)
@given(batches=BATCHES, start=st.integers(0, 40), count=st.integers(0, 40))
def test_columns_of_a_range_are_cut_at_its_edges(
    batches: list[tuple[list[Record], Compression]], start: int, count: int
) -> None:
    found = columns(sealed(batches), start=start, end=start + count)
    total = sum(len(records) for records, _ in batches)
    assert [r["offset"] for r in found] == list(range(min(start, total), min(start + count, total)))


def test_columns_of_append_time_have_the_batch_time() -> None:
    """Holds also beside a batch with its producer's times."""
    plain, stamped = sealed([([Record(value=b"a", timestamp=5)] * 2, Compression.NONE)] * 2)
    patch_log_append_time(stamped, 9)
    found = columns([plain, stamped], start=1)
    assert [r["timestampType"] for r in found] == [0, 1, 1]
    assert [r["timestamp"].timestamp() * 1000 for r in found] == [5, 9, 9]


def test_columns_of_a_control_batch_are_none() -> None:
    fields = BatchFields(is_control=True, is_transactional=True)
    assert open_lane(memoryview(build_batch([Record(value=b"x")], fields))) is None


def test_columns_of_a_transaction_are_refused() -> None:
    """The file does not record aborts: the broker has to be queried."""
    fields = BatchFields(is_transactional=True)
    with pytest.raises(UndecodableBatch, match="transaction"):
        open_lane(memoryview(build_batch([Record(value=b"x")], fields)))


@settings(deadline=None)
@given(st.binary(max_size=80), st.integers(1, 5))
def test_columns_of_garbage_are_refused(garbage: bytes, count: int) -> None:
    """A batch with invalid records raises, and nothing beyond it is read."""
    lane = open_lane(sealed([([Record(value=b"x", timestamp=1)], Compression.NONE)])[0])
    assert lane is not None
    bad = dataclasses.replace(lane, records=memoryview(garbage), count=count)
    try:
        found = gathered([bad], ("key", "value")).take()
    except (UndecodableBatch, OverflowError):
        return
    assert found.num_rows == count
    assert sum(len(v) for r in found.to_pylist() for v in r.values() if v) <= len(garbage)


@pytest.mark.parametrize("field", [b"\x14", b"\x80"], ids=["value", "length"])
def test_header_that_reaches_into_the_next_record_is_refused(field: bytes) -> None:
    """Its length, or the bytes of its length, are checked against its own record's end."""
    # Attributes, two deltas, no key, an empty value, one header: a name, and a value's length.
    first = b"\x00\x00\x00\x01\x00\x02\x02h" + field
    second = b"\x00\x00\x02\x01" + b"\x14" + b"x" * 10 + b"\x00"
    records = b"".join(bytes([2 * len(one)]) + one for one in (first, second))
    lane = open_lane(sealed([([Record(value=b"x")], Compression.NONE)])[0])
    assert lane is not None
    bad = dataclasses.replace(lane, records=memoryview(records), count=2)
    found = gathered([bad], ("offset", "value")).take()
    assert found.column("value").to_pylist() == [b"", b"x" * 10]
    with pytest.raises(UndecodableBatch, match="truncated"):
        gathered([bad]).take()


def test_columns_of_a_batch_that_is_cut_off_are_refused() -> None:
    batch = sealed([([Record(value=b"x" * 50)], Compression.NONE)])[0]
    for length in (0, 30, 61, len(batch) - 1):
        with pytest.raises(UndecodableBatch):
            open_lane(batch[:length])


def test_columns_of_a_chunk_stay_when_the_next_is_decoded() -> None:
    """The memory of decompressed records is used again; decoded columns do not refer to it."""
    records = [Record(key=b"a", value=b"first", headers=[("h", b"1")], timestamp=1)] * 3
    others = [Record(key=b"b", value=b"other", headers=[("i", b"2")], timestamp=2)] * 3
    lanes = [lane for one in (records, others) for lane in map(open_lane, sealed([(one, GZIP)]))]
    assert None not in lanes
    made = gathered([lane for lane in lanes[:1] if lane is not None])
    before = made.take()
    known = before.to_pylist()
    made.add(next(lane for lane in lanes[1:] if lane is not None))
    assert [r["value"] for r in made.take().to_pylist()] == [b"other"] * 3
    assert before.to_pylist() == known
    assert not made


def test_columns_gathered_are_enough_at_their_limits() -> None:
    """Covers limits of records and of bytes; one less of either is not enough."""
    one = open_lane(sealed([([Record(value=b"x")], Compression.NONE)])[0])
    assert one is not None
    few = gathered([dataclasses.replace(one, count=CHUNK_RECORDS - 1)])
    assert not few.is_enough
    few.add(one)
    assert few.is_enough
    large = gathered([dataclasses.replace(one, records=memoryview(bytes(CHUNK_BYTES - 1)))])
    assert not large.is_enough
    large.add(one)
    assert large.is_enough
