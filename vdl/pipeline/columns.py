"""Record batches to Arrow columns, many at a time, with hardly a Python step for each record.

Records of a batch lie one behind the other and each tells its own length, so where they begin can
only be found by walking. That is the one loop here, and it looks at nothing but lengths. All else,
times, offsets, where keys and values are, numpy decodes for all records of all batches at once. One
lane per batch, the k-th record of every batch together, was slower: producers' batches hold
thousands of records, so there are many steps and few lanes.

Keys and values are not copied one by one either. All records lie in one buffer; the places between
the values are slots of an Arrow array as much as the values are, and taking every second slot is
one call that copies them together.

```
record: length varint, attributes 1, time delta varint, offset delta varint,
        key length varint, key, value length varint, value, header count varint, headers
```

Everything a record says is checked against its lane's end before it is used.

Must not know: files, Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.read import TYPES, constant, headers_array, schema_of

_HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_LENGTH_FROM = 12
_MAGIC = 2
_CODEC_MASK, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
BATCH_BYTES_MAX = 16 << 20
"""What the records of one batch may be when they are decompressed."""
_PADDING = bytes(16)
"""Behind the last lane, so that a varint that is cut off reads zeros and not another's memory."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_VARINT_BYTES_MAX = 10
CHUNK_BYTES = 16 << 20
"""Decompressed records that are decoded together."""
CHUNK_RECORDS = 200_000

Ints = Any
"""A numpy array of int64."""


class UndecodableBatch(PipelineError):
    """Bytes that are no record batch, or one whose records must not be shown as they are."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One batch: its records decompressed, and what its header says of them."""

    records: memoryview
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    count: int
    is_append_time: bool


