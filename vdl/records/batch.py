"""Kafka's record batch, version 2: header, produce checks, patching, and the records inside.

```
 0 base offset      i64 ┐ outside the CRC: patched in place when the leader assigns the batch
 8 batch length     i32 │ its offsets, term and index; length counts from byte 12
12 leader epoch     i32 ┘
16 magic            i8    2 (formats 0 and 1 have theirs at the same place)
17 crc              u32   CRC32C of everything from byte 21
21 attributes       i16   0-2 codec, 3 LogAppendTime, 4 transactional, 5 control
23 last offset delta i32
27 base timestamp   i64
35 max timestamp    i64
43 producer id      i64
51 producer epoch   i16
53 base sequence    i32
57 record count     i32
61 records                compressed together if a codec is set
```

A produce is checked in two steps. `check_batch` checks the header, the CRC, and that the record
count is possible for the number of bytes. `vdl.records.walk` checks the records before anything is
appended. After that a batch is an opaque value: stored batches are valid, and code that needs the
records (offsets by timestamp, clients, tools) iterates with `iter_records`.

Kafka's error numbers are data here: an invalid batch is a `KafkaError` with the code to answer.
Does not depend on logs, requests, or sockets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from vdl.errors import ErrorCode, KafkaError, VdlError
from vdl.records.compression import (
    OUTPUT_BYTES_MAX,
    Compression,
    CorruptCompression,
    compress,
    compress_readably,
    decompress,
)
from vdl.records.inflation import INFLATED_BYTES_MAX
from vdl.records.walk import RECORD_BYTES_MIN

Buffer = bytes | bytearray | memoryview

_HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 61

LENGTH_FROM = 12
"""`batch_length` counts the bytes from here on."""
CRC_FROM = 21
MAGIC = 2
_OLD_OVERHEAD_BYTES = 14
"""Smallest valid size of a message in the oldest format; Kafka answers smaller ones as corrupt."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
ZSTD_SINCE_PRODUCE_VERSION = 7  # KIP-110

_LENGTH = Struct(">i")
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_LAST_DELTA = Struct(">i")
_LAST_DELTA_AT = 23
SPAN_MAX = 1 << 31
"""Maximum number of offsets in one batch."""
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_LENGTH_AT, _EPOCH_AT, _MAGIC_AT, _CRC_AT = 8, 12, 16, 17
_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 21, 35


class CorruptBatch(VdlError):
    """Stored or received bytes that are not a batch: `what` is invalid at byte `position`."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(what, position)
        self.what = what
        self.position = position


class BatchHeader(msgspec.Struct):
    """Header of a batch: the 61 bytes before the records, in wire order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return LENGTH_FROM + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record, even if compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record. Sequences wrap to 0 after 2^31 - 1 (KIP-98)."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        """Number of the codec, which need not be one of `Compression`."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def read_header(view: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`. Raise struct.error if the view lacks its 61 bytes."""
    return BatchHeader(*_HEADER.unpack_from(view, position))


# --- the produce path ---


