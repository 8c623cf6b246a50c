"""Compression codecs and the bound on their output."""

import random
import struct

import cramjam
import pytest

from vdl.records.compression import (
    FLOOR_BYTES,
    OUTPUT_BYTES_MAX,
    RATIO_MAX,
    Compression,
    CorruptCompression,
    compress,
    decompress,
    output_limit,
)

CODECS = [codec for codec in Compression if codec is not Compression.NONE]


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("size", [0, 1, 100, 70_000, 200_000])
def test_decompress_of_compress_gives_the_data_back(codec: Compression, size: int) -> None:
    """decompress(compress(x)) == x, for data that compresses and data that does not."""
    for data in (b"a" * size, random.Random(size).randbytes(size)):
        assert decompress(codec, compress(codec, data)) == data
        assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_input_is_corrupt_compression_or_other_data(codec: Compression) -> None:
    """Truncated, flipped and random input raises CorruptCompression and nothing else."""
    rng = random.Random(codec)
    good = compress(codec, bytes(rng.choices(b"abcd", k=3_000)))
    for _ in range(200):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        for hostile in (bad, good[: rng.randrange(len(good))], rng.randbytes(50)):
            try:
                decompress(codec, hostile)
            except CorruptCompression:
                pass


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_is_refused_at_the_limit(codec: Compression) -> None:
    """Output above the limit is an error; output of exactly the limit is not."""
    data = bytes(40 << 20)
    bomb = compress(codec, data)
    limit = output_limit(len(bomb))
    assert limit < len(data)
    with pytest.raises(CorruptCompression):
        decompress(codec, bomb)
    fits = compress(codec, data[:FLOOR_BYTES])
    assert len(decompress(codec, fits)) == FLOOR_BYTES


@pytest.mark.parametrize("codec", CODECS)
def test_bound_that_is_given_counts_alone(codec: Compression) -> None:
    """The input's size does not count: a batch may become as large as any."""
    data = bytes(3 << 20)
    small = compress(codec, data)
    assert len(decompress(codec, small, len(data))) == len(data)
    with pytest.raises(CorruptCompression):
        decompress(codec, small, len(data) - 1)


def test_limit_is_a_ratio_between_a_floor_and_a_ceiling() -> None:
    """100 times the input, at least 1 MiB, at most 16 MiB."""
    assert output_limit(10) == FLOOR_BYTES
    assert output_limit(100_000) == 100_000 * RATIO_MAX
    assert output_limit(1 << 30) == OUTPUT_BYTES_MAX


def test_snappy_without_framing_is_read_too() -> None:
    """Some producers send one raw block without xerial's framing."""
    raw = bytes(cramjam.snappy.compress_raw(b"hello" * 100))
    assert decompress(Compression.SNAPPY, raw) == b"hello" * 100


def test_snappy_block_that_claims_too_much_takes_no_memory() -> None:
    """A raw block begins with its length, which is checked before memory is allocated."""
    claim = b"\xff\xff\xff\xff\x0f" + b"x" * 20
    framed = compress(Compression.SNAPPY, b"")[:16] + struct.pack(">i", len(claim)) + claim
    for hostile in (claim, framed):
        with pytest.raises(CorruptCompression):
            decompress(Compression.SNAPPY, hostile)


@pytest.mark.parametrize("length", [-1, 0, 1_000])
def test_snappy_frame_with_an_impossible_block_length_is_corrupt(length: int) -> None:
    """Covers negative, empty, and longer than the remaining bytes."""
    framed = compress(Compression.SNAPPY, b"")[:16] + struct.pack(">i", length) + b"abc"
    with pytest.raises(CorruptCompression):
        decompress(Compression.SNAPPY, framed)


def test_lz4_frames_have_independent_blocks() -> None:
    """Java's reader supports no others."""
    flags = compress(Compression.LZ4, b"abc" * 50_000)[4]
    assert flags & 0x20


def test_lz4_packs_by_its_level() -> None:
    """KIP-390: a higher level gives fewer bytes, each readable. Without a level nothing changes."""
    data = b"".join(b'{"id":%d,"order":%d}' % (n, n * 7919 % 1000) for n in range(5_000))
    sizes = [len(compress(Compression.LZ4, data, level)) for level in (1, 4, 9)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    assert len(compress(Compression.LZ4, data)) == sizes[1]
    for level in (1, 9, 17):
        assert decompress(Compression.LZ4, compress(Compression.LZ4, data, level)) == data
