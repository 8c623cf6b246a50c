"""Filling holes: frames written back where damaged ones lie, from entries that another replica has.

A frame's place is what its Idx says; where that is damaged too, what walking the segment says: the
frames before it are good, or are among those to be written. An entry that does not fit its place,
its term or its neighbours is refused: it is not what stood there. A crash in between leaves the
hole. Runs as a chore, so that no flush writes to the same file.

Must not know: where the entries come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from segments.api import CorruptRecord, EntriesDamaged, EntryLike, StoredEntry
from segments.frame import (
    CRC,
    FRAME_BYTES,
    FRAME_VERSION,
    HEADER_REST,
    frame_at,
    frame_length,
)
from segments.fs import File
from segments.index import IndexDamaged
from segments.segment import (
    SEGMENT_HEADER_BYTES,
    LogFiles,
    SegmentInfo,
    decode_segment_header,
    encode_segment_header,
)


@dataclass(frozen=True, slots=True)
class Copy:
    """An entry of a hole, and the term the log knows for it."""

    entry: StoredEntry
    term: int


def copy_of(entry: EntryLike, term: int) -> Copy:
    """A copy that does not depend on the caller's buffer. Raises CorruptRecord."""
    if entry.term != term:
        raise CorruptRecord("term of a copy", entry.index, expected=term, actual=entry.term)
    return Copy(
        StoredEntry(
            entry.term, entry.index, int(entry.kind), bytes(entry.data), entry.base_offset,
            entry.records, entry.timestamp,
        ),
        term,
    )  # fmt: skip


def repair(
    files: LogFiles, segments: Sequence[SegmentInfo], end: int, copies: Mapping[int, Copy]
) -> None:
    """Write the copies into the log's segments, whose entries end at `end`; durable on return.

    Raises CorruptRecord when a copy cannot be what stood there. Blocks.
    """
    for n, segment in enumerate(segments):
        stop = segments[n + 1].first_index if n + 1 < len(segments) else end
        mine = {i: c for i, c in copies.items() if segment.first_index <= i < stop}
        if mine:
            _repair_segment(files, segment, stop, mine)


def _repair_segment(
    files: LogFiles, segment: SegmentInfo, end: int, copies: Mapping[int, Copy]
) -> None:
    file = files.fs.open(files.segment_path(segment.number))
    try:
        _write_header(files, segment, file)
        for index in sorted(copies):
            entry = copies[index].entry
            frame = _frame(entry, files.group_id)
            position = _place(files, segment, end, file, index, frame, copies)
            file.pwrite([frame], position)
        file.sync()
    finally:
        file.close()
    for index in sorted(copies):
        try:
            (back,) = files.entries(index, index + 1, 0)
        except IndexDamaged:
            files.rebuild(segment, end)
            (back,) = files.entries(index, index + 1, 0)
        assert back.data == copies[index].entry.data, index


def _write_header(files: LogFiles, segment: SegmentInfo, file: File) -> None:
    """A damaged header is written again."""
    try:
        decode_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0), files.log_id)
    except CorruptRecord:
        file.pwrite([encode_segment_header(segment, files.log_id, files.group_id)], 0)


def _place(
    files: LogFiles, segment: SegmentInfo, end: int, file: File, index: int, frame: bytes,
    copies: Mapping[int, Copy],
) -> int:  # fmt: skip
    """Where the frame of entry `index` lies. Raises CorruptRecord when `frame` is not the one."""
    entry = copies[index].entry
    try:
        idx = files.idx(index)
    except IndexDamaged:
        position = _walk_to(files, segment, file, index, copies)
        _check_next(files, end, file, index, position + len(frame), copies)
        return position
    found = (len(frame), entry.term, entry.base_offset, entry.records, int(entry.kind))
    known = (idx.length, idx.term, idx.base_offset, idx.records, idx.kind)
    if found != known or idx.segment != segment.number or idx.max_timestamp < entry.timestamp:
        raise CorruptRecord("copy of an entry", index, expected=idx.length, actual=len(frame))
    return idx.position


def _walk_to(
    files: LogFiles, segment: SegmentInfo, file: File, index: int, copies: Mapping[int, Copy]
) -> int:
    """The position behind the frames before `index`. Raises EntriesDamaged."""
    position, offset = SEGMENT_HEADER_BYTES, segment.base_offset
    for before, entry in _entries_to(files, segment, file, index, copies):
        position = before
        offset = entry.base_offset + entry.records
    if copies[index].entry.base_offset != offset:
        raise CorruptRecord(
            "base offset of a copy", index, expected=offset,
            actual=copies[index].entry.base_offset,
        )  # fmt: skip
    return position


def _entries_to(
    files: LogFiles, segment: SegmentInfo, file: File, index: int, copies: Mapping[int, Copy]
) -> Iterator[tuple[int, StoredEntry]]:
    """(position behind it, entry) of the segment's entries below `index`."""
    position = SEGMENT_HEADER_BYTES
    for number in range(segment.first_index, index):
        entry = _read(files, file, number, position)
        if entry is None:
            if number not in copies:
                raise EntriesDamaged(number, number + 1, position)
            entry = copies[number].entry
        position += FRAME_BYTES + len(entry.data)
        yield position, entry


def _check_next(
    files: LogFiles, end: int, file: File, index: int, position: int, copies: Mapping[int, Copy]
) -> None:
    """What follows must follow: the next entry, unless it is itself a copy, or the end."""
    if index + 1 >= end or index + 1 in copies:
        return
    entry = copies[index].entry
    following = _read(files, file, index + 1, position)
    if following is None or following.base_offset != entry.base_offset + entry.records:
        raise CorruptRecord("copy of an entry", index, expected=position)


def _read(files: LogFiles, file: File, index: int, position: int) -> StoredEntry | None:
    head = memoryview(file.pread(FRAME_BYTES, position))
    length = min(frame_length(head, 0), max(0, file.size() - position))
    return frame_at(memoryview(file.pread(length, position)), 0, files.group_id, index)


def _frame(entry: StoredEntry, group_id: int) -> bytes:
    """The bytes that stood there."""
    rest = HEADER_REST.pack(
        len(entry.data), group_id, entry.term, int(entry.kind), FRAME_VERSION, 0, entry.records,
        entry.index, entry.base_offset, entry.timestamp,
    )  # fmt: skip
    return CRC.pack(crc32c(entry.data, crc32c(rest))) + rest + bytes(entry.data)
