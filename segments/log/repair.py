"""Repair of damaged ranges: damaged frames are overwritten with copies from another replica.

An entry of a damaged range that turns out to be readable is left as it is: a failed read may
succeed later, and a range without Idx contains good entries, too.

The position of a frame comes from its Idx. If the Idx is damaged too, the segment is walked: the
frames before the position are good, or are among those to be written. A copy that does not fit its
position, its term or its neighbours is refused, because it is not the original entry. A damaged
neighbour cannot confirm anything until its own copy arrives, which must then fit this one. A crash
in between leaves the range damaged. A repair waits in the queue of removals, so that no flush
writes to the same file.

A copy from a log that was compacted further is smaller than the original frame. If the caller
allows that, the sealed segment is rewritten with the copy.

Does not depend on where the copies come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ids import NO_INDEX, Index, Offset, Term, indexes
from segments.api import (
    CorruptRecord,
    EntriesDamaged,
    EntryLike,
    StorageError,
    StoredEntry,
    WriteRefused,
)
from segments.format.frame import (
    FRAME_BYTES,
    FRAME_VERSION,
    HEADER,
    frame_at,
    frame_length,
    frame_of,
)
from segments.io.fs import File, is_refused, is_unreadable, read_whole, write_over
from segments.log.index import IndexDamaged
from segments.log.index_files import IndexReader
from segments.log.log import DiskLog
from segments.log.segment import LogFiles
from segments.log.segment_header import (
    SEGMENT_HEADER_BYTES,
    SegmentInfo,
    decode_segment_header,
    encode_segment_header,
)

_LOOK_AHEAD = 1024
"""Number of following entries searched for one that has an Idx."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy of an entry of a damaged range, and the term that the log knows for it."""

    entry: StoredEntry
    term: Term


def copy_of(entry: EntryLike, term: Term) -> Copy:
    """Return a copy that does not depend on the caller's buffer. Raises CorruptRecord."""
    if entry.term != term:
        raise CorruptRecord("term of a copy", entry.index, expected=term, actual=entry.term)
    return Copy(
        StoredEntry(
            entry.term, entry.index, int(entry.kind), bytes(entry.data), entry.base_offset,
            entry.records, entry.timestamp,
        ),
        term,
    )  # fmt: skip


class SegmentWriter(Protocol):
    """Component that rewrites segments."""

    def hold(self, log: DiskLog) -> bool:
        """Reserve the log's segments until `release`: no other rewrite of them begins.

        Return False if other work is in progress, or if a segment's old file still exists.
        """

    def write(
        self, files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
    ) -> SegmentInfo:
        """Rewrite the segment with the copies in place of damaged entries.

        Blocks. Raises CorruptRecord or OSError.
        """

    def release(
        self,
        log: DiskLog,
        generation: int,
        written: Sequence[tuple[SegmentInfo, SegmentInfo, Index]],
    ) -> None:
        """Finish the work.

        `written` has (old segment, new one, index after the last entry) of each.
        """


