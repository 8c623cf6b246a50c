"""Frames: the format of entries in log segments, in cache chunks and in journal blocks.

All three share one image, so an entry's bytes are laid out, copied and checksummed once, at append.
A frame is a 48-byte header and the payload, consecutive, without padding; integers are
little-endian:

    0  crc          4  CRC32C over bytes [4, 48 + length)
    4  length       4  of the payload
    8  group        4
    12 term         4
    16 kind         1
    17 version      1  1
    18 zero         2
    20 records      4  offsets consumed
    24 index        8
    32 base offset  8
    40 timestamp    8  signed; the largest in the batch, -1 without one

Does not depend on where frames are stored or on the meaning of payloads.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from ids import GroupId, Index, Offset, Term
from segments.api import ENTRY_FRAME_BYTES, Buffer, CorruptRecord, StoredEntry

FRAME_BYTES = ENTRY_FRAME_BYTES
FRAME_VERSION = 1

HEADER = struct.Struct("<IIIIBBHIQQq")
# Everything but the CRC, which is computed over these bytes and the payload in one call.
HEADER_REST = struct.Struct("<IIIBBHIQQq")
CRC = struct.Struct("<I")
INDEX_AND_OFFSET = struct.Struct("<QQ")
MARK_AT = 24
"""Position of index and base offset in a frame."""
assert HEADER.size == FRAME_BYTES, HEADER.size


def frame_length(view: memoryview, at: int) -> int:
    """Return the unchecked length of the frame at `at`; 0 if its header is cut."""
    if at + FRAME_BYTES > len(view):
        return 0
    length: int = CRC.unpack_from(view, at + 4)[0]
    return FRAME_BYTES + length


def frame_header(
    data: Buffer,
    *,
    group_id: GroupId,
    term: Term,
    index: Index,
    base_offset: Offset,
    timestamp: int,
) -> bytes:
    """Return header and CRC of a frame around `data` that is not an entry.

    Entries are framed where they are copied, see `DiskLog.stage`.
    """
    rest = HEADER_REST.pack(
        len(data), group_id, term, 0, FRAME_VERSION, 0, 0, index, base_offset, timestamp
    )
    return CRC.pack(crc32c(data, crc32c(rest))) + rest


def frame_of(entry: StoredEntry, group_id: GroupId) -> bytes:
    """Return the frame of an entry that is in no chunk."""
    rest = HEADER_REST.pack(
        len(entry.data), group_id, entry.term, int(entry.kind), FRAME_VERSION, 0, entry.records,
        entry.index, entry.base_offset, entry.timestamp,
    )  # fmt: skip
    return CRC.pack(crc32c(entry.data, crc32c(rest))) + rest + bytes(entry.data)


def is_frame(view: memoryview, length: int, crc: int) -> bool:
    """Return True if these bytes are the frame of that length and CRC."""
    if len(view) != length or length < FRAME_BYTES:
        return False
    return CRC.unpack_from(view)[0] == crc and crc32c(view[4:]) == crc


def base_offset_of(view: memoryview, at: int) -> Offset:
    """Return the base offset in the frame at `at`, which has been checked."""
    found: Offset = HEADER.unpack_from(view, at)[9]
    return found


def read_frame(view: memoryview, at: int, group_id: GroupId, position: int) -> StoredEntry:
    """Return the entry framed at `at`, its CRC checked; `position` is for the error's text.

    Raises CorruptRecord.
    """
    size = frame_length(view, at)
    if size == 0 or at + size > len(view):
        raise CorruptRecord("frame cut short", position, expected=size, actual=len(view) - at)
    crc, _, group, term, kind, version, _, records, index, base_offset, timestamp = (
        HEADER.unpack_from(view, at)
    )
    actual = crc32c(view[at + 4 : at + size])
    if actual != crc:
        raise CorruptRecord("frame checksum", position, expected=crc, actual=actual)
    if version != FRAME_VERSION:
        raise CorruptRecord("frame version", position, expected=FRAME_VERSION, actual=version)
    if group != group_id:
        raise CorruptRecord("frame of another group", position, expected=group_id, actual=group)
    return StoredEntry(
        term, index, kind, view[at + FRAME_BYTES : at + size], base_offset, records, timestamp
    )


def frame_at(view: memoryview, at: int, group_id: GroupId, index: Index) -> StoredEntry | None:
    """Return entry `index` framed at `at`, or None if it is absent or damaged."""
    try:
        entry = read_frame(view, at, group_id, 0)
    except CorruptRecord:
        return None
    return entry if entry.index == index else None
