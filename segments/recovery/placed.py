"""Recovery of placed entries, which the journal locates in segments ahead of the flushed part.

Each is looked for at its recorded position, by its CRC. Those not proved durable are written again
before the journal continues. A damaged one that was committed becomes a damaged range of its
segment; one that was not is lost, like a damaged frame in the journal.

Does not depend on how the journal is read.
"""

from __future__ import annotations

from ids import NO_INDEX, Index, indexes
from segments.api import Buffer, CorruptRecord
from segments.log.index import IndexDamaged
from segments.log.index_files import IndexWriter
from segments.log.log import DiskLog
from segments.log.placement import Payload, Placement
from segments.log.segment import LogFiles
from segments.log.segment_header import (
    SEGMENT_HEADER_BYTES,
    Cursor,
    SegmentInfo,
    encode_segment_header,
)
from segments.recovery.replayed_log import Placed, ReplayedLog
from segments.recovery.tail import CARRIED, JournalReader, live_sequence, placed_entries


def placement_of(log: DiskLog, replayed: ReplayedLog) -> Placement:
    """Return the placement of the entries after the durable end.

    It covers those that were placed, and those before them that went along. Raises CorruptRecord if
    their positions are inconsistent.
    """
    cursor, flushed = log.cursor, log.flushed_index
    placement = Placement(flushed, flushed, cursor.segment, cursor.position)
    last = last_placed(replayed)
    if last and not replayed.is_whole:
        raise CorruptRecord("journal entries missing", flushed + 1)
    for index in indexes(flushed + 1, last + 1):
        ref = replayed.frames[index]
        placed = ref.placed
        if replayed.begun.get(index) == placement.segment + 1:
            base_offset = log.tail.entry(index).base_offset
            placement.begun += (SegmentInfo(placement.segment + 1, index, base_offset),)
            placement.segment, placement.position = placement.segment + 1, SEGMENT_HEADER_BYTES
        here = placement.segment, placement.position
        if placed is not None and (placed.segment, placed.position) != here:
            raise CorruptRecord(
                "place of an entry", index, expected=here[1], actual=placed.position
            )
        placement.position += ref.length
    placement.index = placement.durable = max(last, flushed)
    return placement


def last_placed(replayed: ReplayedLog) -> Index:
    """Return the last placed entry after the durable end; 0 if there is none."""
    frames, last = replayed.frames, replayed.last_index
    return max(
        (n for n in frames if replayed.flushed_index < n <= last and frames[n].placed),
        default=NO_INDEX,
    )


def placed_segments(replayed: ReplayedLog) -> set[int]:
    """Return the segments with placed entries after the durable end, or with those before them."""
    flushed, last = replayed.flushed_index, last_placed(replayed)
    found = {n for index, n in replayed.begun.items() if flushed < index <= last}
    for index in indexes(flushed + 1, last + 1):
        ref = replayed.frames.get(index)
        if ref is not None and ref.placed is not None:
            found.add(ref.placed.segment)
    return found


def is_unproved(log: DiskLog, replayed: ReplayedLog, carried_from: tuple[int, int]) -> bool:
    """Return True if some placed entry is not proved durable.

    It may have been read from the page cache only.
    """
    return any(
        live_sequence(ref, carried_from) == CARRIED
        for n in indexes(log.flushed_index + 1, log.placement.index + 1)
        if (ref := replayed.frames[n]).placed is not None
    )


def write_again(log: DiskLog) -> None:
    """Make placed entries durable, before the block that refers to them is repeated."""
    files, placement = log.files, log.placement
    begins = [log.flushed_index + 1, *(info.first_index for info in placement.begun)]
    ends = [*begins[1:], placement.index + 1]
    for first, end in zip(begins, ends, strict=True):
        if first == end:
            continue
        segment, position = placement.place_of(first, log.cursor, log.tail)
        buffers: list[Buffer] = [
            part
            for chunk, start, stop in log.tail.spans(first, end)
            for part in chunk.slices(chunk.start_of(start), chunk.ends[stop - 1])
        ]
        known = [*log.segments, *placement.begun]
        info = next(info for info in known if info.number == segment)
        if position == SEGMENT_HEADER_BYTES:
            buffers.insert(0, encode_segment_header(info, files.log_id, files.group_id))
            position = 0
        file = files.fs.open(files.segment_path(segment))
        try:
            Payload(file, position, buffers, files, info, log.flushed_index).write()
        finally:
            file.close()


def flush_damaged(
    files: LogFiles,
    replayed: ReplayedLog,
    segments: list[SegmentInfo],
    journal: JournalReader,
    applied: Index,
) -> bool:
    """Count the entries up to the last damaged placed one as flushed, if it was committed.

    Their Idx are written, and it can be repaired like any other damaged entry. Return False if none
    is damaged, or if a damaged one may have been acknowledged but is not known to be committed, so
    that no copy can be expected. Blocks. Raises OSError or StorageError.
    """
    if not replayed.is_whole:
        return False
    last = _last_damaged(files, replayed)
    if not 0 < last <= min(max(replayed.commit, applied), replayed.last_index):
        return False
    first, numbers = replayed.flushed_index + 1, {segment.number for segment in segments}
    cursor = files.healing(segments, first, lambda: cursor_of(files, first - 1, numbers))
    writer = IndexWriter(files)
    try:
        for index in indexes(first, last + 1):
            ref = replayed.frames[index]
            entry = ref.placed
            begins = replayed.begun.get(index) == cursor.segment + 1
            if begins:
                cursor = Cursor(cursor.segment + 1, SEGMENT_HEADER_BYTES)
            if entry is None:
                (found,) = journal.entries(files.group_id, [ref], ref.length)
                entry = Placed(
                    cursor.segment, cursor.position, 0, found.kind, found.records,
                    found.base_offset, found.timestamp,
                )  # fmt: skip
            if begins:
                segments.append(SegmentInfo(cursor.segment, index, entry.base_offset))
            cursor.max_timestamp = max(cursor.max_timestamp, entry.timestamp)
            writer.add(
                index, entry.base_offset, cursor.max_timestamp, cursor.position, ref.length,
                cursor.segment, ref.term, entry.records, entry.kind,
            )  # fmt: skip
            cursor.position += ref.length
            replayed.flushed_offset = entry.base_offset + entry.records
    finally:
        writer.flush()
        writer.sync()
        writer.close()
    files.fs.sync_directory(files.directory)
    replayed.flushed_index = last
    return True


def _last_damaged(files: LogFiles, replayed: ReplayedLog) -> Index:
    """Return the last placed entry after the durable end that cannot be read; 0 if all can."""
    last = NO_INDEX
    for index in indexes(replayed.flushed_index + 1, last_placed(replayed) + 1):
        ref = replayed.frames[index]
        if ref.placed is None:
            continue
        try:
            placed_entries(files, [ref.placed], ref.length)
        except (CorruptRecord, FileNotFoundError):
            last = index
    return last


def cursor_of(files: LogFiles, last: Index, numbers: set[int]) -> Cursor:
    """Return the position of the frame after entry `last`.

    Raises IndexDamaged if its Idx is implausible.
    """
    idx = files.idx(last)
    if idx.segment not in numbers:
        raise IndexDamaged("index names no segment", last, actual=idx.segment)
    cursor = Cursor(idx.segment, idx.position + idx.length, idx.max_timestamp)
    file = files.fs.open(files.segment_path(cursor.segment))
    try:
        if file.size() < cursor.position or cursor.position < SEGMENT_HEADER_BYTES:
            raise IndexDamaged(
                "segment too short", last, expected=cursor.position, actual=file.size()
            )
    finally:
        file.close()
    return cursor