def open_lane(batch: memoryview) -> Lane | None:
    """A batch made ready; None when it holds no records for readers (control batches).

    Raises UndecodableBatch, also for transactions: whether they were aborted is not said here.
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
    records = decompress(attributes & _CODEC_MASK, batch[HEADER_BYTES:])
    return Lane(records, base, first_time, max_time, count, bool(attributes & _APPEND_TIME))


def decompress(codec: int, data: memoryview) -> memoryview:
    """The records, BATCH_BYTES_MAX at most. Raises UndecodableBatch."""
    into: dict[int, Callable[[memoryview, bytearray], int]] = {
        1: cramjam.gzip.decompress_into,
        3: cramjam.lz4.decompress_into,
        4: cramjam.zstd.decompress_into,
    }
    try:
        if codec == 0:
            return data
        if codec == 2:
            return _snappy(data)
        if codec in into:
            return _bounded(into[codec], data)
    except cramjam.DecompressionError as error:
        raise UndecodableBatch(f"compressed records: {error}") from error
    raise UndecodableBatch(f"codec {codec}")


def _bounded(into: Callable[[memoryview, bytearray], int], data: memoryview) -> memoryview:
    size = min(BATCH_BYTES_MAX, max(64 << 10, 8 * len(data)))
    while True:
        output = bytearray(size)
        try:
            return memoryview(output)[: into(data, output)]
        except cramjam.DecompressionError:
            if size == BATCH_BYTES_MAX:
                raise
            size = BATCH_BYTES_MAX


def _snappy(data: memoryview) -> memoryview:
    """Raw, or in blocks behind their lengths, as Java's client writes it."""
    if data[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(data, BATCH_BYTES_MAX)
    output = bytearray()
    position = _XERIAL_HEADER_BYTES
    while position + 4 <= len(data):
        length = int.from_bytes(data[position : position + 4])
        position += 4
        if length > len(data) - position:
            raise UndecodableBatch("a snappy block is cut off")
        output += _snappy_block(data[position : position + length], BATCH_BYTES_MAX - len(output))
        position += length
    return memoryview(output)


def _snappy_block(data: memoryview, limit: int) -> memoryview:
    if cramjam.snappy.decompress_raw_len(data) > limit:
        raise UndecodableBatch("more than a batch may hold")
    return memoryview(bytes(cramjam.snappy.decompress_raw(data)))


@dataclass(frozen=True, slots=True)
class Walk:
    """Where things are, record by record, in offset order. Lengths are -1 for null."""

    offset: Ints
    timestamp: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints
    headers_at: Ints
    headers: Ints
    """How many."""


def decode(
    lanes: Sequence[Lane],
    *,
    topic: str,
    partition: int,
    columns: Sequence[str],
    start: int = 0,
    end: int = 1 << 62,
) -> pa.RecordBatch:
    """The records of [start, end) among the lanes, which are in offset order. Raises
    UndecodableBatch."""
    buffer = b"".join([*(lane.records for lane in lanes), _PADDING])
    found = _walk(np.frombuffer(buffer, np.uint8), buffer, lanes)
    is_append_time: Ints = np.repeat(
        np.array([lane.is_append_time for lane in lanes], bool), [lane.count for lane in lanes]
    )
    if len(found.offset) and (found.offset[0] < start or found.offset[-1] >= end):
        edges: Ints = np.searchsorted(found.offset, [start, end])
        keep = slice(int(edges[0]), int(edges[1]))
        found = Walk(*(getattr(found, name)[keep] for name in Walk.__slots__))
        is_append_time = is_append_time[keep]
    count = len(found.offset)
    arrow = pa.py_buffer(buffer)
    arrays: list[pa.Array] = []
    for name in columns:
        kind = TYPES[name]
        match name:
            case "key":
                arrays.append(_slices(arrow, found.key_at, found.key_length))
            case "value":
                arrays.append(_slices(arrow, found.value_at, found.value_length))
            case "offset":
                arrays.append(pa.array(found.offset, kind))
            case "timestamp":
                mask = found.timestamp < 0
                micros = pa.array(found.timestamp * 1000, pa.int64(), mask=mask)
                arrays.append(micros.cast(kind))
            case "topic":
                arrays.append(constant(topic, kind, count))
            case "partition":
                arrays.append(constant(partition, kind, count))
            case "timestampType":
                arrays.append(pa.array(is_append_time.astype(np.int32), kind))
            case _:
                arrays.append(_headers(memoryview(buffer), found))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


class Gathered:
    """Lanes of a range, in offset order, until there are enough to be decoded together."""

    def __init__(self, wanted: OffsetRange, columns: Sequence[str]) -> None:
        self._wanted = wanted
        self._columns = columns
        self._lanes: list[Lane] = []
        self._bytes = self._records = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, lane: Lane) -> None:
        self._lanes.append(lane)
        self._bytes += len(lane.records)
        self._records += lane.count

    @property
    def is_enough(self) -> bool:
        return self._bytes >= CHUNK_BYTES or self._records >= CHUNK_RECORDS

    def take(self) -> pa.RecordBatch:
        """The range's records of what was added since the last time. Raises UndecodableBatch."""
        lanes, self._lanes = self._lanes, []
        self._bytes = self._records = 0
        wanted = self._wanted
        return decode(
            lanes, topic=wanted.topic, partition=wanted.partition, columns=self._columns,
            start=wanted.start, end=wanted.end,
        )  # fmt: skip


def _walk(data: Any, buffer: bytes, lanes: Sequence[Lane]) -> Walk:
    """Every record of every lane; `buffer`, and `data` for numpy, are the lanes' records end to
    end, and padding."""
    starts: list[int] = []
    position = 0
    for lane in lanes:
        position = _find_records(buffer, position, lane, starts)
    counts = [lane.count for lane in lanes]

    def of_lane(values: list[int]) -> Ints:
        return np.repeat(np.array(values, np.int64), counts)

    length, at = _varint(data, np.array(starts, np.int64))
    _check(length >= 0, "record length")
    ends: Ints = at + length
    # One byte of attributes, unused so far, precedes the deltas.
    delta, at = _varint(data, at + 1)
    times = of_lane([lane.base_timestamp for lane in lanes]) + delta
    if any(lane.is_append_time for lane in lanes):
        fixed = of_lane([lane.max_timestamp for lane in lanes])
        times = np.where(of_lane([lane.is_append_time for lane in lanes]) > 0, fixed, times)
    delta, at = _varint(data, at)
    offsets = of_lane([lane.base_offset for lane in lanes]) + delta
    key_length, key_at, at = _sized(data, at, ends)
    value_length, value_at, at = _sized(data, at, ends)
    headers, at = _varint(data, at)
    _check((headers >= 0) & (headers * 2 <= ends - at), "header count")
    return Walk(offsets, times, key_at, key_length, value_at, value_length, at, headers)


