"""Message formats 0 and 1 of clients before Kafka 0.11: conversion to magic 2 and back.

```
 0 offset      i64
 8 size        i32    counts from byte 12
12 crc         u32    CRC-32 of everything from byte 16
16 magic       i8     0 or 1
17 attributes  i8     0-2 codec; 3 LogAppendTime (magic 1)
18 timestamp   i64    magic 1 only (KIP-32)
   key, value         each with an i32 length in front, -1 for null
```

Messages follow one another without a header around them: a message set. A message with a codec is a
wrapper: its value is a compressed message set. The offset of a wrapper is that of its last inner
message. Inner offsets are absolute in magic 0, and relative to the first one in magic 1 (KIP-31). A
wrapper with LogAppendTime sets the time of all messages in it.

`take` reads a producer's message set, `down_convert` makes messages for an old consumer. Stored
batches are always magic 2. Headers, producer ids, epochs and control batches do not exist in the
old formats and are dropped on the way back. zstd does not exist there either (KIP-110).

In magic 0 the checksum of the LZ4 header also covers the magic number of the frame: a bug of the
first Java client that became part of the format (KAFKA-3160). It is written in that way and not
checked.

Errors are those of `check_batch`: a CRC mismatch is CORRUPT_MESSAGE, which producers retry; a
message that can never be read is INVALID_RECORD. Kafka drops a truncated message and acknowledges
the rest; here the whole set is refused, because its producer would assume that everything is
written.

Does not depend on logs, requests, or threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct
from zlib import crc32

from vdl.errors import ErrorCode, KafkaError
from vdl.records.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME_FLAG,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchFields,
    BatchHeader,
    CorruptBatch,
    Record,
    iter_records,
    pack_batch,
    read_header,
    split_batches,
    write_varint,
)
from vdl.records.compression import (
    Compression,
    compress,
    decompress_into,
)

MAGIC_MAX = 1
LAST_PRODUCE_VERSION = 2
LAST_FETCH_VERSION = 3
"""Later versions carry magic 2 only (KIP-98)."""

MAGIC_1_FETCH_VERSION = 2
"""Earlier Fetch versions carry magic 0 only (KIP-32)."""

WRAPPER_BYTES = 256 << 10
"""Approximate size of messages compressed into one wrapper for a consumer.

