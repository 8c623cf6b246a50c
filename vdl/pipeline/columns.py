"""Decoding of record batches to Arrow columns, many records at a time.

Records of a batch are contiguous and prefixed with their length, so their positions can be found
only by walking. That is the only loop over records here, and it reads only lengths. Numpy decodes
the rest (times, offsets, places of keys and values) for all records of all batches at once. One
lane per batch, the k-th records of all batches together, was slower: producers' batches hold
thousands of records, so there are many steps and few lanes.

Keys and values are not copied one by one either. All records are in one buffer. The gaps between
the values are slots of an Arrow array just as the values are, and taking every second slot copies
all values in one call.

```
record: length varint, attributes 1, time delta varint, offset delta varint,
        key length varint, key, value length varint, value, header count varint, headers
```

Lengths and counts of a record are checked against its end before they are used; those of single
headers are checked against the buffer's end.

Does not depend on files or on Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from vdl.pipeline.errors import UndecodableBatch
from vdl.pipeline.inflated import PADDING, Inflated
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.read import TYPES, constant, headers_array, schema_of
from vdl.pipeline.record_bodies import record_bodies
from vdl.pipeline.varints import BYTES_MAX, Ints, varints

_HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_LENGTH_FROM = 12
_MAGIC = 2
_CODEC_MASK, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
CHUNK_BYTES = 4 << 20
"""Decompressed bytes of records that are decoded together, and become one Arrow batch.

Numpy's intermediate results of this size stay in a processor's cache, and Spark's JVM has pages
ready for them.
"""
CHUNK_RECORDS = 16_000


@dataclass(frozen=True, slots=True)
class Lane:
    """One batch: its stored records and the fields of its header."""

    records: memoryview
    codec: int
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    count: int
    is_append_time: bool


def open_lane(batch: memoryview) -> Lane | None:
    """Return a batch's checked header, or None if it has no records for readers (control batches).

    Raises UndecodableBatch, also for batches of transactions: aborted ones are not known here.
    """
    if len(batch) < HEADER_BYTES:
        raise UndecodableBatch(f"a batch of {len(batch)} bytes")
    (base, length, _, magic, _, attributes, _, first_time, max_time, _, _, _, count) = (
        _HEADER.unpack_from(batch)
    )
    if magic != _MAGIC or length + _LENGTH_FROM != len(batch) or count < 0:
        raise UndecodableBatch(f"magic {magic}, {length} bytes, {count} records")
    if attributes & _CONTROL:
        return None
    if attributes & _TRANSACTIONAL:
        raise UndecodableBatch("a transaction's batch")
    return Lane(
        batch[HEADER_BYTES:], attributes & _CODEC_MASK, base, first_time, max_time, count,
        bool(attributes & _APPEND_TIME),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Walk:
    """Positions of the fields of each record, in offset order. A length of -1 is null."""

    offset: Ints
    timestamp: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints
    headers_at: Ints
    headers: Ints
    """Number of headers."""
    ends: Ints
    """Ends of the records."""


class Gathered:
    """Lanes of a range, in offset order, collected until they are decoded together."""

    def __init__(self, wanted: OffsetRange, columns: Sequence[str], memory: Inflated) -> None:
        """Use `memory`, which is cleared and must not be shared with another instance in use."""
        memory.clear()
        self._wanted = wanted
        self._columns = columns
        self._inflated = memory
        self._lanes: list[Lane] = []
        self._sizes: list[int] = []
        self._records = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, lane: Lane) -> None:
        """Add a lane. Raises UndecodableBatch; the lane is then not added."""
        self._sizes.append(self._inflated.add(lane.codec, lane.records))
        self._lanes.append(lane)
        self._records += lane.count

    @property
    def is_enough(self) -> bool:
        return self._inflated.size >= CHUNK_BYTES or self._records >= CHUNK_RECORDS

    def take(self) -> pa.RecordBatch:
        """Return the range's records of the lanes added since the last call.

        Raises UndecodableBatch.
        """
        try:
            return self._decode()
        finally:
            self._inflated.clear()
            self._lanes, self._sizes, self._records = [], [], 0

    def _decode(self) -> pa.RecordBatch:
        buffer, size, lanes, wanted = (
            self._inflated.memory, self._inflated.size, self._lanes, self._wanted
        )  # fmt: skip
        data = np.frombuffer(buffer, np.uint8, size + len(PADDING))
        found = _walk(data, buffer, lanes, self._sizes)
        is_append_time: Ints = np.repeat(
            np.array([lane.is_append_time for lane in lanes], bool), [lane.count for lane in lanes]
        )
        if len(found.offset) and (found.offset[0] < wanted.start or found.offset[-1] >= wanted.end):
            edges: Ints = np.searchsorted(found.offset, [wanted.start, wanted.end])
            keep = slice(int(edges[0]), int(edges[1]))
            found = Walk(*(getattr(found, name)[keep] for name in Walk.__slots__))
            is_append_time = is_append_time[keep]
        arrays = [self._array(name, data, found, is_append_time) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema_of(self._columns))

    def _array(self, name: str, data: Any, found: Walk, is_append_time: Ints) -> pa.Array:
        """Return a column, which does not refer to `data`: its memory is reused."""
        kind, count = TYPES[name], len(found.offset)
        match name:
            case "key":
                return slices(pa.py_buffer(data), found.key_at, found.key_length)
            case "value":
                return slices(pa.py_buffer(data), found.value_at, found.value_length)
            case "offset":
                return pa.array(found.offset, kind)
            case "timestamp":
                mask = found.timestamp < 0
                return pa.array(found.timestamp * 1000, pa.int64(), mask=mask).cast(kind)
            case "topic":
                return constant(self._wanted.topic, kind, count)
            case "partition":
                return constant(self._wanted.partition, kind, count)
            case "timestampType":
                return pa.array(is_append_time.astype(np.int32), kind)
            case _:
                return _headers(memoryview(data), found)


def _walk(data: Any, buffer: bytearray, lanes: Sequence[Lane], sizes: Sequence[int]) -> Walk:
    """Return the fields of all records of all lanes.

    `buffer`, and `data` for numpy, hold the lanes' records, of `sizes` bytes, end to end, and
    padding.
    """
    counts = [lane.count for lane in lanes]
    at, ends = record_bodies(data, buffer, sizes, counts)

    def of_lane(values: list[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), counts)

    _check(at <= ends, "record length")
    # One byte of attributes, unused by Kafka, precedes the deltas.
    delta, at = varints(data, at + 1)
    times = of_lane([lane.base_timestamp for lane in lanes]) + delta
    if any(lane.is_append_time for lane in lanes):
        fixed = of_lane([lane.max_timestamp for lane in lanes])
        times = np.where(of_lane([lane.is_append_time for lane in lanes]) > 0, fixed, times)
    delta, at = varints(data, at)
    offsets = of_lane([lane.base_offset for lane in lanes]) + delta
    key_length, key_at, at = _sized(data, at, ends)
    value_length, value_at, at = _sized(data, at, ends)
    headers, at = varints(data, at)
    _check((headers >= 0) & (headers * 2 <= ends - at), "header count")
    return Walk(offsets, times, key_at, key_length, value_at, value_length, at, headers, ends)


def _sized(data: Any, at: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (length or -1, start, end) of a field that is prefixed with its length."""
    length, at = varints(data, at)
    after = at + np.maximum(length, 0)
    _check(after <= end, "field length")
    return length, at, after