def _find_records(buffer: bytes, position: int, lane: Lane, starts: list[int]) -> int:
    """Append where each record of a lane begins, which does so at `position`; where it ends. That
    all of them lie in the lane follows from the last one's end: none begins before the one it
    follows."""
    stop = position + len(lane.records)
    append = starts.append
    try:
        for _ in range(lane.count):
            append(position)
            byte = buffer[position]
            if byte < 128:
                position += 1 + (byte >> 1)
            elif (second := buffer[position + 1]) < 128:
                position += 2 + ((byte & 0x7F | second << 7) >> 1)
            else:
                position = _behind(buffer, position)
    except IndexError:
        raise UndecodableBatch("a batch's records: record length") from None
    if position != stop:
        raise UndecodableBatch("a batch's records: they are not as long as their batch")
    return stop


def _behind(buffer: bytes, position: int) -> int:
    """Where a record ends that begins at `position`, whatever its length. Raises IndexError."""
    length = 0
    for n in range(_VARINT_BYTES_MAX):
        byte = buffer[position + n]
        length |= (byte & 0x7F) << 7 * n
        if byte < 128:
            return position + n + 1 + (length >> 1)
    raise UndecodableBatch("a batch's records: record length")


def _varint(data: Any, at: Ints) -> tuple[Ints, Ints]:
    """(zigzag values, positions after them) of varints at `at`."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    at = at + 1
    more = byte > 127
    shift = 7
    while more.any():
        # Only what is cut off reads behind the last lane; that is refused by its length.
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise UndecodableBatch("a varint is too long")
        byte = data[np.minimum(at, len(data) - 1)]
        value |= np.where(more, (byte & 0x7F).astype(np.int64) << shift, 0)
        at = at + more
        more = more & (byte > 127)
        shift += 7
    return (value >> 1) ^ -(value & 1), at


def _sized(data: Any, at: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """(length or -1, where it begins, what comes after it) of a field with its length in front."""
    length, at = _varint(data, at)
    after = at + np.maximum(length, 0)
    _check(after <= end, "field length")
    return length, at, after


def _check(good: Any, what: str) -> None:
    if not good.all():
        raise UndecodableBatch(f"a batch's records: {what}")


def _slices(buffer: pa.Buffer, at: Ints, length: Ints) -> pa.Array:
    """Pieces of a buffer, in rising order of their places, as a binary array; -1 is null."""
    count = len(at)
    edges: Ints = np.empty(2 * count + 1, np.int32)
    edges[0:-1:2] = at
    edges[1::2] = at + np.maximum(length, 0)
    edges[-1] = edges[-2] if count else 0
    # Slot 2n is the n-th piece, slot 2n + 1 what lies between it and the next.
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), buffer])
    which = pa.array(np.arange(0, 2 * count, 2), pa.int64(), mask=length < 0)
    return both.take(which)


def _headers(data: memoryview, found: Walk) -> pa.Array:
    """Headers are few, and read one by one."""
    rows: list[list[tuple[str, bytes | None]] | None] = [None] * len(found.headers)
    for n in np.flatnonzero(found.headers):
        at = int(found.headers_at[n])
        row: list[tuple[str, bytes | None]] = []
        for _ in range(int(found.headers[n])):
            name, at = _field(data, at)
            value, at = _field(data, at)
            row.append(((name or b"").decode("utf-8", "replace"), value))
        rows[n] = row
    return headers_array(rows)


def _field(data: memoryview, at: int) -> tuple[bytes | None, int]:
    value, shift = 0, 0
    while True:
        if at >= len(data) or shift >= 7 * _VARINT_BYTES_MAX:
            raise UndecodableBatch("a header is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    length = (value >> 1) ^ -(value & 1)
    if length < 0:
        return None, at
    if length > len(data) - at:
        raise UndecodableBatch("a header is cut off")
    return bytes(data[at : at + length]), at + length
