"""Records of one batch, read as a stream: memory stays small whatever the batch unpacks to.

A batch of some kilobytes may unpack to gigabytes, and one record may be as large as a batch. Only
the beginning of each record is kept (`KEPT_BYTES`), and the unpacked bytes of a question are
counted (`Budget`).

The server has checked each batch before it was stored; a batch that is not valid all the same
raises CorruptBatch.

Does not depend on where batches come from, or on how records are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from vdl.records.batch import HEADER_BYTES, BatchHeader, CorruptBatch, crc_matches, read_header
from vdl.records.batch import read_varint as read_number
from vdl.records.compression import Compression, CorruptCompression
from vdl.records.inflation import Inflated, inflated

KEPT_BYTES: Final = 256 << 10
"""Bytes of a record, its key and headers included, that are kept."""
HEADERS_MAX: Final = 100
"""Headers of a record that are kept."""
_PIECE_BYTES: Final = 64 << 10
_NUMBER_BYTES_MAX: Final = 10
_START_BYTES_MAX: Final = 1 + 2 * _NUMBER_BYTES_MAX


class OverBudget(Exception):
    """More was unpacked than a question may unpack."""


@dataclass(slots=True)
class Budget:
    """Bytes that a question may still unpack. `check` is called often, and may raise."""

    left: int
    check: Callable[[], None]

    def take(self, count: int) -> None:
        """Count bytes. Raises OverBudget."""
        self.check()
        self.left -= count
        if self.left < 0:
            raise OverBudget


@dataclass(frozen=True, slots=True)
class Field:
    """Bytes of which the last may be missing. `size`: all there are; -1: not known."""

    kept: bytes
    size: int

    @property
    def is_cut(self) -> bool:
        return len(self.kept) != self.size

    def cut(self, most: int) -> Field:
        """Return the field with at most so many bytes kept."""
        return self if len(self.kept) <= most else Field(self.kept[:most], self.size)


UNKNOWN: Final = Field(b"", -1)
"""A value behind a key of which only the beginning is kept."""
ALL: Final = -1


@dataclass(slots=True)
class Read:
    """One record. `headers_left_out`: those that are not kept, or ALL."""

    offset: int
    timestamp: int
    key: Field | None
    value: Field | None
    headers: list[tuple[Field, Field | None]] = field(default_factory=list)
    headers_left_out: int = 0

    def cut(self, most: int) -> Read:
        """Return the record with at most `most` bytes of each field kept."""
        return Read(
            self.offset,
            self.timestamp,
            self.key and self.key.cut(most),
            self.value and self.value.cut(most),
            [(name.cut(most), value and value.cut(most)) for name, value in self.headers],
            self.headers_left_out,
        )

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept."""
        fields = [self.key, self.value, *chain(*self.headers)]
        return sum(len(one.kept) for one in fields if one is not None)


class _Source:
    """Bytes in order."""

    def __init__(self, stream: Inflated | None, plain: memoryview, budget: Budget) -> None:
        self._stream = stream
        self._buffer = plain
        self._room = bytearray(_PIECE_BYTES) if stream is not None else bytearray()
        self._budget = budget

    def _more(self) -> bool:
        """Put further bytes behind those in the buffer. Return False at the end."""
        if self._stream is None:
            return False
        count = self._stream.readinto(memoryview(self._room))
        self._budget.take(count)
        if count:
            self._buffer = memoryview(bytes(self._buffer) + self._room[:count])
        return count > 0

    def peek(self, count: int) -> memoryview:
        """Return the next bytes, fewer at the end."""
        while len(self._buffer) < count and self._more():
            pass
        return self._buffer[:count]

    def skip(self, count: int) -> None:
        """Go past bytes. Raises CorruptBatch if there are fewer."""
        while count > len(self._buffer):
            count -= len(self._buffer)
            self._buffer = memoryview(b"")
            if not self._more():
                raise CorruptBatch("record length", 0)
        self._buffer = self._buffer[count:]


def read_records(batch: memoryview, first: int, budget: Budget) -> Iterator[Read]:
    """Yield the records of a batch from offset `first` on. Raises CorruptBatch, OverBudget."""
    header = read_header(batch)
    if header.codec > Compression.ZSTD:
        raise CorruptBatch("codec", 0)
    if not crc_matches(batch):
        raise CorruptBatch("CRC", 0)
    body = batch[HEADER_BYTES:]
    codec = Compression(header.codec)
    try:
        stream = None if codec is Compression.NONE else inflated(codec, body)
        plain = body if stream is None else memoryview(b"")
        yield from _records(_Source(stream, plain, budget), header, first, budget)
    except CorruptCompression as error:
        raise CorruptBatch("compressed records", HEADER_BYTES) from error


def _records(source: _Source, header: BatchHeader, first: int, budget: Budget) -> Iterator[Read]:
    for _ in range(header.count):
        budget.check()
        try:
            length, at = read_number(source.peek(_NUMBER_BYTES_MAX), 0)
        except IndexError:
            raise CorruptBatch("record", 0) from None
        if length < 0:
            raise CorruptBatch("record length", 0)
        source.skip(at)
        try:
            start = _start(source.peek(min(length, _START_BYTES_MAX)), header)
            if start.offset < first:
                source.skip(length)
                continue
            found = _parse(bytes(source.peek(min(length, KEPT_BYTES))), length, start)
        except IndexError:
            raise CorruptBatch("record", 0) from None
        source.skip(length)
        yield found


class _Start(NamedTuple):
    """Beginning of a record, and the position behind it."""

    offset: int
    timestamp: int
    at: int


def _start(kept: memoryview, header: BatchHeader) -> _Start:
    """Read the beginning of a record, behind its length. Raises IndexError."""
    # The attributes, one byte and unused so far, precede the deltas.
    timestamp_delta, at = read_number(kept, 1)
    offset_delta, at = read_number(kept, at)
    timestamp = header.base_timestamp + timestamp_delta
    if header.is_log_append_time:
        timestamp = header.max_timestamp
    return _Start(header.base_offset + offset_delta, timestamp, at)


def _parse(kept: bytes, length: int, start: _Start) -> Read:
    """Return a record of which the last bytes may be missing. Raises IndexError."""
    found = Read(start.offset, start.timestamp, None, UNKNOWN, headers_left_out=ALL)
    found.key, at = _sized(kept, start.at, length)
    if at > len(kept):
        return found
    found.value, at = _sized(kept, at, length)
    if at > len(kept):
        return found
    count, at = read_number(kept, at)
    found.headers_left_out = count
    for _ in range(min(count, HEADERS_MAX)):
        try:
            name, at = _sized(kept, at, length)
            value, at = _sized(kept, at, length)
        except IndexError:
            break
        if at > len(kept) or name is None:
            break
        found.headers.append((name, value))
        found.headers_left_out -= 1
    return found


def _sized(kept: bytes, at: int, end: int) -> tuple[Field | None, int]:
    """Return a field, and the position behind it, which may be behind the bytes that are kept."""
    size, at = read_number(kept, at)
    if size < 0:
        return None, at
    if size > end - at:
        raise CorruptBatch("field length", at)
    return Field(kept[at : at + size], size), at + size
