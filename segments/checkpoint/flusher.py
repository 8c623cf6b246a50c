"""Moving committed entries from the tails into segments: the checkpoint's work.

On the loop a `FlushPlan` is made: which chunks, from where to where. In the pool `run_flush` writes
it: long runs straight from the chunks, Idx beside them, a new segment whenever the next frame would
pass the size limit, written back in steps so that the journal's writes never wait behind a large
sync, and synced at the end. Nothing counts until the journal has a FLUSHED record; a
crash or a full disk before that leaves scrap, which the next flush removes before it begins.

Must not know: the journal, when to flush.
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
"""Written back, not synced: a sync has the file system commit its own journal, too, and the writes
of ours wait for that. Half of it costs a quarter more CPU time; of more the journal's writes would
wait for too much."""
INDEX_SYNC_BYTES = 1 << 20
INDEX_SYNC_ENTRIES = 1024
"""Idx are synced by the flush that passes a multiple of either, of a segment's bytes or of entries.
After a power cut a start reads no more than that of each log, to rebuild what was not."""
_GROW_MIN = 64 << 10
_GROW_MAX = 4 << 20


@dataclass(slots=True)
class Pulse:
    """Counts what a flush gets done, in its thread; whoever looks from another one sees whether it
    still does anything."""

    beats: int = 0


@dataclass(slots=True)
class FlushSpan:
    """Consecutive frames of one chunk: the memory from the first one's start, and their ends."""

    view: memoryview
    entries: Sequence[EntryLike]
    ends: Sequence[int]
    start: int
    payload: memoryview | None = None
    """Of a large entry: `view` is its frame's header."""

    def slices(self, start: int, end: int) -> Sequence[memoryview]:
        """What lies between these positions."""
        if self.payload is None or start == end:
            return (self.view[start:end],)
        return (self.view, self.payload)


@dataclass(slots=True)
class FlushPlan:
    """Entries [first, last] of one log. `generation` tells whether the log was reset meanwhile."""

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
    """First index of the segment that is being written; 0: there is none."""
    has_scrap: bool
    """Behind the cursor there may be what another flush has left."""
    pulse: Pulse = field(default_factory=Pulse)
    segment_offset: Offset = Offset(0)
    """Base offset of the segment that is being written."""
    roll_at: Index = NO_INDEX
    """The entry with which a new segment begins in any case; 0: none."""
    placed_last: Index = NO_INDEX
    """Entries up to here lie in their place durably: only their Idx are written."""
    begun: list[SegmentInfo] = field(default_factory=list)
    """Segments that hold some of these and that no flush has come to, ascending."""
    end: tuple[int, int] = (0, 0)
    """(segment, position) behind all that has a place, durably or not; without meaning when the
    plan goes further."""
    room_bytes: int = 0
    """For so many bytes of payloads room is made behind that."""
    rooms: dict[int, Room] = field(default_factory=dict)
    """What room there is."""
    space_kept: int = 0
    """Bytes of the disk that are not for room."""
    gives_back: bool = False
    """What is allocated behind the log's end goes back."""
    rewinds: int = 0
    """Of the log's placement, when this was planned."""
    is_read: bool = True
    """The system's page cache is to keep what is written."""

    @property
    def writes_frames(self) -> bool:
        return self.last > self.placed_last


@dataclass(slots=True)
class FlushResult:
    """Where the log's segments end now."""

    log_id: LogId
    plan: FlushPlan
    cursor: Cursor
    opened: list[SegmentInfo] = field(default_factory=list)
    sealed: list[Sealed] = field(default_factory=list)
    rooms: dict[int, Room] = field(default_factory=dict)
    """Room for payloads that was made, durably, by segment."""
    has_given_back: bool = False
    """What was allocated behind the end went back."""


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
    """(segment, position) behind all that has a place."""
    if plan.writes_frames:
        return result.cursor.segment, result.cursor.position
    return plan.end


def make_room(plan: FlushPlan, result: FlushResult) -> None:
    """Allocate room for payloads in the log's last segment, and in the one after that, durably, as
    long as the disk has plenty. Blocks. Raises OSError; what was made until then is in the result,
    and what was refused has nothing left of it."""
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
            with unless_refused():  # an empty file of the next segment is no room, and found later
                files.fs.unlink(path)
        raise
    if room is None:
        files.fs.sync_directory(files.directory)  # before anything relies on the name
    result.rooms[segment + 1] = next_room


