"""Writing of committed entries from the tails to segments: the work of a checkpoint.

On the loop a `FlushPlan` is made, which lists the chunks to write. In the pool `run_flush` executes
it: long runs straight from the chunks, Idx beside them, and a new segment before a frame that would
exceed the size limit. Data is written back in steps, so that the journal's writes never wait behind
a large sync, and synced at the end. Nothing counts until the journal has a FLUSHED record; a crash
or a full disk before that leaves bytes that the next flush removes before it begins.

Does not depend on the journal or on when to flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ids import NO_INDEX, Index, LogId, Offset
from segments.api import CorruptRecord, EntryLike, SegmentLimits
from segments.checkpoint.rooms import SPACE_TIMES, cut_behind, give_back
from segments.io import failpoint
from segments.io.fs import (
    File,
    FileSystem,
    cut_off,
    free_bytes,
    is_refused,
    read_whole,
    uncache_steps,
    unless_refused,
    write_over,
)
from segments.log.index_files import IndexWriter
from segments.log.placement import NO_TIMESTAMP, Room, is_later
from segments.log.segment import LogFiles
from segments.log.segment_header import (
    SEGMENT_HEADER_BYTES,
    Cursor,
    Sealed,
    SegmentInfo,
    decode_segment_header,
    encode_segment_header,
)

WRITE_BACK_BYTES = 2 << 20
"""Bytes written back at a time. Write-back is not a sync, which makes the file system commit its
own journal and delays the writes of ours. Half of this costs a quarter more CPU time; a larger step
delays the journal's writes too much."""
INDEX_SYNC_BYTES = 1 << 20
INDEX_SYNC_ENTRIES = 1024
"""Idx are synced by a flush that passes a multiple of either, of a segment's bytes or of entries.
After a power cut a start reads at most this much of each log, to rebuild Idx that were not
synced."""
_GROW_MIN = 64 << 10
_GROW_MAX = 4 << 20


@dataclass(slots=True)
class Pulse:
    """Progress counter of a flush, incremented in its thread.

    Other threads read it to see if the flush still progresses.
    """

    beats: int = 0


@dataclass(slots=True)
class FlushSpan:
    """Consecutive frames of one chunk: the memory from the first one's start, and their ends."""

    view: memoryview
    entries: Sequence[EntryLike]
    ends: Sequence[int]
    start: int
    payload: memoryview | None = None
    """Payload of a large entry; `view` is then its frame's header."""

    def slices(self, start: int, end: int) -> Sequence[memoryview]:
        """Return the bytes between these positions."""
        if self.payload is None or start == end:
            return (self.view[start:end],)
        return (self.view, self.payload)


@dataclass(slots=True)
class FlushPlan:
    """Flush of entries [first, last] of one log; none if it only makes room.

    `generation` shows if the log was reset meanwhile.
    """

    files: LogFiles
    generation: int
    first: Index
    last: Index
    next_offset: Offset
    bytes: int
    cursor: Cursor
    spans: list[FlushSpan]
    limits: SegmentLimits
    segment_first: Index
    """First index of the segment being written; 0 if there is none."""
    has_scrap: bool
    """True if another flush may have left bytes after the cursor."""
    pulse: Pulse = field(default_factory=Pulse)
    segment_offset: Offset = Offset(0)
    """Base offset of the segment being written."""
    roll_at: Index = NO_INDEX
    """Entry that always begins a new segment; 0: none."""
    placed_last: Index = NO_INDEX
    """Entries up to here are placed durably: only their Idx are written."""
    begun: list[SegmentInfo] = field(default_factory=list)
    """Segments that hold some of these entries and that no flush has reached, ascending."""
    end: tuple[int, int] = (0, 0)
    """(segment, position) after all placed entries, durable or not; meaningless if the plan goes
    further."""
    room_bytes: int = 0
    """Bytes of room for payloads to make after `end`."""
    rooms: dict[int, Room] = field(default_factory=dict)
    """Existing rooms by segment."""
    space_kept: int = 0
    """Bytes of free disk space that must not be used for room."""
    gives_back: bool = False
    """True if space allocated after the log's end is to be given back."""
    rewinds: int = 0
    """`Placement.rewinds` when this was planned."""
    is_read: bool = True
    """True if the page cache should keep the written data."""

    @property
    def writes_frames(self) -> bool:
        return self.last > self.placed_last


