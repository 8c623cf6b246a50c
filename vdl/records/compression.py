"""Codecs of Kafka's record batches, with bounded output size.

A producer chooses the codec, and VDL passes the batch on unchanged. Code that reads the records
(produce checks, offsets by time, tools, VDL's own client) decompresses here. The input is not
trusted: output goes into a buffer of bounded size, so a few bytes cannot become gigabytes. A batch
that is read as a whole may become `OUTPUT_BYTES_MAX`, however small it is; a larger one is read as
a stream (`inflation.py`). Where nothing depends on it, the bound is `RATIO_MAX` times the input, at
least `FLOOR_BYTES` (`output_limit`): compaction keeps a batch that becomes larger unchanged, as do
servers of every version.

Framing, as in Java's client: gzip members, LZ4 frames of independent blocks (its reader supports no
others), zstd frames, and for Snappy the blocks of xerial's stream. Raw Snappy without that framing
is read too, because some producers send it.

`decompress` reads stored data in any of these forms. `decompress_into` reads data from producers
and accepts only what every client reads alike: exactly one frame or member. If there were two,
Java's LZ4, librdkafka's gzip and kafka-python's zstd would read the first and miss records.
"""

import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from struct import error as StructError

import cramjam

from vdl.errors import VdlError

Buffer = bytes | bytearray | memoryview

OUTPUT_BYTES_MAX = 16 * 1024 * 1024
RATIO_MAX = 100
FLOOR_BYTES = 1024 * 1024
_GZIP_LEVEL = 6
"""zlib's default."""
_LZ4_LEVEL = 4
"""cramjam's default."""
_FIRST_TRY_BYTES = 64 * 1024

FRAME_BLOCKS_MAX = 16_384
BLOCK_BYTES_MIN = 1024
"""Bound on the blocks of a frame: this number, or one for each `BLOCK_BYTES_MIN` of its bytes.

The larger of the two applies.
"""

_UINT32_LE = Struct("<I")
_LZ4_MAGIC = 0x184D2204
_LZ4_VERSION_MASK, _LZ4_VERSION = 0xC0, 0x40
_LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 32, 16, 8, 4
_LZ4_RESERVED = 3
"""Includes the bit for dictionaries, which Java's reader does not support."""
_LZ4_STORED = 1 << 31
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SINGLE_SEGMENT, _ZSTD_CHECKSUM = 32, 4
_ZSTD_DICTIONARY_BYTES = (0, 1, 2, 4)
_ZSTD_SIZE_BYTES = (0, 2, 4, 8)
_ZSTD_RUN = 1
_GZIP_SIZE_BYTES = 4

# xerial stream: magic, version, lowest compatible version; then blocks of [int32 length | snappy].
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4) + (1).to_bytes(4)
_XERIAL_VERSION = slice(8, 12)
_XERIAL_VERSION_MIN = (1).to_bytes(4)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")


class Compression(IntEnum):
    """Codec number in the three lowest bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptCompression(VdlError):
    """Raised for bytes that are not valid data of the codec, or would exceed the output bound."""

    def __init__(self, codec: Compression, size: int) -> None:
        super().__init__(codec, size)
        self.codec = codec
        self.size = size


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` in the codec's framing.

    `level` is gzip's (1 to 9, -1 for its default), lz4's or zstd's; Snappy has one level.
    """
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, _GZIP_LEVEL if level in (None, -1) else level))
        case Compression.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Compression.LZ4:
            compressor = cramjam.lz4.Compressor(
                level=_LZ4_LEVEL if level is None else level,
                content_checksum=False,
                block_linked=False,
            )
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level))


def compress_readably(
    codec: Compression, data: Buffer, level: int | None = None
) -> tuple[Compression, bytes]:
    """Compress `data` so that `decompress` can read it, and return the codec used.

    Snappy replaces a codec whose output would be too small for the bound of `decompress`; Snappy's
    own output cannot be that small.
    """
    packed = compress(codec, data, level)
    if codec is Compression.NONE or len(data) <= output_limit(len(packed)):
        return codec, packed
    return Compression.SNAPPY, compress(Compression.SNAPPY, data)


def output_limit(compressed_bytes: int) -> int:
    """Return the output bound for an input of this size where no other bound is given."""
    return min(OUTPUT_BYTES_MAX, max(FLOOR_BYTES, RATIO_MAX * compressed_bytes))


def decompress(codec: Compression, data: Buffer, bytes_max: int = 0) -> memoryview:
    """Return the decompressed bytes, at most `bytes_max`, or `output_limit` if that is 0.

    Raise CorruptCompression if the data is invalid or too large.
    """
    view = memoryview(data)
    limit = bytes_max or output_limit(len(view))
    match codec:
        case Compression.NONE:
            return view
        case Compression.GZIP:
            return _decompress_bounded(codec, cramjam.gzip.decompress_into, view, limit)
        case Compression.SNAPPY:
            return _decompress_snappy(view, limit)
        case Compression.LZ4:
            return _decompress_bounded(codec, cramjam.lz4.decompress_into, view, limit)
        case Compression.ZSTD:
            return _decompress_bounded(codec, cramjam.zstd.decompress_into, view, limit)


