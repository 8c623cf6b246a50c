"""Placed entries of one log: entries written directly to their position in a segment.

A large append is not written to the journal. Its frames go where a flush would put them, while the
journal block contains only records that refer to them; the block counts when both are on disk. The
entries are committed or truncated later, so segments may hold frames after the flushed part. Reads
do not use these.

Entries before them that are in no segment yet go along, so that frames stay consecutive. Entries
are placed only in a `Room`: space in the files, and the next file, that a flush has allocated and
made durable. A payload therefore meets no full disk, and changes neither a file's length nor a
name.

A truncation takes back the positions of the entries it removes. Nothing is written there until the
truncation is durable: after a crash before that, recovery would find other frames at the
positions that the journal has for the old ones.

Does not depend on the journal, threads, or the commit index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ids import Index
from segments.api import Buffer, CorruptRecord, EntryLike, SegmentLimits
from segments.format.frame import FRAME_BYTES
from segments.io import failpoint
from segments.io.fs import File, is_unreadable, read_whole, uncache_steps, write_over
from segments.log.index import IndexDamaged, place
from segments.log.segment import LogFiles
from segments.log.segment_header import (
    SEGMENT_HEADER_BYTES,
    Cursor,
    SegmentInfo,
    decode_segment_header,
    encode_segment_header,
)
from segments.log.tail_cache import Tail

NO_TIMESTAMP = -1
GAP_BYTES_MAX = 32 << 20
GAP_ENTRIES_MAX = 4096
"""Limits on the unplaced entries that go along with an append; above them, a flush comes first.
They cover what accumulates during one flush. With lower limits a log would never start placing,
because its appends during the flush are not placed."""
_PAGE_BYTES = 4096


@dataclass(slots=True)
class Room:
    """Durably allocated space in a segment file up to `end`.

    The file is closed when the last reference goes: a thread may still write when the log has
    released the room.
    """

    file: File
    end: int


@dataclass(slots=True)
class Payload:
    """Frames for one position in one file."""

    file: File
    position: int
    buffers: list[Buffer]
    files: LogFiles
    info: SegmentInfo
    """Contents of the file's header."""
    flushed_index: Index
    """Flushed index of the log."""
    is_read: bool = True
    """True if the page cache should keep the data."""

    @property
    def bytes(self) -> int:
        return sum(map(len, self.buffers))

    @property
    def end(self) -> int:
        return self.position + self.bytes

    def write(self, *, durable: bool = True) -> None:
        """Write the frames, and sync them if `durable`. Blocks.

        Raises OSError. After a refused write the whole payload may be written again; a failed sync
        is not such a refusal.
        """
        start, end = self.position, self.end
        first, last = start - start % _PAGE_BYTES, end - end % _PAGE_BYTES
        # The first and last page are written partially. A page that the medium cannot read can only
        # be written as a whole. Data lost after the end does not matter: it was truncated or never
        # counted.
        if first < start:
            self._write_head(self._part(start, first + _PAGE_BYTES))
        if last < end and last >= start:
            write_over(self.file, self._part(last, end), last)
        failpoint.hit("payload.torn")
        self.file.pwrite(self.buffers, start, durable=durable)

    def _part(self, start: int, stop: int) -> Buffer:
        """Return the bytes for [start, stop) of the file; fewer if the frames end before."""
        return b"".join(self._slices(start, stop))

    def _slices(self, start: int, stop: int) -> list[Buffer]:
        """Return what lies in [start, stop) of the file without copying."""
        found: list[Buffer] = []
        at = self.position
        for buffer in self.buffers:
            if part := buffer[max(start - at, 0) : max(stop - at, 0)]:
                found.append(part)
            at += len(buffer)
        return found

    def steps(self, size: int) -> list[Payload]:
        """Return the payload in parts that end where the file's position is a multiple of `size`.

        `size` is a multiple of a page.
        """
        found: list[Payload] = []
        at, end = self.position, self.end
        while at < end:
            stop = min(at - at % size + size, end)
            found.append(replace(self, position=at, buffers=self._slices(at, stop)))
            at = stop
        return found

    def _write_head(self, data: Buffer) -> None:
        """Write the part that shares its page with earlier data.

        If the page cannot be read, the earlier data becomes zeros; Idx are made durable first,
        because such frames cannot be walked over.
        """
        try:
            self.file.pwrite([data], self.position)
        except OSError as error:
            if not is_unreadable(error):
                raise
        else:
            return
        self._sync_index()
        write_over(self.file, data, self.position)
        if self.position < _PAGE_BYTES:
            self._mend_header()
        self.file.sync()

    def _sync_index(self) -> None:
        """Make the Idx of flushed entries durable."""
        number, _ = place(self.flushed_index, self.files.index_entries)
        try:
            index = self.files.open_index(number, self.flushed_index)
        except IndexDamaged:
            return  # the log was reset or deleted meanwhile, or they are rebuilt when needed
        try:
            index.sync()
        finally:
            index.close()

    def _mend_header(self) -> None:
        """Write the segment's header again if it was zeroed."""
        files = self.files
        try:
            decode_segment_header(read_whole(self.file, SEGMENT_HEADER_BYTES, 0), files.log_id)
        except CorruptRecord:
            header = encode_segment_header(self.info, files.log_id, files.group_id)
            self.file.pwrite([header], 0)