@dataclass(slots=True)
class FlushResult:
    """Result of a flush: the new end of the log's segments."""

    log_id: LogId
    plan: FlushPlan
    cursor: Cursor
    opened: list[SegmentInfo] = field(default_factory=list)
    sealed: list[Sealed] = field(default_factory=list)
    rooms: dict[int, Room] = field(default_factory=dict)
    """Room for payloads that was made durably, by segment."""
    has_given_back: bool = False
    """True if space allocated after the end was given back."""


def run_flush(plan: FlushPlan) -> FlushResult:
    """Write the plan and sync it. Blocks. Raises OSError."""
    writer = _Writer(plan)
    try:
        for span in plan.spans:
            writer.add(span)
        failpoint.hit("flush.written")
        writer.finish()
        failpoint.hit("flush.done")
    finally:
        writer.close()
    try:
        if plan.room_bytes:
            make_room(plan, writer.result)
        elif plan.gives_back:
            give_back(plan.files, *_end_of(plan, writer.result))
            writer.result.has_given_back = True
    except OSError as error:
        if not is_refused(error):
            raise
    return writer.result


def _end_of(plan: FlushPlan, result: FlushResult) -> tuple[int, int]:
    """Return (segment, position) after all placed entries."""
    if plan.writes_frames:
        return result.cursor.segment, result.cursor.position
    return plan.end


def make_room(plan: FlushPlan, result: FlushResult) -> None:
    """Allocate room for payloads durably, as long as the disk has plenty of space.

    The room is in the log's last segment and in the one after it. Blocks. Raises OSError; room made
    before that is in the result, and a refused allocation is undone.
    """
    files, limit = plan.files, plan.limits.bytes
    segment, position = _end_of(plan, result)
    room = plan.rooms.get(segment)
    file = room.file if room is not None else files.fs.open(files.segment_path(segment))
    end = min(position + plan.room_bytes, limit)
    if end > position:
        if not _has_space(plan, end - (position if room is None else room.end)):
            return
        result.rooms[segment] = _allocated(file, position, end, room)
    left = plan.room_bytes - max(end - position, 0)
    if left <= 0:
        return
    end = min(SEGMENT_HEADER_BYTES + left, limit)
    room = plan.rooms.get(segment + 1)
    if not _has_space(plan, end - (0 if room is None else room.end)):
        return
    path = files.segment_path(segment + 1)
    if room is not None:
        file = room.file
    elif files.fs.exists(path):
        file = files.fs.open(path)
    else:
        file = files.fs.open(path, create=True)
    try:
        next_room = _allocated(file, 0, end, room)
    except OSError as error:
        if room is None and is_refused(error):
            with unless_refused():  # an empty file of the next segment is no room; found later
                files.fs.unlink(path)
        raise
    if room is None:
        files.fs.sync_directory(files.directory)  # before anything relies on the name
    result.rooms[segment + 1] = next_room


def _has_space(plan: FlushPlan, wanted: int) -> bool:
    """Return True if `wanted` more bytes are free and leave several times as much for others."""
    if wanted <= 0:
        return True
    free = free_bytes(plan.files.fs, plan.files.directory)
    return free - plan.space_kept >= SPACE_TIMES * wanted


def _allocated(file: File, start: int, end: int, room: Room | None) -> Room:
    """Return room from `start` up to `end`, or the existing room.

    A payload may be writing to existing room. Raises OSError; if the allocation is refused, the
    file keeps its length, rounded up to the page.
    """
    if room is not None and end <= room.end:
        return room
    if room is not None:
        start = room.end
    try:
        file.allocate(end, start=start)
    except OSError as error:
        if is_refused(error):
            with unless_refused():
                cut_behind(file, start)  # a part may have been allocated
        raise
    failpoint.hit("flush.room")
    file.sync()
    return Room(file, end)