class Repair:
    """One call of `Store.repair`, which waits until no other work uses the log's files.

    `begin` and `written` are called on the loop, before and after the job.
    """

    __slots__ = (
        "_compacted_upto", "_copies", "_done", "_failure", "_generation", "_holds", "_log",
        "_writer", "_written",
    )  # fmt: skip

    def __init__(
        self,
        log: DiskLog,
        entries: Sequence[EntryLike],
        done: Callable[[StorageError | None], None],
        writer: SegmentWriter,
        *,
        compacted_upto: Index = NO_INDEX,
    ) -> None:
        """Keep only the copies of damaged entries.

        Raises StorageError if one of them cannot be the original entry.
        """
        self._copies = {
            entry.index: copy_of(entry, log.term(entry.index))
            for entry in entries
            if entry.index in log.damaged_ranges
        }
        self._log = log
        self._generation = log.generation
        self._done = done
        self._failure: StorageError | None = None
        self._writer = writer
        self._compacted_upto = compacted_upto
        self._holds = False
        self._written: list[tuple[SegmentInfo, SegmentInfo, Index]] = []

    @property
    def indexes(self) -> Iterable[Index]:
        """Indexes of the damaged entries for which copies were given."""
        return self._copies

    def begin(self) -> Callable[[], None] | None:
        """Return the job; None if the log was reset meanwhile."""
        log = self._log
        if log.generation != self._generation:
            self._done(None)
            return None
        if any(index <= self._compacted_upto for index in self._copies):
            self._holds = self._writer.hold(log)
        return partial(self._write, log.segments, log.flushed_index + 1)

    def _write(self, segments: Sequence[SegmentInfo], end: Index) -> None:
        files = self._log.files
        try:
            for segment, stop, given in _by_segment(segments, end, self._copies):
                copies = {n: copy for n, copy in given.items() if not _is_there(files, n, copy)}
                if not copies:
                    continue
                if not self._is_other(segment, copies):
                    _repair_segment(files, segment, stop, copies)
                elif self._holds and segment is not segments[-1]:
                    self._write_anew(segment, stop, copies)
                else:
                    raise CorruptRecord("segment that cannot be written anew", segment.number)
        except CorruptRecord as error:
            self._failure = error
        except OSError as error:
            if not is_refused(error):
                raise
            # A retry may find space. The removals that free it wait in the same queue behind this.
            self._failure = WriteRefused(str(error))

    def _is_other(self, segment: SegmentInfo, copies: Mapping[Index, Copy]) -> bool:
        """Return True if compaction may have reduced one of the copied entries.

        Such a copy differs from the original frame.
        """
        files = self._log.files
        for index, copy in copies.items():
            if index > self._compacted_upto:
                continue
            try:
                idx = files.idx(index)
            except IndexDamaged:
                return True
            if (idx.segment, idx.length) != (
                segment.number, FRAME_BYTES + len(copy.entry.data)
            ):  # fmt: skip
                return True
        return False

    def _write_anew(self, segment: SegmentInfo, end: Index, copies: Mapping[Index, Copy]) -> None:
        """Rewrite the segment with the copies and check them. Raises CorruptRecord."""
        files = self._log.files
        for index, copy in copies.items():
            _check_known(files, index, copy.entry, self._compacted_upto)
        entries = {index: copy.entry for index, copy in copies.items()}
        new = self._writer.write(files, segment, end, entries)
        self._written.append((segment, new, end))
        for index in sorted(copies):
            _check_back(files, index, copies[index])

    def written(self) -> None:
        """Finish the job on the loop: repaired entries are no longer damaged."""
        log, copies, failure = self._log, self._copies, self._failure
        if self._holds:
            self._writer.release(log, self._generation, self._written)
        if log.generation == self._generation:
            for index, copy in copies.items():  # correct for each, even if others failed
                log.note_timestamp(index, copy.entry.timestamp)
            log.damaged_ranges.repaired(() if failure is not None else copies)
            for old, _, end in self._written if failure is None else ():
                log.damaged_ranges.cut(old.first_index, end)  # all of it was read and written
            if isinstance(failure, EntriesDamaged):
                # Other damage precedes these entries and must be repaired first.
                log.damaged_ranges.add(failure.first, failure.end)
                log.damaged_ranges.trim(log.first)
        self._done(failure)


def _by_segment(
    segments: Sequence[SegmentInfo], end: Index, copies: Mapping[Index, Copy]
) -> Iterator[tuple[SegmentInfo, Index, dict[Index, Copy]]]:
    """Yield (segment, index after its last entry, its copies); `end` is after the last entry."""
    for n, segment in enumerate(segments):
        stop = segments[n + 1].first_index if n + 1 < len(segments) else end
        mine = {i: c for i, c in copies.items() if segment.first_index <= i < stop}
        if mine:
            yield segment, stop, mine


def _read_entry(files: LogFiles, index: Index) -> StoredEntry:
    """Read one entry. Raises CorruptRecord."""
    (entry,) = files.entries(index, index + 1, 0)
    return entry


def _is_there(files: LogFiles, index: Index, copy: Copy) -> bool:
    """Return True if the entry is readable after all and is the one copied.

    Its data may differ, because one of the two may be compacted further.
    """
    try:
        found = _read_entry(files, index)
    except CorruptRecord:
        return False
    return _is_same_entry(found, copy.entry)


