"""Decompression into a fixed buffer: exactly one frame, as all clients read it."""

import gzip

import cramjam
import lz4.frame
import pytest
import zstandard

from vdl.records.compression import (
    FRAME_BLOCKS_MAX,
    Compression,
    CorruptCompression,
    compress,
    decompress,
    decompress_into,
)

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"".join(b"line %d of some text;" % number for number in range(20_000))


def result(codec: Compression, data: bytes, size: int = 1 << 20) -> bytes | None:
    """Return the output, or None if the input is refused."""
    output = memoryview(bytearray(size))
    try:
        return bytes(output[: decompress_into(codec, data, output)])
    except CorruptCompression:
        return None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, 70_000, len(TEXT)])
def test_own_compression_of_any_size_is_read_back(codec: Compression, size: int) -> None:
    """It fits a buffer of exactly its size; one byte less is refused."""
    data = compress(codec, TEXT[:size])
    assert result(codec, data, size) == TEXT[:size]
    if size:
        assert result(codec, data, size - 1) is None


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("size", [10, 200, 70_000, len(TEXT)])
def test_compression_of_other_libraries_is_read_in_all_its_forms(
    checksum: bool, sized: bool, size: int
) -> None:
    """Covers frames with and without a content size, with and without checksums."""
    text = TEXT[:size]
    assert result(Compression.GZIP, gzip.compress(text, 6 if sized else 1)) == text
    frame = lz4.frame.compress(
        text, block_linked=False, content_checksum=checksum, block_checksum=checksum,
        store_size=sized,
    )  # fmt: skip
    assert result(Compression.LZ4, frame) == text
    packer = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=sized)
    assert result(Compression.ZSTD, packer.compress(text)) == text
    stream = packer.compressobj()
    assert result(Compression.ZSTD, stream.compress(text) + stream.flush()) == text
    assert result(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(text))) == text


@pytest.mark.parametrize("codec", CODECS)
def test_compression_cut_off_or_followed_by_more_is_refused(codec: Compression) -> None:
    """Covers a part of a frame, a frame with trailing bytes, and empty input."""
    data = compress(codec, TEXT)
    for cut in (0, 1, 3, 10, len(data) // 2, len(data) - 1):
        assert result(codec, data[:cut]) is None, cut
    assert result(codec, data + b"garbage") is None
    assert result(codec, data + b"\0") is None


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize(("first", "second"), [(TEXT, TEXT), (b"", TEXT), (TEXT, b"")])
def test_two_frames_in_one_batch_are_refused(
    codec: Compression, first: bytes, second: bytes
) -> None:
    """Our own reader accepts both, but some clients read only the first and miss records."""
    data = compress(codec, first) + compress(codec, second)
    assert decompress(codec, data) == first + second
    assert result(codec, data) is None


def test_lz4_blocks_that_depend_on_each_other_are_refused() -> None:
    """Java's reader supports only independent ones."""
    data = lz4.frame.compress(TEXT, block_linked=True)
    assert decompress(Compression.LZ4, data) == TEXT
    assert result(Compression.LZ4, data) is None


@pytest.mark.parametrize("blocks", [FRAME_BLOCKS_MAX, FRAME_BLOCKS_MAX + 1])
def test_frames_of_too_many_blocks_are_refused(blocks: int) -> None:
    """Each block costs the check of the frame a step, even an empty one."""
    empty_and_more, empty_and_last = b"\0\0\0", b"\1\0\0"
    head = (0xFD2FB528).to_bytes(4, "little") + b"\x20\x00"
    data = head + empty_and_more * (blocks - 1) + empty_and_last
    assert decompress(Compression.ZSTD, data) == b""
    assert result(Compression.ZSTD, data) == (b"" if blocks <= FRAME_BLOCKS_MAX else None)