def check_batch(records: memoryview | None, *, produce_version: int, bytes_max: int) -> BatchHeader:
    """Check that `records` is one valid batch and return its header. Raise KafkaError if not.

    `bytes_max` is the topic's `max.message.bytes`. The CRC is checked before anything it covers is
    trusted, so a flipped bit always is CORRUPT_MESSAGE, which producers retry, and never a final
    error. Error codes are Kafka's, except UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    size = 0 if records is None else len(records)
    if records is None or size <= _MAGIC_AT:
        raise KafkaError(ErrorCode.INVALID_RECORD, "incomplete record batch")
    length: int = _LENGTH.unpack_from(records, _LENGTH_AT)[0]
    magic = records[_MAGIC_AT]
    if length < _OLD_OVERHEAD_BYTES or magic > MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "invalid batch length or magic")
    if magic < MAGIC:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "only magic 2 is allowed in this version of Produce"
        )
    end = LENGTH_FROM + length
    if end > size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the record batch is truncated")
    if end < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "invalid batch length")
    header = BatchHeader(*_HEADER.unpack_from(records, 0))
    if crc32c(records[CRC_FROM:end]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the record batch does not match its CRC")
    if end < size:
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is more than one record batch")
    if size > bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, "the record batch is larger than max.message.bytes"
        )
    _check_fields(header, produce_version)
    return header


def _check_fields(header: BatchHeader, produce_version: int) -> None:
    """Check the header fields that Kafka requires of producers, after the CRC."""
    attributes = header.attributes
    if (
        header.base_offset != 0
        or header.count <= 0
        or header.last_offset_delta != header.count - 1
        or attributes & CONTROL_FLAG
        or (header.producer_id >= 0 and header.base_sequence < 0)
    ):
        raise KafkaError(ErrorCode.INVALID_RECORD, "inconsistent record batch header")
    codec = attributes & CODEC_MASK
    if codec > Compression.ZSTD or (
        codec == Compression.ZSTD and produce_version < ZSTD_SINCE_PRODUCE_VERSION
    ):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "compression type not supported")
    # A cheap check that keeps the work for the records in proportion to the received bytes.
    record_bytes = header.batch_length + LENGTH_FROM - HEADER_BYTES
    if header.count * RECORD_BYTES_MIN > (INFLATED_BYTES_MAX if codec else record_bytes):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "the header has more records than the batch can hold"
        )
    if attributes & LOG_APPEND_TIME_FLAG:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "producers must not set LogAppendTime")


def patch_position(batch: memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Set a batch's base offset and leader epoch. Both fields are outside the CRC."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _EPOCH_AT, leader_epoch)


def patch_log_append_time(batch: memoryview, timestamp_ms: int) -> None:
    """Set the batch's `LogAppendTime` to `timestamp_ms` and update the CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_FLAG)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp_ms)
    seal(batch)


def max_timestamp_of(batch: Buffer) -> int:
    """Return the header's maximum timestamp of a batch of at least a header; -1: it has none."""
    (timestamp_ms,) = _MAX_TIMESTAMP.unpack_from(batch, _MAX_TIMESTAMP_AT)
    return int(timestamp_ms)


def patch_max_timestamp(batch: memoryview, timestamp_ms: int) -> None:
    """Correct the header's maximum timestamp and update the CRC."""
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp_ms)
    seal(batch)