def _is_same_entry(found: StoredEntry, copy: StoredEntry) -> bool:
    """Return True if both are the same entry, regardless of compaction."""
    return (
        found.term, found.base_offset, found.records, int(found.kind), found.timestamp,
    ) == (
        copy.term, copy.base_offset, copy.records, int(copy.kind), copy.timestamp,
    )  # fmt: skip


def _check_back(files: LogFiles, index: Index, copy: Copy) -> None:
    """Read the entry back and compare it with the copy.

    Raises CorruptRecord if the medium returns other data; the range stays damaged.
    """
    found = _read_entry(files, index)
    if not _is_same_entry(found, copy.entry) or found.data != copy.entry.data:
        raise CorruptRecord("copy of an entry that was written", index)


def _check_known(files: LogFiles, index: Index, entry: StoredEntry, compacted_upto: Index) -> None:
    """Check the entry against its Idx. Raises CorruptRecord.

    The length may differ if compaction may have reduced the entry.
    """
    try:
        idx = files.idx(index)
    except IndexDamaged:
        return
    found = (entry.term, entry.base_offset, entry.records, int(entry.kind))
    known = (idx.term, idx.base_offset, idx.records, idx.kind)
    is_same_length = idx.length == FRAME_BYTES + len(entry.data)
    fits = is_same_length or (index <= compacted_upto and entry.records)
    if found != known or not fits or idx.max_timestamp < entry.timestamp:
        raise CorruptRecord("copy of an entry", index, expected=idx.length)


def _repair_segment(
    files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, Copy]
) -> None:
    """Write the copies into a segment, whose entries end at `end`; durable on return.

    Blocks. Raises CorruptRecord if a copy cannot be the original entry.
    """
    try:
        file = files.fs.open(files.segment_path(segment.number))
    except FileNotFoundError:
        # The next start finds that the log is lost; until then other replicas' copies serve reads.
        raise CorruptRecord("segment file missing", segment.number) from None
    try:
        size = file.size()
        _write_header(files, segment, file)
        for index in sorted(copies):
            entry = copies[index].entry
            frame = frame_of(entry, files.group_id)
            position = _place(files, segment, end, file, index, frame, copies)
            _write(file, frame, position)
            size = max(size, position + len(frame))
        if file.size() > size:  # extended by writing a whole page
            file.truncate(size)
        file.sync()
    finally:
        file.close()
    for index in sorted(copies):
        try:
            _check_back(files, index, copies[index])
        except IndexDamaged:
            _rebuild(files, segment, end, index)
            _check_back(files, index, copies[index])
    _sync_index(files, segment, end)


def _sync_index(files: LogFiles, segment: SegmentInfo, end: Index) -> None:
    """Make the segment's Idx durable.

    Beside the written data there may be frames that are no longer needed and that cannot be walked
    over. A flush leaves this to the beginning of the next segment, because whole frames suffice to
    rebuild Idx.
    """
    for number in range(
        segment.first_index // files.index_entries, (end - 1) // files.index_entries + 1
    ):
        try:
            file = files.open_index(number, end - 1)
        except IndexDamaged:
            continue
        try:
            file.sync()
        finally:
            file.close()


def _rebuild(files: LogFiles, segment: SegmentInfo, end: Index, index: Index) -> None:
    """Rebuild the Idx of the segment's entries, at least up to `index`. Raises EntriesDamaged."""
    try:
        files.rebuild(segment, end)
    except EntriesDamaged as damage:
        if damage.first <= index:
            raise


def _write(file: File, data: bytes, position: int) -> None:
    """Write over a damaged location.

    Raises CorruptRecord if the medium does not accept even whole pages; the range stays damaged. In
    an unreadable page the bytes beside `data` are lost too; their CRC shows it from then on.
    """
    try:
        write_over(file, data, position)
    except OSError as error:
        if is_unreadable(error):
            raise CorruptRecord("page that cannot be written", position) from error
        raise


def _write_header(files: LogFiles, segment: SegmentInfo, file: File) -> None:
    """Write the segment's header again if it is damaged."""
    try:
        decode_segment_header(read_whole(file, SEGMENT_HEADER_BYTES, 0), files.log_id)
    except CorruptRecord:
        _write(file, encode_segment_header(segment, files.log_id, files.group_id), 0)


