"""Repairing damaged ranges: frames are written where damaged ones lie, from copies that another
replica has.

An entry of a damaged range that can be read after all is left as it is. What could not be read once
may be readable a moment later, and a range without Idx has good entries in it, too.

A frame's place is what its Idx says. Where the Idx is damaged too, the segment is walked: the
frames before the place are good, or are among those to be written. An entry that does not fit its
place, its term or its neighbours is refused: it is not what stood there. A damaged neighbour says
nothing until its own copy comes, which has to fit this one. A crash in between leaves the range
damaged. A repair waits in the queue of removals, so that no flush writes to the same file.

A copy from a log that was compacted further is smaller than what stood there: where the caller says
that it may be, a sealed segment is written anew with it.

Must not know: where the entries come from.
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
"""Entries among which one is looked for that has an Idx."""


@dataclass(frozen=True, slots=True)
class Copy:
    """An entry of a damaged range, and the term the log knows for it."""

    entry: StoredEntry
    term: Term


def copy_of(entry: EntryLike, term: Term) -> Copy:
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


class SegmentWriter(Protocol):
    """Who writes segments anew."""

    def hold(self, log: DiskLog) -> bool:
        """Begin nothing else with the log's segments until `release`; False: something else is
        under way, or a segment's old file is still there."""

    def write(
        self, files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
    ) -> SegmentInfo:
        """The segment with the copies in place of damaged entries. Blocks. Raises CorruptRecord,
        OSError."""

    def release(
        self,
        log: DiskLog,
        generation: int,
        written: Sequence[tuple[SegmentInfo, SegmentInfo, Index]],
    ) -> None:
        """The work is done: (old segment, new one, index behind the last entry) for each."""


class Repair:
    """One call of `Store.repair`, which waits until nothing else is at the log's files. `begin` and
    `written` are called on the loop, before and after the job."""

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
        """Only the damaged ones of the entries are written. Raises StorageError when one of those
        cannot be what the log had."""
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
        """Of the damaged entries that copies were given of."""
        return self._copies

    def begin(self) -> Callable[[], None] | None:
        """The job; None: the log was reset meanwhile."""
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
            # Whoever asks again may find room. What makes it stands in the same queue behind this.
            self._failure = WriteRefused(str(error))

    def _is_other(self, segment: SegmentInfo, copies: Mapping[Index, Copy]) -> bool:
        """Whether one of the copies may not have what stood there, but what compaction left."""
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
        """Raises CorruptRecord."""
        files = self._log.files
        for index, copy in copies.items():
            _check_known(files, index, copy.entry, self._compacted_upto)
        entries = {index: copy.entry for index, copy in copies.items()}
        new = self._writer.write(files, segment, end, entries)
        self._written.append((segment, new, end))
        for index in sorted(copies):
            _check_back(files, index, copies[index])

    def written(self) -> None:
        """The job has ended: what is good again is no longer damaged."""
        log, copies, failure = self._log, self._copies, self._failure
        if self._holds:
            self._writer.release(log, self._generation, self._written)
        if log.generation == self._generation:
            for index, copy in copies.items():  # of some it is true, though others failed
                log.note_timestamp(index, copy.entry.timestamp)
            log.damaged_ranges.repaired(() if failure is not None else copies)
            for old, _, end in self._written if failure is None else ():
                log.damaged_ranges.cut(old.first_index, end)  # all of it was read and written
            if isinstance(failure, EntriesDamaged):
                # Other damage stands before these: it has to be repaired first.
                log.damaged_ranges.add(failure.first, failure.end)
                log.damaged_ranges.trim(log.first)
        self._done(failure)


def _by_segment(
    segments: Sequence[SegmentInfo], end: Index, copies: Mapping[Index, Copy]
) -> Iterator[tuple[SegmentInfo, Index, dict[Index, Copy]]]:
    """(segment, index behind its last entry, its copies), where `end` is behind the last of all."""
    for n, segment in enumerate(segments):
        stop = segments[n + 1].first_index if n + 1 < len(segments) else end
        mine = {i: c for i, c in copies.items() if segment.first_index <= i < stop}
        if mine:
            yield segment, stop, mine