def _check(good: Any, what: str) -> None:
    if not good.all():
        raise UndecodableBatch(f"a batch's records: {what}")


def slices(buffer: pa.Buffer, at: Ints, length: Ints) -> pa.Array:
    """Return pieces of a buffer, in ascending order of position, as a binary array; -1 is null."""
    count = len(at)
    edges: Ints = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = at
    edges[1::2] = at + np.maximum(length, 0)
    edges[-1] = edges[-2] if count else 0
    # Slot 2n is the n-th piece, slot 2n + 1 the gap between it and the next.
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), buffer])
    which = pa.array(np.arange(0, 2 * count, 2), pa.int64(), mask=length < 0)
    return both.take(which)


def _headers(data: memoryview, found: Walk) -> pa.Array:
    """Return the column `headers`. Headers are few, and read one by one."""
    rows: list[list[tuple[str, bytes | None]] | None] = [None] * len(found.headers)
    for n in np.flatnonzero(found.headers):
        at, end = int(found.headers_at[n]), int(found.ends[n])
        row: list[tuple[str, bytes | None]] = []
        for _ in range(int(found.headers[n])):
            name, at = _field(data, at, end)
            value, at = _field(data, at, end)
            row.append(((name or b"").decode("utf-8", "replace"), value))
        rows[n] = row
    return headers_array(rows)


def _field(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    """Return a field of a record that ends at `end`, and where the field ends."""
    value, shift = 0, 0
    while True:
        if at >= end or shift >= 7 * BYTES_MAX:
            raise UndecodableBatch("a header is truncated")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    length = (value >> 1) ^ -(value & 1)
    if length < 0:
        return None, at
    if length > end - at:
        raise UndecodableBatch("a header is truncated")
    return bytes(data[at : at + length]), at + length
