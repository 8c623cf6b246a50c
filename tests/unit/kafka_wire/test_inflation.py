"""Streaming decompression: its output, its errors and its memory."""

import random
import tracemalloc
from typing import Any

import cramjam
import lz4.frame
import pytest

from vdl.records.compression import Compression, CorruptCompression, compress
from vdl.records.inflation import SNAPPY_BLOCK_BYTES_MAX, inflated

CODECS = [codec for codec in Compression if codec]
TEXT = random.Random(5).randbytes(1 << 18) + bytes(1 << 20) + b"the end"


def read(codec: Compression, data: bytes, piece: int = 1 << 16) -> bytes:
    """Read the whole stream, one piece at a time."""
    stream, out = inflated(codec, data), bytearray()
    room = memoryview(bytearray(piece))
    while size := stream.readinto(room):
        out += room[:size]
    return bytes(out)


def stated(length: int) -> bytes:
    """Return the head of a Snappy block that states this uncompressed length."""
    out = bytearray()
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes([*out, length])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("piece", [1_000, 1 << 16, 1 << 22])
def test_stream_gives_what_was_compressed(codec: Compression, piece: int) -> None:
    """Holds for any size of the pieces read."""
    assert read(codec, compress(codec, TEXT), piece) == TEXT
    assert read(codec, compress(codec, b""), piece) == b""


@pytest.mark.parametrize("codec", CODECS)
def test_stream_that_is_cut_off_or_goes_on_is_refused(codec: Compression) -> None:
    """Any missing or trailing bytes are refused: some clients would miss a second frame."""
    data = compress(codec, TEXT)
    for wrong in (data[:-1], data[: len(data) // 2], data + b"\0", data + data, data[:3], b""):
        with pytest.raises(CorruptCompression):
            read(codec, wrong)


def test_snappy_without_frames_is_read_and_has_a_bound() -> None:
    """The length that it states is believed only up to the bound."""
    assert read(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT
    with pytest.raises(CorruptCompression):
        read(Compression.SNAPPY, stated(SNAPPY_BLOCK_BYTES_MAX + 1) + bytes(8 << 20))


@pytest.mark.parametrize("room", [bytes, memoryview])
def test_snappy_is_believed_no_more_than_its_bytes_can_become(
    monkeypatch: pytest.MonkeyPatch, room: Any
) -> None:
    """A few bytes that state a large length take no memory; the largest possible output is read."""
    zeros = room(bytes(cramjam.snappy.compress_raw(bytes(1 << 20))))
    assert read(Compression.SNAPPY, zeros) == bytes(1 << 20)
    monkeypatch.setattr("vdl.records.inflation.mmap", None)
    with pytest.raises(CorruptCompression):
        read(Compression.SNAPPY, stated(SNAPPY_BLOCK_BYTES_MAX) + bytes(60))


def test_linked_blocks_of_lz4_are_refused() -> None:
    """Java's client cannot read them."""
    with pytest.raises(CorruptCompression):
        read(Compression.LZ4, lz4.frame.compress(TEXT, block_linked=True))


@pytest.mark.parametrize("codec", CODECS)
def test_stream_of_much_is_held_in_little(codec: Compression) -> None:
    """Sixty-four megabytes of zeros take no more than a few pieces."""
    data = compress(codec, bytes(64 << 20))
    stream, room, total = inflated(codec, data), memoryview(bytearray(1 << 20)), 0
    tracemalloc.start()
    try:
        while size := stream.readinto(room):
            total += size
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert total == 64 << 20