def _read_entry(files: LogFiles, index: Index) -> StoredEntry:
    """Raises CorruptRecord."""
    (entry,) = files.entries(index, index + 1, 0)
    return entry


def _is_there(files: LogFiles, index: Index, copy: Copy) -> bool:
    """Whether the entry can be read after all, and is the one that the copy is of. What is in it
    may differ: one of the two may be compacted further."""
    try:
        found = _read_entry(files, index)
    except CorruptRecord:
        return False
    return _is_same_entry(found, copy.entry)


def _is_same_entry(found: StoredEntry, copy: StoredEntry) -> bool:
    """Whether both are the same entry, whatever compaction has left of it."""
    return (
        found.term, found.base_offset, found.records, int(found.kind), found.timestamp,
    ) == (
        copy.term, copy.base_offset, copy.records, int(copy.kind), copy.timestamp,
    )  # fmt: skip


def _check_back(files: LogFiles, index: Index, copy: Copy) -> None:
    """What is read must be what was written. Raises CorruptRecord: the medium gives something
    else, and the range stays damaged."""
    found = _read_entry(files, index)
    if not _is_same_entry(found, copy.entry) or found.data != copy.entry.data:
        raise CorruptRecord("copy of an entry that was written", index)


def _check_known(files: LogFiles, index: Index, entry: StoredEntry, compacted_upto: Index) -> None:
    """What the entry's Idx says must be so, but for the length of one that compaction may have
    made smaller. Raises CorruptRecord."""
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

    Raises CorruptRecord when a copy cannot be what stood there. Blocks.
    """
    try:
        file = files.fs.open(files.segment_path(segment.number))
    except FileNotFoundError:
        # The next start finds that the log is lost; until then the others' copies serve.
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
        if file.size() > size:  # by what was written of a page
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
    """Make durable where the segment's entries lie: beside what was written there may be frames
    that nobody needs any more and that cannot be walked over. A flush leaves that to the next
    segment's beginning, because it could be told from whole frames."""
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
    """Idx of the segment's entries, up to `index` at least. Raises EntriesDamaged."""
    try:
        files.rebuild(segment, end)
    except EntriesDamaged as damage:
        if damage.first <= index:
            raise


def _write(file: File, data: bytes, position: int) -> None:
    """Raises CorruptRecord when the medium does not even take whole pages: the range stays damaged.

    In a page that cannot be read what lies beside `data` cannot be read either: it is
    damaged too, found or not yet, which the CRC tells from then on."""
    try:
        write_over(file, data, position)
    except OSError as error:
        if is_unreadable(error):
            raise CorruptRecord("page that cannot be written", position) from error
        raise


def _write_header(files: LogFiles, segment: SegmentInfo, file: File) -> None:
    """A damaged header is written again."""
    try:
        decode_segment_header(read_whole(file, SEGMENT_HEADER_BYTES, 0), files.log_id)
    except CorruptRecord:
        _write(file, encode_segment_header(segment, files.log_id, files.group_id), 0)


def _place(
    files: LogFiles, segment: SegmentInfo, end: Index, file: File, index: Index, frame: bytes,
    copies: Mapping[Index, Copy],
) -> int:  # fmt: skip
    """Where the frame of entry `index` lies. Raises CorruptRecord when `frame` is not the one."""
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
    files: LogFiles, segment: SegmentInfo, file: File, index: Index, copies: Mapping[Index, Copy]
) -> Iterator[tuple[int, StoredEntry]]:
    """(position behind it, entry) of the segment's entries below `index`."""
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
    """What follows must follow: the next entry, unless it is itself a copy, or the end."""
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
    """Whether the damaged frame's own length leads to one that names the next entry, good or not,
    elsewhere than where the copy ends: then it is the copy that is wrong."""
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
    """Whether a frame that ends at `behind`, and its entry at `next_offset`, leave room for those
    up to the nearest of `later` that has an Idx."""
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
