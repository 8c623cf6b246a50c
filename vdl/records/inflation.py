"""Compressed records as a stream: each read gives the next bytes of what they become, so that they
take no more memory than one piece and the codec's window, whatever they become.

For what a producer sends, by the rules of `compression.decompress_into`: one frame or member that
fills its bytes. That is known when the last read has given nothing; until then, what was read may
still turn out to be what no client reads.

Snappy knows no stream: a block of it is decompressed as a whole. Java's client and those that frame
like it send blocks of 32 KiB. What has no frames is a single block, which may become
`SNAPPY_BLOCK_BYTES_MAX`.

Must not know: records.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from mmap import mmap
from typing import Protocol

import cramjam
import lz4.frame
import zstandard

from vdl.records.compression import (
    Buffer,
    Compression,
    CorruptCompression,
    is_one_lz4_frame,
    is_one_zstd_frame,
    snappy_blocks,
)

INFLATED_BYTES_MAX = (1 << 31) - 1
"""What a batch may become: clients count the bytes of records in 32 bits."""

INPUT_BYTES = 64 << 10
"""What a codec is given at a time."""

WINDOW_BYTES_MAX = 1 << 27
"""Of zstd: what its own tools, and Kafka's clients, read at most."""

SNAPPY_BLOCK_BYTES_MAX = 128 << 20
"""Of one block, decompressed: it cannot be had in pieces."""

_SNAPPY_EXPANSION_MAX = 22
"""Three bytes of a block are a copy of 64 at most; no other element becomes more by byte."""

_GZIP = 31
"""To zlib: a header and an end as gzip has them, and the largest window."""


class Inflated(Protocol):
    """A stream of decompressed bytes."""

    def readinto(self, room: memoryview) -> int:
        """Put the next bytes into `room`, which is not empty; how many, 0 at the end. Raises
        CorruptCompression."""


def inflated(codec: Compression, data: Buffer) -> Inflated:
    """What `data` becomes. Raises CorruptCompression."""
    view = memoryview(data)
    match codec:
        case Compression.NONE:
            raise AssertionError("not compressed")
        case Compression.GZIP:
            return _Gzip(view)
        case Compression.SNAPPY:
            return _Snappy(view)
        case Compression.LZ4:
            return _Lz4(view)
        case Compression.ZSTD:
            return _Zstd(view)


class _Gzip:
    """One member (RFC 1952)."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._taken = 0
        self._codec = zlib.decompressobj(wbits=_GZIP)

    def readinto(self, room: memoryview) -> int:
        codec, data = self._codec, self._data
        while not codec.eof:
            given: Buffer = codec.unconsumed_tail
            if not given:
                given = data[self._taken : self._taken + INPUT_BYTES]
                self._taken += len(given)
            try:
                found = codec.decompress(given, len(room))
            except zlib.error as error:
                raise CorruptCompression(Compression.GZIP, len(data)) from error
            if found:
                room[: len(found)] = found
                return len(found)
            if not len(given):
                break
        if not codec.eof or codec.unused_data or self._taken < len(data):
            raise CorruptCompression(Compression.GZIP, len(data))
        return 0


class _Lz4:
    """One frame of independent blocks."""

    def __init__(self, data: memoryview) -> None:
        if not is_one_lz4_frame(data):
            raise CorruptCompression(Compression.LZ4, len(data))
        self._data = data
        self._taken = 0
        self._codec = lz4.frame.LZ4FrameDecompressor()

    def readinto(self, room: memoryview) -> int:
        codec, data = self._codec, self._data
        while not codec.eof:
            given: Buffer = b""
            if codec.needs_input:
                given = data[self._taken : self._taken + INPUT_BYTES]
                if not len(given):
                    break
                self._taken += len(given)
            try:
                found = codec.decompress(given, len(room))
            except RuntimeError as error:
                raise CorruptCompression(Compression.LZ4, len(data)) from error
            if found:
                room[: len(found)] = found
                return len(found)
        if not codec.eof or codec.unused_data or self._taken < len(data):
            raise CorruptCompression(Compression.LZ4, len(data))
        return 0


class _Zstd:
    """One frame (RFC 8878)."""

    def __init__(self, data: memoryview) -> None:
        if not is_one_zstd_frame(data):
            raise CorruptCompression(Compression.ZSTD, len(data))
        self._size = len(data)
        codec = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        self._stream = codec.stream_reader(data, read_size=INPUT_BYTES)

    def readinto(self, room: memoryview) -> int:
        try:
            return self._stream.readinto(room)
        except zstandard.ZstdError as error:
            raise CorruptCompression(Compression.ZSTD, self._size) from error


class _Snappy:
    """Blocks, one behind the other."""

    def __init__(self, data: memoryview) -> None:
        self._size = len(data)
        self._blocks: Iterator[memoryview] = snappy_blocks(data)
        self._block = memoryview(b"")

    def readinto(self, room: memoryview) -> int:
        while not self._block:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._block = memoryview(b"")  # the room of the last one goes before the next is made
            self._block = self._decompressed(block)
        taken = min(len(room), len(self._block))
        room[:taken] = self._block[:taken]
        self._block = self._block[taken:]
        return taken

    def _decompressed(self, block: memoryview) -> memoryview:
        try:
            length = cramjam.snappy.decompress_raw_len(block) if block else -1
            # Believed only as far as its bytes can become so many: it costs room.
            possible = min(SNAPPY_BLOCK_BYTES_MAX, _SNAPPY_EXPANSION_MAX * len(block))
            if not 0 <= length <= possible:
                raise CorruptCompression(Compression.SNAPPY, self._size)
            if not length:
                return memoryview(b"")
            # Pages come as they are written: to fill them all with zeros would stop the loop.
            out = memoryview(mmap(-1, length))
            cramjam.snappy.decompress_raw_into(block, out)
        except cramjam.DecompressionError as error:
            raise CorruptCompression(Compression.SNAPPY, self._size) from error
        return out