@dataclass(slots=True)
class Layout:
    """Positions for a list of entries.

    `runs` has (first entry, segment, position of its frame) for each segment; the other fields give
    the position of the frame after them.
    """

    runs: list[tuple[Index, int, int]]
    segment: int
    position: int
    first_timestamp: int | None


@dataclass(slots=True)
class Ahead:
    """A large entry that is written to its place before it is staged."""

    index: Index
    layout: Layout
    payloads: list[Payload]
    """Its frame, and those of entries before it that are in no segment yet."""
    begun: list[SegmentInfo]
    """Segments that the payloads begin."""


@dataclass(slots=True)
class Placement:
    """Extent of a log's placed entries."""

    index: Index
    """Use: the next entry is placed after it.
    Invariant: entries up to here are in segments, or in a payload in progress. Not below the
    flushed index."""
    durable: Index
    """Use: a flush writes only Idx for entries up to here.
    Invariant: entries up to here are in segments durably; not above `index`."""
    segment: int = 0
    position: int = 0
    """Position, in `segment`, of the frame after `index`."""
    first_timestamp: int | None = None
    """`Cursor.first_timestamp` of `segment`."""
    begun: list[SegmentInfo] = field(default_factory=list)
    """Segments that payloads have begun and no flush has reached, ascending."""
    rooms: dict[int, Room] = field(default_factory=dict)
    """Rooms by segment: the present one, and perhaps the next."""
    is_wanted: bool = False
    """True if an append since the last flush was large enough to be placed."""
    wishes: int = 0
    """Number of appends large enough to be placed. Use: a log without any during a round of
    checkpoints gives its room back."""
    rewind_token: int = 0
    """Use: until that token is durable nothing is written after `index`; 0: it is.
    Invariant: not below the token of a truncation that has taken positions back."""
    rewinds: int = 0
    """Number of rewinds. Use: room made by a flush that began before one is not used."""
    ahead: Ahead | None = None
    """Use: the log's next entry, written to its place by a thread; it is not in the log yet.
    Invariant: until it is staged, nothing else is placed, and no flush writes frames."""

    @property
    def is_settled(self) -> bool:
        """True if no payload and no truncation of placed entries is in progress."""
        return self.index == self.durable and not self.rewind_token and self.ahead is None

    @property
    def end(self) -> tuple[int, int]:
        """(segment, position) after all that has a place, durable or not."""
        last = self if self.ahead is None else self.ahead.layout
        return last.segment, last.position

    def lay_out(
        self, tail: Tail, limits: SegmentLimits, entries: Sequence[EntryLike], roll_at: int
    ) -> Layout | None:
        """Return the layout of these entries, which follow those of `tail`.

        Return None if there is no room. Entry `roll_at` (0: none) always begins a segment.
        """
        segment, position, timestamp = self.segment, self.position, self.first_timestamp
        room = self.rooms.get(segment)
        span_ms = limits.span_ms
        if room is None or (span_ms >= 0 and timestamp is None):
            return None
        layout = Layout([(self.index + 1, segment, position)], 0, 0, None)
        following: list[EntryLike] = []
        gap_bytes = 0
        if entries[0].index - self.index > GAP_ENTRIES_MAX:
            return None
        for chunk, start, stop in tail.spans(self.index + 1, entries[0].index):
            following += chunk.entries[start:stop]
            gap_bytes += chunk.ends[stop - 1] - chunk.start_of(start)
        if gap_bytes > GAP_BYTES_MAX:
            return None
        following += entries
        for entry in following:
            length = FRAME_BYTES + len(entry.data)
            if (
                entry.index == roll_at
                or (position + length > limits.bytes and position > SEGMENT_HEADER_BYTES)
                or (span_ms >= 0 and is_later(entry, timestamp, span_ms))
            ):
                segment += 1
                room = self.rooms.get(segment)
                if room is None:
                    return None
                position, timestamp = SEGMENT_HEADER_BYTES, NO_TIMESTAMP
                layout.runs.append((entry.index, segment, position))
            if position + length > room.end:
                return None
            timestamp = entry.timestamp if timestamp == NO_TIMESTAMP else timestamp
            position += length
        layout.segment, layout.position, layout.first_timestamp = segment, position, timestamp
        return layout

    def payloads(
        self,
        layout: Layout,
        tail: Tail,
        files: LogFiles,
        last: Index,
        info: SegmentInfo,
        *,
        is_read: bool = True,
    ) -> tuple[list[Payload], list[SegmentInfo]]:
        """Return the payloads of the entries up to `last`, and the segments that they begin.

        The entries are in `tail` now. `info` is the newest segment that a flush has begun.
        """
        assert not self.rewind_token, self.rewind_token
        made: list[Payload] = []
        begun: list[SegmentInfo] = []
        info = self.begun[-1] if self.begun else info
        ends = [first for first, _, _ in layout.runs[1:]] + [last + 1]
        for n, ((first, segment, position), end) in enumerate(zip(layout.runs, ends, strict=True)):
            buffers: list[Buffer] = [
                part
                for chunk, start, stop in tail.spans(first, end)
                for part in chunk.slices(chunk.start_of(start), chunk.ends[stop - 1])
            ]
            if n:
                info = SegmentInfo(segment, first, tail.entry(first).base_offset)
                begun.append(info)
                buffers.insert(0, encode_segment_header(info, files.log_id, files.group_id))
                position = 0
            if buffers:
                file = self.rooms[segment].file
                made.append(
                    Payload(file, position, buffers, files, info, tail.flushed_index, is_read)
                )
        return made, begun

    def take(self, layout: Layout, last: Index, begun: Sequence[SegmentInfo]) -> None:
        """Take the positions of the entries up to `last`, whose payloads begin these segments."""
        assert not self.rewind_token, self.rewind_token
        self.begun += begun
        self.index = last
        self.segment, self.position = layout.segment, layout.position
        self.first_timestamp = layout.first_timestamp

    def note_durable(self, last: Index) -> None:
        """Note that a payload up to entry `last` and the block that refers to it are durable.

        Some of its entries may have been truncated meanwhile.
        """
        self.durable = max(self.durable, min(last, self.index))

    def place_of(self, index: Index, flushed: Cursor, tail: Tail) -> tuple[int, int]:
        """Return (segment, position) of the frame of an unflushed entry.

        `index` may also be the one after `self.index`. `flushed` is the position of the first
        unflushed frame.
        """
        segment, position, first = flushed.segment, flushed.position, tail.flushed_index + 1
        for info in self.begun:
            if info.first_index <= index:
                segment, position, first = info.number, SEGMENT_HEADER_BYTES, info.first_index
        for chunk, start, stop in tail.spans(first, index):
            position += chunk.ends[stop - 1] - chunk.start_of(start)
        return segment, position

    def rewind(self, index: Index, flushed: Cursor, tail: Tail, token: int) -> None:
        """Take back the positions of entries from `index` on.

        The batch with that token truncates them from `tail`.
        """
        # First: if a segment has no entries left, later ones go to the segment before it.
        self.begun = [info for info in self.begun if info.first_index < index]
        self.segment, self.position = self.place_of(index, flushed, tail)
        self.first_timestamp = None  # a flush comes first and sets it
        self.index = index - 1
        self.durable = min(self.durable, self.index)
        self.rooms.clear()
        self.rewind_token = token
        self.rewinds += 1

    def flushed(self, last: Index, cursor: Cursor) -> None:
        """Note that a flush up to entry `last` has ended at `cursor`."""
        self.begun = [info for info in self.begun if info.first_index > last]
        if last >= self.index:
            self.index = self.durable = last
            self.segment, self.position = cursor.segment, cursor.position
            self.first_timestamp = cursor.first_timestamp

    def give_room(self, rooms: dict[int, Room]) -> None:
        """Add room that a flush has allocated."""
        self.rooms.update(rooms)
        for segment in [n for n in self.rooms if n < self.segment]:
            del self.rooms[segment]


def write_payloads(payloads: Sequence[Payload]) -> int:
    """Write and sync all payloads; return the number of bytes. Blocks. Raises OSError.

    Write-back of all is started before the first sync waits, so that the medium works on them in
    parallel and the file system commits many at once.
    """
    failpoint.hit("payload.before_sync")
    is_one = len(payloads) == 1
    total = 0
    for payload in payloads:
        payload.write(durable=is_one)
        total += payload.bytes
        if not is_one:
            payload.file.begin_write_back(payload.bytes, payload.position)
    if not is_one:
        for file in dict.fromkeys(payload.file for payload in payloads):
            file.sync()
    failpoint.hit("payload.after_sync")
    for payload in payloads:
        if not payload.is_read:
            uncache_steps(payload.file, payload.position, payload.end)
    return total


def is_later(entry: EntryLike, first_timestamp: int | None, span_ms: int) -> bool:
    """Return True if the entry is too late for a segment that begins with this timestamp."""
    if first_timestamp is None or first_timestamp < 0:
        return False
    return entry.timestamp - first_timestamp > span_ms
