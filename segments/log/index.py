"""Index segments: one fixed-length Idx for every entry, located by arithmetic.

Entry X is in index file `X // M` at position `64 + X % M * 40`, where M is the number of entries
per index file, without search or sparse blocks. Offsets and timestamps are found by binary search
over Idx, because both are ordered (timestamps as "largest so far in this log segment").

Index file header (64 bytes): magic "VDLIDX01" 8, CRC32C of bytes [12, 32) 4, zero 4, log id 8,
number 8, zero 32. Idx (40 bytes, little-endian):

    0  base offset    8
    8  max timestamp  8  signed; the largest so far in this log segment
    16 position       4  of the frame in its log segment
    20 length         4  of the frame
    24 segment        4  number of the log segment
    28 term           4
    32 records        4
    36 kind           1
    37 zero           1
    38 check          2  of bytes [0, 38), seeded by entry and log, never zero: zeros fail

All data of an index is also in its log segments: an Idx that fails its check is rebuilt from them.

Does not depend on files or caches.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from ids import Index, LogId, Offset, Term
from segments.api import CorruptRecord

IDX_BYTES = 40
INDEX_HEADER_BYTES = 64
INDEX_MAGIC = b"VDLIDX01"
IDX = struct.Struct("<QqIIIIIBBH")
INDEX_HEADER = struct.Struct("<8sIIQQ32x")
_CHECK = struct.Struct("<H")
assert IDX.size == IDX_BYTES, IDX.size
assert INDEX_HEADER.size == INDEX_HEADER_BYTES, INDEX_HEADER.size


class IndexDamaged(CorruptRecord):
    """An Idx is missing or wrong. `position` is the entry's index; log segments have the data."""


class Idx(NamedTuple):
    """Location of an entry, and the fields needed to find it."""

    base_offset: Offset
    max_timestamp: int
    position: int
    length: int
    segment: int
    term: Term
    records: int
    kind: int


def place(index: Index, entries_per_file: int) -> tuple[int, int]:
    """Return (index file, position in it) of an entry's Idx."""
    number, slot = divmod(index, entries_per_file)
    return number, INDEX_HEADER_BYTES + slot * IDX_BYTES


def seed(log_id: LogId, index: Index) -> int:
    """Return the seed of an Idx's check, which makes an Idx in a wrong position fail."""
    return (index * 0x9E3779B1 + log_id + 1) & 0xFFFFFFFF


def pack_idx(
    out: bytearray, at: int, log_id: LogId, index: Index, base_offset: Offset, max_timestamp: int,
    position: int, length: int, segment: int, term: Term, records: int, kind: int,
) -> None:  # fmt: skip
    """Write one Idx at `at`. Takes plain arguments because it runs once per entry."""
    IDX.pack_into(
        out, at, base_offset, max_timestamp, position, length, segment, term, records, kind, 0, 0
    )
    check = crc32c(out[at : at + 38], (index * 0x9E3779B1 + log_id + 1) & 0xFFFFFFFF) & 0xFFFF
    _CHECK.pack_into(out, at + 38, check or 0xFFFF)


def read_idx(data: bytes, at: int, log_id: LogId, index: Index) -> Idx:
    """Return the Idx of entry `index` at `at`. Raises IndexDamaged."""
    row = data[at : at + IDX_BYTES]
    if len(row) < IDX_BYTES:
        raise IndexDamaged("index cut short", index, expected=IDX_BYTES, actual=len(row))
    expected = crc32c(row[:38], seed(log_id, index)) & 0xFFFF or 0xFFFF
    found = row[38] | row[39] << 8
    if found != expected:
        raise IndexDamaged("index check", index, expected=expected, actual=found)
    return Idx._make(IDX.unpack(row)[:8])


def encode_index_header(log_id: LogId, number: int) -> bytes:
    """Return the header of an index file."""
    crc = crc32c(struct.pack("<IQQ", 0, log_id, number))
    return INDEX_HEADER.pack(INDEX_MAGIC, crc, 0, log_id, number)