def recompressed(
    batch: memoryview, records: memoryview, codec: Compression, level: int | None
) -> bytearray:
    """Return the batch compressed with another codec.

    `records` are its uncompressed records. The codec may become Snappy: see `compress_readably`.
    """
    data: Buffer = records
    if codec is not Compression.NONE:
        codec, data = compress_readably(codec, records, level)
    out = bytearray(HEADER_BYTES + len(data))
    out[:HEADER_BYTES] = batch[:HEADER_BYTES]
    out[HEADER_BYTES:] = data
    (attributes,) = _ATTRIBUTES.unpack_from(out, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(out, _ATTRIBUTES_AT, attributes & ~CODEC_MASK | codec)
    _LENGTH.pack_into(out, _LENGTH_AT, len(out) - LENGTH_FROM)
    seal(memoryview(out))
    return out


# --- reading ---


def split_batches(view: memoryview) -> list[memoryview]:
    """Return the consecutive complete batches in `view`, without a partial last one.

    Raise CorruptBatch for an impossible length or magic.
    """
    batches = []
    position, size = 0, len(view)
    while size - position >= HEADER_BYTES:
        (length,) = _LENGTH.unpack_from(view, position + _LENGTH_AT)
        if length < HEADER_BYTES - LENGTH_FROM:
            raise CorruptBatch("batch length", position + _LENGTH_AT)
        if view[position + _MAGIC_AT] != MAGIC:
            raise CorruptBatch("magic", position + _MAGIC_AT)
        end = position + LENGTH_FROM + length
        if end > size:
            break
        batches.append(view[position:end])
        position = end
    return batches


def crc_matches(batch: memoryview) -> bool:
    """Return True if the batch matches its CRC."""
    (expected,) = _CRC.unpack_from(batch, _CRC_AT)
    return bool(crc32c(batch[CRC_FROM:]) == expected)


@dataclass(slots=True)
class Record:
    """One record. `offset` and `timestamp` are absolute; a header's value may be None."""

    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp: int = NO_TIMESTAMP
    offset: int = -1


def iter_records(batch: memoryview, skip: int = 0) -> Iterator[Record]:
    """Yield the decompressed records of one batch, without the first `skip`.

    Only the lengths of the skipped records are read. The CRC is not checked (`crc_matches`). With
    LogAppendTime all records have that time. Raise CorruptBatch, possibly after the first records.
    """
    header, payload = _unpack(batch)
    position = 0
    skip = min(skip, header.count)
    for _ in range(skip):
        try:
            length, position = read_varint(payload, position)
        except IndexError:
            raise CorruptBatch("record", position) from None
        if length < 0:
            raise CorruptBatch("record length", position)
        position += length
    for _ in range(header.count - skip):
        try:
            record, position = _read_record(payload, position, header)
        except IndexError:
            raise CorruptBatch("record", position) from None
        yield record


def _unpack(batch: memoryview) -> tuple[BatchHeader, memoryview]:
    """Return (header, uncompressed records). Raise CorruptBatch if that fails."""
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch("header", len(batch))
    header = read_header(batch)
    if header.codec > Compression.ZSTD:
        raise CorruptBatch("codec", _ATTRIBUTES_AT)
    try:
        return header, decompress(Compression(header.codec), batch[HEADER_BYTES:], OUTPUT_BYTES_MAX)
    except CorruptCompression as error:
        raise CorruptBatch("compressed records", HEADER_BYTES) from error


class _Start(NamedTuple):
    """Start of a record, the position after it, and the end of the record."""

    timestamp: int
    offset: int
    position: int
    end: int


def _read_start(view: memoryview, start: int, header: BatchHeader) -> _Start:
    """Read the start of a record. Raise IndexError or CorruptBatch if there is none."""
    length, body = read_varint(view, start)
    end = body + length
    if length < 0 or end > len(view):
        raise CorruptBatch("record length", start)
    # The attributes, one byte and unused so far, precede the deltas.
    timestamp_delta, position = read_varint(view, body + 1)
    offset_delta, position = read_varint(view, position)
    timestamp = header.base_timestamp + timestamp_delta
    if header.attributes & LOG_APPEND_TIME_FLAG:
        timestamp = header.max_timestamp
    return _Start(timestamp, header.base_offset + offset_delta, position, end)


def _read_record(view: memoryview, start: int, header: BatchHeader) -> tuple[Record, int]:
    """Return (record, position after it). Raise IndexError or CorruptBatch if it is invalid."""
    timestamp, offset, position, end = _read_start(view, start, header)
    key, position = _read_sized(view, position, end)
    value, position = _read_sized(view, position, end)
    count, position = read_varint(view, position)
    # A header takes at least two bytes: the lengths of its name and its value.
    if not 0 <= count * 2 <= end - position:
        raise CorruptBatch("header count", position)
    headers = []
    for _ in range(count):
        name, position = _read_sized(view, position, end)
        if name is None:
            raise CorruptBatch("header name", position)
        header_value, position = _read_sized(view, position, end)
        headers.append((name.decode("utf-8", "replace"), header_value))
    if position != end:
        raise CorruptBatch("record length", start)
    return Record(key, value, headers, timestamp, offset), end


def _read_sized(view: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(view, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise CorruptBatch("field length", position)
    return view[position : position + length].tobytes(), position + length


def first_at_or_after(
    batch: memoryview, timestamp: int, first_offset: int = 0
) -> tuple[int, int] | None:
    """Return (offset, timestamp) of the first record at `first_offset` and `timestamp` or later.

    Keys, values and headers are skipped. A control batch has no such record. Raise CorruptBatch if
    the batch is invalid.
    """
    header, payload = _unpack(batch)
    if header.is_control:
        return None
    position = 0
    for _ in range(header.count):
        try:
            record = _read_start(payload, position, header)
        except IndexError:
            raise CorruptBatch("record", position) from None
        if record.position > record.end:
            raise CorruptBatch("record length", position)
        if record.timestamp >= timestamp and record.offset >= first_offset:
            return record.offset, record.timestamp
        position = record.end
    return None


def read_varint(view: Buffer, position: int) -> tuple[int, int]:
    """Return (value, position after it) of a zigzag varint of at most 64 bits.

    Raise IndexError at the end of the view, CorruptBatch if the varint is too long.
    """
    byte = view[position]
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte > 127:
        if shift > 63:
            raise CorruptBatch("varint", position)
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position


# --- building ---


@dataclass(frozen=True, slots=True)
class BatchFields:
    """Header fields of a new batch besides its records; by default those of a plain producer."""

    base_offset: int = 0
    leader_epoch: int = -1
    compression: Compression = Compression.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False
    is_control: bool = False


PLAIN = BatchFields()


def build_batch(records: Sequence[Record], fields: BatchFields = PLAIN) -> bytearray:
    """Build a sealed batch of at least one record.

    Offsets are reassigned, dense from `base_offset`.
    """
    if not records:
        raise ValueError("a record batch has at least one record")
    base_timestamp = records[0].timestamp
    payload = bytearray()
    for delta, record in enumerate(records):
        body = _record_body(record, delta, record.timestamp - base_timestamp)
        write_varint(payload, len(body))
        payload += body
    return pack_batch(
        payload,
        fields,
        count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
    )


def pack_batch(
    payload: bytearray,
    fields: BatchFields,
    *,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
) -> bytearray:
    """Build a sealed batch of `count` records, at least one, from their uncompressed `payload`."""
    compressed = payload
    if fields.compression is not Compression.NONE:
        compressed = bytearray(compress(fields.compression, payload))
    attributes = int(fields.compression)
    attributes |= TRANSACTIONAL_FLAG if fields.is_transactional else 0
    attributes |= CONTROL_FLAG if fields.is_control else 0
    batch = bytearray(HEADER_BYTES)
    batch += compressed
    _HEADER.pack_into(
        batch,
        0,
        fields.base_offset,
        len(batch) - LENGTH_FROM,
        fields.leader_epoch,
        MAGIC,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        fields.producer_id,
        fields.producer_epoch,
        fields.base_sequence,
        count,
    )
    seal(batch)
    return batch


def build_sparse_batch(
    records: Sequence[Record], base_offset: int, end_offset: int, *, leader_epoch: int
) -> bytearray:
    """Build a sealed batch over [base_offset, end_offset) of records left by compaction.

    The records, possibly none, get the first offsets.
    """
    span = end_offset - base_offset
    assert len(records) <= span <= SPAN_MAX, (len(records), span)
    if records:
        batch = build_batch(
            records, BatchFields(base_offset=base_offset, leader_epoch=leader_epoch)
        )
    else:
        batch = bytearray(HEADER_BYTES)
        _HEADER.pack_into(
            batch, 0, base_offset, HEADER_BYTES - LENGTH_FROM, leader_epoch, MAGIC, 0, 0, 0,
            NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID, -1, NO_SEQUENCE, 0,
        )  # fmt: skip
    _LAST_DELTA.pack_into(batch, _LAST_DELTA_AT, span - 1)
    seal(batch)
    return batch


def seal(batch: bytearray | memoryview) -> None:
    """Update the CRC of a changed batch."""
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))


def _record_body(record: Record, offset_delta: int, timestamp_delta: int) -> bytearray:
    body = bytearray(1)
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_sized(body, record.key)
    _write_sized(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_sized(body, name.encode())
        _write_sized(body, value)
    return body


def _write_sized(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # -1 as a zigzag varint
        return
    write_varint(out, len(data))
    out += data


def write_varint(out: bytearray, value: int) -> None:
    """Append `value`, of at most 64 bits, as a zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
