"""Compressed records as a stream, in bounded memory.

Each read returns the next decompressed bytes, so memory is limited to one piece and the codec's
window, whatever the total size.

The streams read data from producers, by the rules of `compression.decompress_into`: exactly one
frame or member. That is verified only when the last read returns nothing; until then, data already
read may turn out to be invalid for clients.

Snappy has no streams: a block is decompressed as a whole. Java's client and those with the same
framing send blocks of 32 KiB. Data without framing is a single block, which may become
`SNAPPY_BLOCK_BYTES_MAX`.

Does not depend on records.
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
"""Maximum decompressed size of a batch: clients count the bytes of records in 32 bits."""

INPUT_BYTES = 64 << 10
"""Number of bytes passed to a codec at a time."""

WINDOW_BYTES_MAX = 1 << 27
"""Maximum window of zstd, as in its own tools and Kafka's clients."""

SNAPPY_BLOCK_BYTES_MAX = 128 << 20
"""Maximum decompressed size of one block, which cannot be read in pieces."""

_SNAPPY_EXPANSION_MAX = 22
"""Three bytes of a block are a copy of at most 64; no other element has a larger ratio."""

_GZIP = 31
"""zlib's argument for gzip's header and trailer, and the largest window."""


class Inflated(Protocol):
    """A stream of decompressed bytes."""

    def readinto(self, room: memoryview) -> int:
        """Put the next bytes into `room`, which is not empty; return their number, 0 at the end.

        Raise CorruptCompression if the data is invalid.
        """


def inflated(codec: Compression, data: Buffer) -> Inflated:
    """Return a stream of the decompressed `data`.

    Raise CorruptCompression if its framing is invalid.
    """
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
    """Stream of one member (RFC 1952)."""

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
    """Stream of one frame of independent blocks."""

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
    """Stream of one frame (RFC 8878)."""

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
    """Stream of consecutive blocks."""

    def __init__(self, data: memoryview) -> None:
        self._size = len(data)
        self._blocks: Iterator[memoryview] = snappy_blocks(data)
        self._block = memoryview(b"")

    def readinto(self, room: memoryview) -> int:
        while not self._block:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._block = memoryview(b"")  # free the last block before the next is allocated
            self._block = self._decompressed(block)
        taken = min(len(room), len(self._block))
        room[:taken] = self._block[:taken]
        self._block = self._block[taken:]
        return taken

    def _decompressed(self, block: memoryview) -> memoryview:
        try:
            length = cramjam.snappy.decompress_raw_len(block) if block else -1
            # Trust the stated length only as far as the input can expand: it allocates memory.
            possible = min(SNAPPY_BLOCK_BYTES_MAX, _SNAPPY_EXPANSION_MAX * len(block))
            if not 0 <= length <= possible:
                raise CorruptCompression(Compression.SNAPPY, self._size)
            if not length:
                return memoryview(b"")
            # Pages are allocated as they are written; zeroing all of them here would stall the
            # loop.
            out = memoryview(mmap(-1, length))
            cramjam.snappy.decompress_raw_into(block, out)
        except cramjam.DecompressionError as error:
            raise CorruptCompression(Compression.SNAPPY, self._size) from error
        return out