class _Writer:
    """One log's flush in progress."""

    def __init__(self, plan: FlushPlan) -> None:
        self.plan = plan
        cursor = plan.cursor
        self.result = FlushResult(
            plan.files.log_id,
            plan,
            Cursor(cursor.segment, cursor.position, cursor.max_timestamp, cursor.first_timestamp),
        )
        self._index = IndexWriter(plan.files)
        self._file: File | None = None
        self._allocated = 0
        self._left = plan.bytes
        """Bytes of the plan that are not written yet."""
        self._behind = 0
        """Bytes before the cursor that were neither synced nor written back."""
        self._started = cursor.position
        """Start position of this flush in the file."""
        self._new_names = False
        self._has_frames = False
        """True if written data is not synced."""
        self._begun = SegmentInfo(cursor.segment, plan.segment_first, plan.segment_offset)
        """Contents of the header of the segment being written."""
        self._has_zeros = False
        """True if an unreadable page became zeros beside the data written to it."""
        if cursor.segment:
            self._file = plan.files.fs.open(plan.files.segment_path(cursor.segment))
            self._allocated = self._file.size()
        else:
            _make_directory(plan.files.fs, plan.files.directory)
        self._find_first_timestamp()
        if plan.has_scrap:
            plan.files.remove_scrap(max(cursor.segment, plan.end[0]), plan.first)

    def add(self, span: FlushSpan) -> None:
        """Write a span's frames and their Idx."""
        cursor, plan = self.result.cursor, self.plan
        limit, span_ms, roll_at = plan.limits.bytes, plan.limits.span_ms, plan.roll_at
        add_idx, placed_last, begun = self._index.add, self.plan.placed_last, self.plan.begun
        run_start = start = span.start
        for entry, end in zip(span.entries, span.ends, strict=True):
            length = end - start
            if entry.index <= placed_last:
                if begun and begun[0].first_index == entry.index:
                    self._seal()
                    self._go_on_in(begun.pop(0))
                run_start = end
            elif (
                not cursor.segment
                or entry.index == roll_at
                or (cursor.position + length > limit and cursor.position > SEGMENT_HEADER_BYTES)
                or (span_ms >= 0 and is_later(entry, cursor.first_timestamp, span_ms))
            ):
                self._write(span.slices(run_start, start))
                run_start = start
                self._roll(entry)
            if cursor.first_timestamp == NO_TIMESTAMP:
                cursor.first_timestamp = entry.timestamp
            cursor.max_timestamp = max(cursor.max_timestamp, entry.timestamp)
            add_idx(
                entry.index, entry.base_offset, cursor.max_timestamp, cursor.position, length,
                cursor.segment, entry.term, entry.records, entry.kind,
            )  # fmt: skip
            cursor.position += length
            start = end
        self._write(span.slices(run_start, start))

    def _find_first_timestamp(self) -> None:
        """Find the first timestamp of a segment begun in an earlier run, if it counts."""
        cursor, plan = self.result.cursor, self.plan
        if plan.limits.span_ms < 0 or not cursor.segment or cursor.first_timestamp is not None:
            return
        try:
            cursor.first_timestamp = plan.files.idx(plan.segment_first).max_timestamp
        except CorruptRecord:
            cursor.first_timestamp = NO_TIMESTAMP  # the next read there rebuilds the index

    def finish(self) -> None:
        assert self._file is not None, "a plan has an entry, or its log has segments"
        self._index.flush()
        if self._has_zeros:
            self._mend()
        if self._is_index_due():
            self._index.sync()
        if self._has_frames:
            self._file.sync()
            if not self.plan.is_read:
                uncache_steps(self._file, self._started, self.result.cursor.position)
        if self._new_names:
            self.plan.files.fs.sync_directory(self.plan.files.directory)

    def _is_index_due(self) -> bool:
        """Return True if Idx must be synced.

        Otherwise a start would have too much to read to rebuild Idx, or would not find their file.
        """
        first, end = self.plan.first, self.plan.last + 1
        return (
            self._index.has_new_name
            or self._started // INDEX_SYNC_BYTES != self.result.cursor.position // INDEX_SYNC_BYTES
            or first // INDEX_SYNC_ENTRIES != end // INDEX_SYNC_ENTRIES
            or first // self.plan.files.index_entries != end // self.plan.files.index_entries
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._index.close()

    def _write(self, views: Sequence[memoryview]) -> None:
        """Write the frames that end at the cursor, with write-back in steps."""
        file, size = self._file, sum(map(len, views))
        if not size:
            return
        assert file is not None, "a segment is open"
        self._has_frames = True
        position = self.result.cursor.position - size
        self._grow(file, position, size)
        self._left -= size
        for view in views:
            self._write_paced(file, view, position)
            position += len(view)

    def _write_paced(self, file: File, view: memoryview, position: int) -> None:
        done = 0
        while done < len(view):
            step = view[done : done + WRITE_BACK_BYTES]
            self._has_zeros |= write_over(file, step, position + done)
            done += len(step)
            self.plan.pulse.beats += 1
            self._behind += len(step)
            if self._behind >= WRITE_BACK_BYTES:
                file.write_back(self._behind, position + done - self._behind)
                self._behind = 0

    def _mend(self) -> None:
        """Repair after zeroed pages.

        Rewrites the header if it was hit, and makes the Idx durable, because zeroed frames cannot
        be walked over.
        """
        assert self._file is not None, "a segment is open"
        files = self.plan.files
        try:
            decode_segment_header(read_whole(self._file, SEGMENT_HEADER_BYTES, 0), files.log_id)
        except CorruptRecord:
            header = encode_segment_header(self._begun, files.log_id, files.group_id)
            write_over(self._file, header, 0)
        self._index.flush()
        self._index.sync()
        self._has_zeros = False

    def _grow(self, file: File, position: int, length: int) -> None:
        """Extend the file for the rest of this flush.

        Extended in steps, so that most syncs find its length unchanged.
        """
        if position + length <= self._allocated:
            return
        limit = max(self.plan.limits.bytes, position + length)
        end = min(position + self._left, limit)
        while self._allocated < end:
            self._allocated += min(max(self._allocated, _GROW_MIN), _GROW_MAX)
        self._allocated = min(self._allocated, limit)
        cut_off(file, self._allocated)

    def _roll(self, entry: EntryLike) -> None:
        """Seal the segment and begin the next one with `entry`."""
        files, cursor = self.plan.files, self.result.cursor
        if self._file is not None:
            self._seal()
        info = SegmentInfo(cursor.segment + 1, entry.index, entry.base_offset)
        path = files.segment_path(info.number)
        if cursor.segment and files.fs.exists(path):  # begun for payloads, but not used
            self._go_on_in(info)
        else:
            self._file = files.fs.open(path, create=True)
            failpoint.hit("flush.created")
            self._begin(info, SEGMENT_HEADER_BYTES)
        assert self._file is not None, "a segment is open"
        write_over(self._file, encode_segment_header(info, files.log_id, files.group_id), 0)
        self._behind = SEGMENT_HEADER_BYTES
        self._has_frames = self._new_names = True

    def _seal(self) -> None:
        """Finish the segment; nothing follows in it."""
        cursor = self.result.cursor
        assert self._file is not None, "a segment is open"
        cut_off(self._file, cursor.position)
        if self._has_zeros:
            self._mend()
        self._file.sync()
        if not self.plan.is_read:
            self._file.uncache()
        self._file.close()
        self._has_frames = False
        self._index.flush()
        self._index.sync()
        failpoint.hit("flush.sealed")
        self.result.sealed.append(Sealed(cursor.segment, cursor.position, cursor.max_timestamp))

    def _go_on_in(self, info: SegmentInfo) -> None:
        """Continue in the next segment, whose file exists already."""
        files = self.plan.files
        self._file = files.fs.open(files.segment_path(info.number))
        self._begin(info, self._file.size())

    def _begin(self, info: SegmentInfo, allocated: int) -> None:
        cursor = self.result.cursor
        self._begun = info
        self._allocated = allocated
        self._behind = self._started = 0
        self.result.opened.append(info)
        cursor.segment, cursor.position = info.number, SEGMENT_HEADER_BYTES
        cursor.max_timestamp = cursor.first_timestamp = NO_TIMESTAMP


def _make_directory(fs: FileSystem, path: str) -> None:
    """Create a log's directory durably.

    The sync also covers a directory that an earlier flush created without being able to sync its
    parent.
    """
    if not fs.exists(path):
        fs.make_directory(path)
    fs.sync_directory(path.rpartition("/")[0])
