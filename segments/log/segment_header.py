"""Log segments: the header in the file, and the in-memory description.

Header: magic "VDLSEG01" 8, CRC32C of bytes [12, 64) 4, segment number 4, log id 8, group 8,
first index 8, base offset 8 (of the first entry), through 4, check of that 4, zero 8.

A segment that compaction joined from several has the number of the first of them, and `through` is
the number of the last; in other segments it is zero. `through` has a CRC32C of its own, because it
cannot be derived from the rest of the file.

Does not depend on entries or indexes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from ids import GroupId, Index, LogId, Offset
from segments.api import CorruptRecord
from segments.format.frame import FRAME_BYTES
from segments.format.names import (
    sequence_of,
)

SEGMENT_HEADER_BYTES = 64
SEGMENT_MAGIC = b"VDLSEG01"
SEGMENT_HEADER = struct.Struct("<8sIIQQQQII8x")
_CRC = struct.Struct("<I")
_THROUGH = struct.Struct("<II")
_THROUGH_AT = 48
UNKNOWN_THROUGH = -1
"""Value of `through` if the header is damaged there; Idx decide then."""
assert SEGMENT_HEADER.size == SEGMENT_HEADER_BYTES, SEGMENT_HEADER.size


class Sealed(NamedTuple):
    """Totals of a segment to which no flush adds any more."""

    number: int
    bytes: int
    max_timestamp: int


class TimeFound(NamedTuple):
    """Result of a look-up by time: the entry's index, or -1.

    `learned` are totals of sealed segments that had to be determined.
    """

    entry: Index
    learned: list[Sealed]


def is_emptied(sealed: Sealed, first: Index, end: Index) -> bool:
    """Return True if none of a segment's entries [first, end) has data left."""
    return sealed.bytes <= SEGMENT_HEADER_BYTES + FRAME_BYTES * (end - first)


@dataclass(slots=True)
class SegmentInfo:
    """One log segment.

    `sealed` is known once the segment is sealed; for one sealed in an earlier run, once it was
    looked up.
    """

    number: int
    first_index: Index
    base_offset: Offset
    sealed: Sealed | None = None
    through: int = 0
    """Sequence of the last segment that was joined into this one; 0: nothing was joined."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the last segment that this one covers; the following segment has the next."""
        return max(self.through, sequence_of(self.number))


@dataclass(slots=True)
class Cursor:
    """Position of the next frame of a log. `segment` 0: there is no segment yet."""

    segment: int = 0
    position: int = 0
    max_timestamp: int = -1
    first_timestamp: int | None = None
    """Timestamp of the segment's first entry; None if it has to be looked up."""


def encode_segment_header(info: SegmentInfo, log_id: LogId, group_id: GroupId) -> bytes:
    """Return the header of a log segment."""
    header = bytearray(
        SEGMENT_HEADER.pack(
            SEGMENT_MAGIC, 0, info.number, log_id, group_id, info.first_index, info.base_offset,
            info.through, _through_check(info.through, log_id),
        )
    )  # fmt: skip
    _CRC.pack_into(header, 8, crc32c(memoryview(header)[12:]))
    return bytes(header)


def decode_segment_header(data: bytes, log_id: LogId) -> SegmentInfo:
    """Decode a segment header. Raises CorruptRecord."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise CorruptRecord("segment header", 0, expected=SEGMENT_HEADER_BYTES, actual=len(data))
    magic, crc, number, owner, _, first_index, base_offset, through, _ = SEGMENT_HEADER.unpack_from(
        data
    )
    actual = crc32c(memoryview(data)[12:SEGMENT_HEADER_BYTES])
    if magic != SEGMENT_MAGIC or actual != crc:
        raise CorruptRecord("segment header", 0, expected=crc, actual=actual)
    if owner != log_id:
        raise CorruptRecord("segment of another log", 0, expected=log_id, actual=owner)
    return SegmentInfo(number, first_index, base_offset, through=through)


def _through_check(through: int, log_id: LogId) -> int:
    return crc32c(_CRC.pack(through), log_id) if through else 0


def through_of(data: bytes, number: int, log_id: LogId) -> int:
    """Return `through` from a header that is damaged elsewhere, or UNKNOWN_THROUGH."""
    if number == sequence_of(number):
        return 0  # a joined segment is always a rewritten one
    if len(data) < SEGMENT_HEADER_BYTES:
        return UNKNOWN_THROUGH
    through, check = _THROUGH.unpack_from(data, _THROUGH_AT)
    return through if through and check == _through_check(through, log_id) else UNKNOWN_THROUGH
