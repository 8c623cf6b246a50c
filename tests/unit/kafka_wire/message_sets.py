"""Message sets of magic 0 and 1, built and parsed without the code under test."""

from __future__ import annotations

import zlib
from struct import Struct

from vdl.records.compression import Compression, compress
from vdl.records.legacy import with_lz4_checksum

TIME_MS = 1_400_000_000_000


def message(
    magic: int,
    value: bytes | None,
    *,
    key: bytes | None = None,
    offset: int = 0,
    attributes: int = 0,
    timestamp: int = TIME_MS,
) -> bytes:
    """Build one message without the code under test."""
    body = bytes([magic, attributes])
    if magic:
        body += timestamp.to_bytes(8, "big", signed=True)
    for item in (key, value):
        body += b"\xff" * 4 if item is None else len(item).to_bytes(4) + item
    crc = zlib.crc32(body).to_bytes(4)
    return offset.to_bytes(8) + (len(body) + 4).to_bytes(4) + crc + body


def changed(data: bytes, position: int, piece: bytes) -> bytes:
    return data[:position] + piece + data[position + len(piece) :]


def resealed(data: bytes) -> bytes:
    """Return one message with its CRC recomputed."""
    return changed(data, 12, zlib.crc32(data[16:]).to_bytes(4))


def wrapped(
    magic: int, inside: bytes, codec: Compression = Compression.GZIP, **fields: int
) -> bytes:
    data = compress(codec, inside)
    if codec is Compression.LZ4 and magic == 0:
        data = bytes(with_lz4_checksum(memoryview(data), is_broken=True))
    attributes = fields.pop("attributes", 0) | codec
    return message(magic, data, attributes=attributes, **fields)


def shallow(data: bytes) -> list[tuple[int, bytes]]:
    """Return (offset, bytes) of each message of a set, with wrappers as they are."""
    found = []
    while data:
        offset, size = Struct(">qi").unpack_from(data)
        found.append((offset, data[: 12 + size]))
        data = data[12 + size :]
    return found
