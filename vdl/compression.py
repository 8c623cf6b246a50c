"""The codecs of Kafka's record batches, with a bound on what decompressing may give.

A producer chooses the codec and VDL passes the batch on as it is; only the few places that must
look inside (compacted topics, offsets by time, tools, our own client) come here. Whoever compressed
is not trusted: output goes into a buffer of bounded size, so a few bytes cannot become gigabytes
whatever they claim. The bound is `RATIO_MAX` times the input, at least `FLOOR_BYTES` (small batches
of equal records compress far better than large ones) and never more than `OUTPUT_BYTES_MAX`.

Framing, as Java's client has it: gzip members, LZ4 frames of independent blocks (its reader knows
no others), zstd frames, and for snappy the blocks of xerial's stream. Plain snappy without that
framing is read too, since some producers send it.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct

import cramjam

from vdl.errors import VdlError

Buffer = bytes | bytearray | memoryview

OUTPUT_BYTES_MAX = 16 * 1024 * 1024
RATIO_MAX = 100
FLOOR_BYTES = 1024 * 1024
_FIRST_TRY_BYTES = 64 * 1024

# xerial stream: magic, version, lowest compatible version; then blocks of [int32 length | snappy].
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4) + (1).to_bytes(4)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")


class Compression(IntEnum):
    """The codec number in the three lowest bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptCompression(VdlError):
    """The bytes are not what the codec calls compressed data, or they would give too many."""

    def __init__(self, codec: Compression, size: int) -> None:
        super().__init__(codec, size)
        self.codec = codec
        self.size = size


def compress(codec: Compression, data: Buffer) -> bytes:
    """`data` in the codec's framing."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data))
        case Compression.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Compression.LZ4:
            compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def output_limit(compressed_bytes: int) -> int:
    """How many bytes an input of this size may become."""
    return min(OUTPUT_BYTES_MAX, max(FLOOR_BYTES, RATIO_MAX * compressed_bytes))


def decompress(codec: Compression, data: Buffer) -> memoryview:
    """The original bytes, at most `output_limit` of them. Raises CorruptCompression."""
    view = memoryview(data)
    match codec:
        case Compression.NONE:
            return view
        case Compression.GZIP:
            return _decompress_bounded(codec, cramjam.gzip.decompress_into, view)
        case Compression.SNAPPY:
            return _decompress_snappy(view)
        case Compression.LZ4:
            return _decompress_bounded(codec, cramjam.lz4.decompress_into, view)
        case Compression.ZSTD:
            return _decompress_bounded(codec, cramjam.zstd.decompress_into, view)


def _decompress_bounded(
    codec: Compression, decompress_into: Callable[[memoryview, bytearray], int], data: memoryview
) -> memoryview:
    """Decompress into a buffer that cannot grow: first one of a likely size, then of the limit."""
    limit = output_limit(len(data))
    size = min(limit, max(_FIRST_TRY_BYTES, 8 * len(data)))
    while True:
        output = bytearray(size)
        try:
            return memoryview(output)[: decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            if size == limit:
                raise CorruptCompression(codec, len(data)) from error
            size = limit


def _compress_xerial(data: memoryview) -> bytes:
    pieces = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        pieces += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(pieces)


def _decompress_snappy(data: memoryview) -> memoryview:
    limit = output_limit(len(data))
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return memoryview(_decompress_snappy_block(data, limit, len(data)))
    output = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if len(data) - position < _BLOCK_LENGTH.size:
            raise CorruptCompression(Compression.SNAPPY, len(data))
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise CorruptCompression(Compression.SNAPPY, len(data))
        block = data[position : position + length]
        output += _decompress_snappy_block(block, limit - len(output), len(data))
        position += length
    return memoryview(output)


def _decompress_snappy_block(block: memoryview, limit: int, size: int) -> bytearray:
    """One raw snappy block, which states its own length in front: at most `limit` bytes."""
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > limit:
            raise CorruptCompression(Compression.SNAPPY, size)
        output = bytearray(length)
        if length:
            cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CorruptCompression(Compression.SNAPPY, size) from error
    return output