def decompress_into(codec: Compression, data: Buffer, output: memoryview) -> int:
    """Decompress a producer's data into `output`; return the number of bytes written.

    Raise CorruptCompression if the codec cannot read it, some client could not, or it is too large.
    """
    view = memoryview(data)
    try:
        match codec:
            case Compression.NONE:
                raise AssertionError("not compressed")
            case Compression.GZIP:
                size = cramjam.gzip.decompress_into(view, output)
                is_sound = _is_one_member(view, size)
            case Compression.SNAPPY:
                return _snappy_into(view, output)
            case Compression.LZ4:
                is_sound = is_one_lz4_frame(view)
                size = cramjam.lz4.decompress_into(view, output) if is_sound else 0
            case Compression.ZSTD:
                is_sound = is_one_zstd_frame(view)
                size = cramjam.zstd.decompress_into(view, output) if is_sound else 0
    except cramjam.DecompressionError as error:
        raise CorruptCompression(codec, len(view)) from error
    if not is_sound:
        raise CorruptCompression(codec, len(view))
    return size


def _is_one_member(data: memoryview, size: int) -> bool:
    """Return True if gzip data that gave `size` bytes is exactly one member (RFC 1952).

    The trailer has the output size of the last member. If it is `size`, all other members are
    empty; the first one must not be. zlib, which is slower, is used for that check only.
    """
    if _UINT32_LE.unpack_from(data, len(data) - _GZIP_SIZE_BYTES)[0] != size & 0xFFFFFFFF:
        return False
    return not size or bool(zlib.decompressobj(wbits=31).decompress(data, 1))


def _blocks_max(data: memoryview) -> int:
    return max(FRAME_BLOCKS_MAX, len(data) // BLOCK_BYTES_MIN)


def is_one_lz4_frame(data: memoryview) -> bool:
    """Return True if one frame of independent blocks fills the data, as Java's reader requires."""
    try:
        if _UINT32_LE.unpack_from(data, 0)[0] != _LZ4_MAGIC:
            return False
        flags = data[4]
        if flags & (_LZ4_VERSION_MASK | _LZ4_RESERVED | _LZ4_INDEPENDENT) != (
            _LZ4_VERSION | _LZ4_INDEPENDENT
        ):
            return False
        position = 15 if flags & _LZ4_CONTENT_SIZE else 7
        after_block = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
        for _ in range(_blocks_max(data)):
            size = _UINT32_LE.unpack_from(data, position)[0]
            position += 4
            if not size:
                return position + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0) == len(data)
            if size == _LZ4_STORED:
                return False  # Java takes this for the end
            position += (size & ~_LZ4_STORED) + after_block
    except (IndexError, StructError):
        pass
    return False


def is_one_zstd_frame(data: memoryview) -> bool:
    """Return True if one frame fills the data (RFC 8878)."""
    try:
        if _UINT32_LE.unpack_from(data, 0)[0] != _ZSTD_MAGIC:
            return False
        flags = data[4]
        is_single = bool(flags & _ZSTD_SINGLE_SEGMENT)
        position = 5 + (not is_single) + _ZSTD_DICTIONARY_BYTES[flags & 3]
        position += _ZSTD_SIZE_BYTES[flags >> 6] or is_single
        for _ in range(_blocks_max(data)):
            header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
            is_run = header >> 1 & 3 == _ZSTD_RUN
            position += 3 + (1 if is_run else header >> 3)
            if header & 1:
                return position + (4 if flags & _ZSTD_CHECKSUM else 0) == len(data)
    except (IndexError, StructError):
        pass
    return False


def _snappy_into(data: memoryview, output: memoryview) -> int:
    """Decompress the blocks of xerial's stream one after another, or one block without a stream."""
    size = 0
    for block in snappy_blocks(data):
        size += _snappy_block_into(block, output[size:], len(data))
    return size


def snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield a producer's blocks, still compressed.

    Raise CorruptCompression if the framing is invalid.
    """
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield data
        return
    if len(data) < len(_XERIAL_HEADER) or data[_XERIAL_VERSION].tobytes() < _XERIAL_VERSION_MIN:
        raise CorruptCompression(Compression.SNAPPY, len(data))
    yield from _xerial_blocks(data)


def _snappy_block_into(block: memoryview, output: memoryview, size: int) -> int:
    """Decompress one raw Snappy block, which begins with its output length.

    Raise CorruptCompression if it is invalid or too large.
    """
    try:
        if not block:
            raise CorruptCompression(Compression.SNAPPY, size)
        length = cramjam.snappy.decompress_raw_len(block)
        if length > len(output):
            raise CorruptCompression(Compression.SNAPPY, size)
        return cramjam.snappy.decompress_raw_into(block, output[:length]) if length else 0
    except cramjam.DecompressionError as error:
        raise CorruptCompression(Compression.SNAPPY, size) from error


def _decompress_bounded(
    codec: Compression,
    decompress_into: Callable[[memoryview, bytearray], int],
    data: memoryview,
    limit: int,
) -> memoryview:
    """Decompress into a buffer of fixed size: first of a likely size, then of the limit."""
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


def _decompress_snappy(data: memoryview, limit: int) -> memoryview:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return memoryview(_decompress_snappy_block(data, limit, len(data)))
    output = bytearray()
    for block in _xerial_blocks(data):
        output += _decompress_snappy_block(block, limit - len(output), len(data))
    return memoryview(output)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of xerial's stream. Raise CorruptCompression if the framing is invalid."""
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if len(data) - position < _BLOCK_LENGTH.size:
            raise CorruptCompression(Compression.SNAPPY, len(data))
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise CorruptCompression(Compression.SNAPPY, len(data))
        yield data[position : position + length]
        position += length


def _decompress_snappy_block(block: memoryview, limit: int, size: int) -> bytearray:
    """Decompress one raw Snappy block, which begins with its output length.

    Raise CorruptCompression if it is invalid or larger than `limit`.
    """
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