def _has_space(plan: FlushPlan, wanted: int) -> bool:
    """Whether so much more can be had, and leaves others several times as much."""
    if wanted <= 0:
        return True
    free = free_bytes(plan.files.fs, plan.files.directory)
    return free - plan.space_kept >= SPACE_TIMES * wanted


def _allocated(file: File, start: int, end: int, room: Room | None) -> Room:
    """Room from `start` up to `end`, or what is there already: a payload may be on its way to
    that. Raises OSError; where that is refused the file is as long as before, or to the page."""
    if room is not None and end <= room.end:
        return room
    if room is not None:
        start = room.end
    try:
        file.allocate(end, start=start)
    except OSError as error:
        if is_refused(error):
            with unless_refused():
                cut_behind(file, start)  # some of it may have been had
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
        """Of the plan, not written yet."""
        self._behind = 0
        """Bytes before the cursor that were neither synced nor written back."""
        self._started = cursor.position
        """Where this flush began in the file."""
        self._new_names = False
        self._has_frames = False
        """Something was written that is not synced."""
        self._begun = SegmentInfo(cursor.segment, plan.segment_first, plan.segment_offset)
        """What the header of the segment that is being written says."""
        self._has_zeros = False
        """Beside what was written to it a page that could not be read became zeros."""
        if cursor.segment:
            self._file = plan.files.fs.open(plan.files.segment_path(cursor.segment))
            self._allocated = self._file.size()
        else:
            _make_directory(plan.files.fs, plan.files.directory)
        if plan.has_scrap:
            plan.files.remove_scrap(max(cursor.segment, plan.end[0]), plan.first)

    def add(self, span: FlushSpan) -> None:
        """Write a span's frames and their Idx."""
        cursor, plan = self.result.cursor, self.plan
        limit, span_ms, roll_at = plan.limits.bytes, plan.limits.span_ms, plan.roll_at
        if span_ms >= 0 and cursor.segment and cursor.first_timestamp is None:
            cursor.first_timestamp = self._first_timestamp()
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

    def _first_timestamp(self) -> int:
        """Of the segment that a life before this one began."""
        try:
            return self.plan.files.idx(self.plan.segment_first).max_timestamp
        except CorruptRecord:
            return NO_TIMESTAMP  # the index is rebuilt by whoever reads there

    def finish(self) -> None:
        assert self._file is not None, "a plan without entries"
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
        """Whether a start would have too much to read for the Idx that are not durable, or not find
        their file."""
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
        """Write the frames that end at the cursor, in paced steps."""
        file, size = self._file, sum(map(len, views))
        if not size:
            return
        assert file is not None, "no segment is open"
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
        """Make up for the zeros: the header is written again, if it was there, and where the frames
        lie is made durable, for nothing can walk over those that became zeros."""
        assert self._file is not None, "no segment is open"
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
        """Lengthen the file for all that this flush will write to it, and in steps, so that most
        syncs find its length unchanged."""
        if position + length <= self._allocated:
            return
        limit = max(self.plan.limits.bytes, position + length)
        end = min(position + self._left, limit)
        while self._allocated < end:
            self._allocated += min(max(self._allocated, _GROW_MIN), _GROW_MAX)
        self._allocated = min(self._allocated, limit)
        cut_off(file, self._allocated)

    def _roll(self, entry: EntryLike) -> None:
        """Seal the segment and begin the next with `entry`."""
        files, cursor = self.plan.files, self.result.cursor
        if self._file is not None:
            self._seal()
        info = SegmentInfo(cursor.segment + 1, entry.index, entry.base_offset)
        path = files.segment_path(info.number)
        if cursor.segment and files.fs.exists(path):  # begun for payloads, and not used
            self._go_on_in(info)
        else:
            self._file = files.fs.open(path, create=True)
            failpoint.hit("flush.created")
            self._begin(info, SEGMENT_HEADER_BYTES)
        assert self._file is not None, "no segment is open"
        write_over(self._file, encode_segment_header(info, files.log_id, files.group_id), 0)
        self._behind = SEGMENT_HEADER_BYTES
        self._has_frames = self._new_names = True

    def _seal(self) -> None:
        """Nothing follows in the segment."""
        cursor = self.result.cursor
        assert self._file is not None, "no segment is open"
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
        """The next segment's file is there already."""
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
    """A log's, durably: also where a flush before this one made it, and was refused to sync the
    one it stands in."""
    if not fs.exists(path):
        fs.make_directory(path)
    fs.sync_directory(path.rpartition("/")[0])