def _place(
    files: LogFiles, segment: SegmentInfo, end: Index, file: File, index: Index, frame: bytes,
    copies: Mapping[Index, Copy],
) -> int:  # fmt: skip
    """Return the position of the frame of entry `index`.

    Raises CorruptRecord if `frame` cannot be the original one.
    """
    entry = copies[index].entry
    try:
        idx = files.idx(index)
    except IndexDamaged:
        position = _walk_to(files, segment, file, index, copies)
        _check_next(files, segment, end, file, index, position, copies)
        return position
    found = (len(frame), entry.term, entry.base_offset, entry.records, int(entry.kind))
    known = (idx.length, idx.term, idx.base_offset, idx.records, idx.kind)
    if found != known or idx.segment != segment.number or idx.max_timestamp < entry.timestamp:
        raise CorruptRecord("copy of an entry", index, expected=idx.length, actual=len(frame))
    return idx.position


def _walk_to(
    files: LogFiles, segment: SegmentInfo, file: File, index: Index, copies: Mapping[Index, Copy]
) -> int:
    """Return the position after the frames before `index`. Raises EntriesDamaged."""
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
    files: LogFiles, segment: SegmentInfo, file: File, index: Index, copies: Mapping[Index, Copy]
) -> Iterator[tuple[int, StoredEntry]]:
    """Yield (position after it, entry) of the segment's entries below `index`."""
    position = SEGMENT_HEADER_BYTES
    for number in indexes(segment.first_index, index):
        entry = _read(files, file, number, position)
        if entry is None:
            if number not in copies:
                raise EntriesDamaged(number, number + 1, position)
            entry = copies[number].entry
        position += FRAME_BYTES + len(entry.data)
        yield position, entry


def _check_next(
    files: LogFiles, segment: SegmentInfo, end: Index, file: File, index: Index, position: int,
    copies: Mapping[Index, Copy],
) -> None:  # fmt: skip
    """Check that the copy is followed by the next entry, another copy, or the end."""
    if index + 1 >= end or index + 1 in copies:
        return
    entry = copies[index].entry
    behind = position + FRAME_BYTES + len(entry.data)
    next_offset = entry.base_offset + entry.records
    following = _read(files, file, index + 1, behind)
    if following is None:
        stop = min(end, index + 1 + _LOOK_AHEAD)
        fits = not _ends_elsewhere(files, file, index, position, behind) and _fits_before(
            files, segment, indexes(index + 1, stop), behind, next_offset
        )
    else:
        fits = following.base_offset == next_offset
    if not fits:
        raise CorruptRecord("copy of an entry", index, expected=behind)


def _ends_elsewhere(files: LogFiles, file: File, index: Index, position: int, behind: int) -> bool:
    """Return True if the damaged frame's own length contradicts the copy's.

    It leads to a header of the next entry, good or not, elsewhere than at the copy's end: then the
    copy is wrong.
    """
    end = position + frame_length(memoryview(read_whole(file, FRAME_BYTES, position)), 0)
    if end in {position, behind}:
        return False
    head = read_whole(file, FRAME_BYTES, end)
    if len(head) < FRAME_BYTES:
        return False
    _, _, group, _, _, version, _, _, named, _, _ = HEADER.unpack(head)
    return (group, version, named) == (files.group_id, FRAME_VERSION, index + 1)


def _fits_before(
    files: LogFiles, segment: SegmentInfo, later: Sequence[Index], behind: int, next_offset: Offset
) -> bool:
    """Return True if enough space is left for the entries up to the nearest with an Idx.

    The frame before them ends at `behind`, and the next entry is at `next_offset`. `later` are the
    entries searched for an Idx.
    """
    with IndexReader(files) as reader:
        for between, index in enumerate(later):
            try:
                idx = reader.idx(index)
            except IndexDamaged:
                continue
            if idx.segment != segment.number:
                continue
            if not between:
                return (idx.position, idx.base_offset) == (behind, next_offset)
            room = idx.position - behind
            return room >= between * FRAME_BYTES and idx.base_offset >= next_offset
    return True


def _read(files: LogFiles, file: File, index: Index, position: int) -> StoredEntry | None:
    head = memoryview(read_whole(file, FRAME_BYTES, position))
    length = min(frame_length(head, 0), max(0, file.size() - position))
    return frame_at(memoryview(read_whole(file, length, position)), 0, files.group_id, index)