It bounds the memory for converting a batch, and the size that is sent at once.
"""

_OVERHEAD = Struct(">qiI")
_TIMESTAMP = Struct(">q")
_LENGTH = Struct(">i")
_BODY_0 = Struct(">bbi")
_BODY_1 = Struct(">bbqi")
_LOG_OVERHEAD_BYTES, _CRC_BYTES = 12, 4
_MAGIC_AT, _ATTRIBUTES_AT, _TIMESTAMP_AT = 16, 17, 18
_KEY_AT = (18, 26)
_SIZE_MIN = (14, 22)
"""Smallest valid size field of a message, by magic."""


def header_to_come() -> BatchHeader:
    """Return a placeholder header for an unconverted set: no producer, no transaction."""
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC_MAX,
        crc=0,
        attributes=0,
        last_offset_delta=-1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        count=0,
    )


def is_legacy(records: memoryview | None) -> bool:
    """Return True if the first message is complete and of magic 0 or 1."""
    return records is not None and len(records) > _MAGIC_AT and records[_MAGIC_AT] <= MAGIC_MAX


# --- from producers ---


@dataclass(slots=True)
class Taken:
    """A message set converted to the records of one batch."""

    payload: bytearray = field(default_factory=bytearray)
    """Uncompressed records in magic 2."""
    count: int = 0
    base_timestamp: int = NO_TIMESTAMP
    codec: Compression = Compression.NONE

    def add(self, message: _Message) -> None:
        """Append one record. Raise KafkaError if its timestamp is negative."""
        timestamp = message.timestamp
        if timestamp < NO_TIMESTAMP:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a timestamp is negative")
        if not self.count:
            self.base_timestamp = timestamp
        body = bytearray(1)
        write_varint(body, timestamp - self.base_timestamp)
        write_varint(body, self.count)
        for item in (message.key, message.value):
            write_varint(body, -1 if item is None else len(item))
            body += item or b""
        body.append(0)  # no headers
        write_varint(self.payload, len(body))
        self.payload += body
        self.count += 1

    def header(self) -> BatchHeader:
        """Return the header fields that record checks need."""
        header = header_to_come()
        header.attributes = int(self.codec)
        header.base_timestamp = self.base_timestamp
        header.count = self.count
        return header

    def batch(self, max_timestamp: int) -> bytearray:
        """Return the sealed batch. `max_timestamp` is that of its records, in ms."""
        return pack_batch(
            self.payload,
            BatchFields(compression=self.codec),
            count=self.count,
            base_timestamp=self.base_timestamp,
            max_timestamp=max_timestamp,
        )


@dataclass(slots=True)
class _Message:
    """One message, as views of the received bytes."""

    magic: int
    codec: int
    is_log_append_time: bool
    timestamp: int
    key: memoryview | None
    value: memoryview | None
    size: int


def take(records: memoryview, scratch: memoryview, *, bytes_max: int) -> Taken:
    """Return the records of a message set.

    Raise KafkaError for an invalid set, and CorruptCompression if a wrapper is not valid data of
    its codec, or does not decompress into `scratch`. `bytes_max` is the topic's
    `max.message.bytes`, for each message as sent. All CRCs are checked before anything they cover
    is trusted. A set is one wrapper, or messages without a codec, as Kafka requires since 0.11.
    """
    taken = Taken()
    for message in _messages(records):
        if message.size > bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, "a message is larger than max.message.bytes"
            )
        if message.is_log_append_time:
            raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "producers must not set LogAppendTime")
        if taken.codec or (message.codec and taken.count):
            raise _invalid("a compressed message must be the only one in its set")
        if message.codec:
            _unwrap(message, scratch, taken)
        else:
            taken.add(message)
            if len(taken.payload) > bytes_max:
                raise too_large_for_a_batch()
    return taken


def too_large_for_a_batch() -> KafkaError:
    """Return the error for messages that do not fit one batch together, as in Kafka.

    Each of them alone may be small enough.
    """
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "the messages are too large for one batch")


def _unwrap(wrapper: _Message, scratch: memoryview, taken: Taken) -> None:
    """Add the messages in a wrapper."""
    if wrapper.codec > Compression.LZ4:
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        raise KafkaError(code, "compression type not supported")
    if wrapper.value is None:
        raise _invalid("a compressed message has no value")
    taken.codec = Compression(wrapper.codec)
    data = wrapper.value
    if taken.codec is Compression.LZ4 and wrapper.magic == 0:
        data = memoryview(with_lz4_checksum(data, is_broken=False))
    size = decompress_into(taken.codec, data, scratch)
    for message in _messages(scratch[:size]):
        if message.codec:
            raise _invalid("a compressed message contains another compressed message")
        if message.magic != wrapper.magic:
            raise _invalid("a compressed message contains a message of another magic")
        taken.add(message)


def _messages(view: memoryview) -> Iterator[_Message]:
    """Yield the messages of a set, at least one. Raise KafkaError if the set is invalid."""
    position, size = 0, len(view)
    if not size:
        raise _invalid("the message set is empty")
    while position < size:
        left = size - position
        if left <= _MAGIC_AT:
            raise _invalid("a message is truncated")
        magic = view[position + _MAGIC_AT]
        _, body_bytes, crc = _OVERHEAD.unpack_from(view, position)
        if not 0 <= magic <= MAGIC_MAX:
            raise _corrupt("invalid magic")
        if body_bytes < _SIZE_MIN[magic]:
            raise _corrupt("invalid message size")
        if body_bytes > left - _LOG_OVERHEAD_BYTES:
            raise _invalid("a message is truncated")
        end = position + _LOG_OVERHEAD_BYTES + body_bytes
        if crc32(view[position + _MAGIC_AT : end]) != crc:
            raise _corrupt("a message does not match its CRC")
        key, key_end = _field(view, position + _KEY_AT[magic], end)
        value, value_end = _field(view, key_end, end)
        if value_end != end:
            raise _invalid("a message is longer than its fields")
        attributes = view[position + _ATTRIBUTES_AT]
        timestamp = NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(view, position + _TIMESTAMP_AT)
        yield _Message(
            magic,
            attributes & CODEC_MASK,
            bool(magic and attributes & LOG_APPEND_TIME_FLAG),
            timestamp,
            key,
            value,
            end - position,
        )
        position = end


def _field(view: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    """Return a key or value, and its end. Raise KafkaError if it is invalid."""
    start = position + _LENGTH.size
    if start > end:
        raise _invalid("a message is shorter than its fields")
    (length,) = _LENGTH.unpack_from(view, position)
    if not -1 <= length <= end - start:
        raise _invalid("a field exceeds its message")
    if length < 0:
        return None, start
    return view[start : start + length], start + length


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, what)


def _corrupt(what: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, what)


# --- for consumers ---


@dataclass(slots=True)
class DownConverted:
    """Batches converted to message sets."""

    buffers: list[bytes] = field(default_factory=list)
    bytes: int = 0
    records: int = 0
    """Number of records read for it, including those inside wrappers."""
    error: ErrorCode = ErrorCode.NONE
    """Reason for stopping before a batch that cannot be converted."""


def down_convert(
    batches: Iterable[memoryview],
    *,
    magic: int,
    first_offset: int,
    bytes_max: int,
    records_max: int,
) -> DownConverted:
    """Convert the records from `first_offset` on to messages of this magic.

    The result has complete messages of up to `bytes_max` bytes in all, but at least one, and none
    after `records_max` records. `batches` are views of one or more batches each. A batch with a
    codec becomes wrappers of about `WRAPPER_BYTES` with its codec. The result is empty if `batches`
    hold nothing but control batches and batches emptied by compaction.
    """
    converted = DownConverted()
    try:
        for batch in chain.from_iterable(map(split_batches, batches)):
            header = read_header(batch)
            if header.is_control or header.last_offset < first_offset:
                continue
            if header.codec > Compression.LZ4:
                converted.error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
                break
            for message, count in _messages_of(batch, header, magic, first_offset):
                converted.records += count
                if converted.bytes and converted.bytes + len(message) > bytes_max:
                    return converted
                converted.buffers.append(message)
                converted.bytes += len(message)
                if converted.records >= records_max:
                    return converted
    except CorruptBatch:
        converted.error = ErrorCode.CORRUPT_MESSAGE
    return converted


def _messages_of(
    batch: memoryview, header: BatchHeader, magic: int, first_offset: int
) -> Iterator[tuple[bytes, int]]:
    """Yield the messages of one batch, wrappers if it has a codec, with their record counts.

    Raise CorruptBatch if the batch is invalid.
    """
    # A small reader returns to a large batch often. If no record is missing, its position is known.
    is_dense = header.count == header.last_offset_delta + 1
    skip = max(0, first_offset - header.base_offset) if is_dense else 0
    records = (record for record in iter_records(batch, skip) if record.offset >= first_offset)
    flag = header.attributes & LOG_APPEND_TIME_FLAG if magic else 0
    if header.codec:
        return _wrappers(records, magic, Compression(header.codec), flag)
    return ((_message(magic, flag, record.offset, record), 1) for record in records)


def _wrappers(
    records: Iterable[Record], magic: int, codec: Compression, flag: int
) -> Iterator[tuple[bytes, int]]:
    """Yield the records as compressed messages, with their record counts."""
    inside: list[bytes] = []
    size = base_offset = last_offset = 0
    timestamp = NO_TIMESTAMP

    def wrapped() -> bytes:
        data = compress(codec, b"".join(inside))
        if codec is Compression.LZ4 and magic == 0:
            data = bytes(with_lz4_checksum(memoryview(data), is_broken=True))
        outer = Record(None, data, timestamp=timestamp)
        return _message(magic, flag | codec, last_offset, outer)

    for record in records:
        if not inside:
            base_offset, timestamp = record.offset, NO_TIMESTAMP
        offset = record.offset - base_offset if magic else record.offset
        message = _message(magic, flag, offset, record)
        inside.append(message)
        size += len(message)
        last_offset = record.offset
        timestamp = max(timestamp, record.timestamp)
        if size >= WRAPPER_BYTES:
            yield wrapped(), len(inside)
            inside, size = [], 0
    if inside:
        yield wrapped(), len(inside)


def _message(magic: int, attributes: int, offset: int, record: Record) -> bytes:
    """Encode one message."""
    key, value = record.key, record.value
    key_length = -1 if key is None else len(key)
    if magic:
        head = _BODY_1.pack(magic, attributes, record.timestamp, key_length)
    else:
        head = _BODY_0.pack(magic, attributes, key_length)
    value_length = _LENGTH.pack(-1 if value is None else len(value))
    body = b"".join((head, key or b"", value_length, value or b""))
    return _OVERHEAD.pack(offset, len(body) + _CRC_BYTES, crc32(body)) + body


# --- LZ4's header in magic 0 ---

_LZ4_MAGIC_BYTES = 4
_LZ4_CONTENT_SIZE = 8
_PRIME_1, _PRIME_2, _PRIME_3 = 2654435761, 2246822519, 3266489917
_PRIME_4, _PRIME_5 = 668265263, 374761393
_UINT32_LE = Struct("<I")
_MASK = 0xFFFFFFFF


def with_lz4_checksum(frame: memoryview, *, is_broken: bool) -> bytearray:
    """Return a copy of an LZ4 frame with a recomputed header checksum.

    `is_broken`: the checksum also covers the magic number, as in the first Java client. A frame
    that is too short for a header is copied unchanged.
    """
    copied = bytearray(frame)
    if len(copied) > _LZ4_MAGIC_BYTES:
        end = _LZ4_MAGIC_BYTES + (10 if copied[_LZ4_MAGIC_BYTES] & _LZ4_CONTENT_SIZE else 2)
        if len(copied) > end:
            covered = copied[0 if is_broken else _LZ4_MAGIC_BYTES : end]
            copied[end] = xxh32(bytes(covered)) >> 8 & 0xFF
    return copied


def xxh32(data: bytes) -> int:
    """Return the 32-bit xxHash, seed 0, of fewer than 16 bytes: enough for a header of LZ4."""
    assert len(data) < 16, len(data)
    words = len(data) // 4
    state = (_PRIME_5 + len(data)) & _MASK
    for index in range(words):
        (word,) = _UINT32_LE.unpack_from(data, 4 * index)
        state = _rotated(state + word * _PRIME_3, 17) * _PRIME_4 & _MASK
    for byte in data[4 * words :]:
        state = _rotated(state + byte * _PRIME_5, 11) * _PRIME_1 & _MASK
    state = (state ^ state >> 15) * _PRIME_2 & _MASK
    state = (state ^ state >> 13) * _PRIME_3 & _MASK
    return state ^ state >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
