"""Entries of one log that are written to their place in a segment at once.

A large append is not written to the journal. Its frames go where a flush would put them, beside the
journal's block that tells of them, and the block counts when both are on disk. They are committed
later, or cut off: so segments may hold frames behind what is flushed, which nobody reads there.

Whatever of the log lies before them and in no segment goes along, so that frames stay end to end.
They go only where there is room: space in the files, and the next file, that a flush has allocated
and made durable. So a payload meets no full disk, and changes neither a file's length nor a name.

A cut takes back the place of what it removes. Nothing is written there until the cut is durable: a
crash before that would find another's frames where the journal says they are.

Must not know: the journal, threads, what is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
"""Of what lies before an append and in no segment: with more, a flush comes first. So much comes
together while one flush runs; with less a log would not begin, because what comes then is not
placed."""
_PAGE_BYTES = 4096


@dataclass(slots=True)
class Room:
    """Space in a segment file up to `end`, allocated durably. The file is closed with the last use
    of it: a thread may be writing when the log has given it up."""

    file: File
    end: int


@dataclass(slots=True)
class Payload:
    """Frames for one place in one file."""

    file: File
    position: int
    buffers: list[Buffer]
    files: LogFiles
    info: SegmentInfo
    """What the header of the file says."""
    flushed_index: Index
    """Of the log."""
    is_read: bool = True
    """The system's page cache is to keep it."""

    @property
    def bytes(self) -> int:
        return sum(map(len, self.buffers))

    def write(self, *, durable: bool = True) -> None:
        """Write, and sync unless the caller does. Blocks. Raises OSError. To be written again as a
        whole where that is a refusal; a sync that failed is none."""
        start, end = self.position, self.position + self.bytes
        first, last = start - start % _PAGE_BYTES, end - end % _PAGE_BYTES
        # Of these two pages a part is written: one that the medium cannot read can only be written
        # as a whole. What is lost behind the end is of no worth: it was cut off, or never counted.
        if first < start:
            self._write_head(self._part(start, first + _PAGE_BYTES))
        if last < end and last >= start:
            write_over(self.file, self._part(last, end), last)
        failpoint.hit("payload.torn")
        self.file.pwrite(self.buffers, start, durable=durable)

    def _part(self, start: int, stop: int) -> Buffer:
        """The bytes for [start, stop) of the file; fewer where the frames end before."""
        parts: list[Buffer] = []
        at = self.position
        for buffer in self.buffers:
            parts.append(buffer[max(start - at, 0) : max(stop - at, 0)])
            at += len(buffer)
        return b"".join(parts)

    def _write_head(self, data: Buffer) -> None:
        """Write what lies in the page with others. If it cannot be read, what lay there before
        becomes zeros: Idx are durable first, for nothing can walk over such frames."""
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
        """Have the Idx of what is flushed durable."""
        number, _ = place(self.flushed_index, self.files.index_entries)
        try:
            index = self.files.open_index(number, self.flushed_index)
        except IndexDamaged:
            return  # the log was reset or deleted meanwhile, or they are rebuilt when missed
        try:
            index.sync()
        finally:
            index.close()

    def _mend_header(self) -> None:
        """Write the segment's header again if it became zeros."""
        files = self.files
        try:
            decode_segment_header(read_whole(self.file, SEGMENT_HEADER_BYTES, 0), files.log_id)
        except CorruptRecord:
            header = encode_segment_header(self.info, files.log_id, files.group_id)
            self.file.pwrite([header], 0)


@dataclass(slots=True)
class Layout:
    """Where entries go. `runs` are (first entry, segment, position of its frame), one a segment;
    the rest is where the frame behind them goes."""

    runs: list[tuple[Index, int, int]]
    segment: int
    position: int
    first_timestamp: int | None


@dataclass(slots=True)
class Placement:
    """How far the log's entries have a place."""

    index: Index
    """Use: what follows goes behind it.
    Invariant: entries up to here lie in segments, or a payload under way has them. Not below what
    is flushed."""
    durable: Index
    """Use: a flush has nothing to write up to here but Idx.
    Invariant: entries up to here are in segments durably; not above `index`."""
    segment: int = 0
    position: int = 0
    """Where the frame after `index` goes."""
    first_timestamp: int | None = None
    """As `Cursor.first_timestamp`, of `segment`."""
    begun: list[SegmentInfo] = field(default_factory=list)
    """Segments that payloads have begun and no flush has come to, ascending."""
    rooms: dict[int, Room] = field(default_factory=dict)
    """By segment: this one, and perhaps the next."""
    is_wanted: bool = False
    """Something came since the last flush that would be placed if there is room."""
    wishes: int = 0
    """How often so far. Use: who had none during a round of checkpoints gives its room back."""
    rewind_token: int = 0
    """Use: until that token is durable nothing is written behind `index`; 0: it is.
    Invariant: not below the token of a cut that has taken a place back."""
    rewinds: int = 0
    """So far. Use: what a flush began before one is not to be built on."""

    @property
    def is_settled(self) -> bool:
        """No payload is under way, and no cut that has taken a place back."""
        return self.index == self.durable and not self.rewind_token

    def lay_out(
        self, tail: Tail, limits: SegmentLimits, entries: Sequence[EntryLike], roll_at: int
    ) -> Layout | None:
        """Where these entries go, which follow those of `tail`. A segment begins with entry
        `roll_at` in any case, unless that is 0. None: there is no room."""
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

    def place(
        self,
        layout: Layout,
        tail: Tail,
        files: LogFiles,
        last: Index,
        info: SegmentInfo,
        *,
        is_read: bool = True,
    ) -> list[Payload]:
        """Take the place of the entries up to `last`, which are in `tail` now; what is to be
        written. `info` is the newest segment's that a flush has begun."""
        assert not self.rewind_token, self.rewind_token
        made: list[Payload] = []
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
                self.begun.append(info)
                buffers.insert(0, encode_segment_header(info, files.log_id, files.group_id))
                position = 0
            if buffers:
                file = self.rooms[segment].file
                made.append(
                    Payload(file, position, buffers, files, info, tail.flushed_index, is_read)
                )
        self.index = last
        self.segment, self.position = layout.segment, layout.position
        self.first_timestamp = layout.first_timestamp
        return made

    def note_durable(self, last: Index) -> None:
        """A payload up to entry `last` is on disk, and the block that tells of it. Some of it may
        have been cut off meanwhile."""
        self.durable = max(self.durable, min(last, self.index))

    def place_of(self, index: Index, flushed: Cursor, tail: Tail) -> tuple[int, int]:
        """(segment, position) of an entry's frame that is behind what is flushed, or of the one
        that follows `self.index`. `flushed` is where the first of these lies."""
        segment, position, first = flushed.segment, flushed.position, tail.flushed_index + 1
        for info in self.begun:
            if info.first_index <= index:
                segment, position, first = info.number, SEGMENT_HEADER_BYTES, info.first_index
        for chunk, start, stop in tail.spans(first, index):
            position += chunk.ends[stop - 1] - chunk.start_of(start)
        return segment, position

    def rewind(self, index: Index, flushed: Cursor, tail: Tail, token: int) -> None:
        """Entries from `index` on are about to be cut off `tail`, by the batch with that token."""
        # First: where nothing is left of a segment, what follows goes behind the one before.
        self.begun = [info for info in self.begun if info.first_index < index]
        self.segment, self.position = self.place_of(index, flushed, tail)
        self.first_timestamp = None  # a flush comes first, and knows
        self.index = index - 1
        self.durable = min(self.durable, self.index)
        self.rooms.clear()
        self.rewind_token = token
        self.rewinds += 1

    def flushed(self, last: Index, cursor: Cursor) -> None:
        """A flush up to entry `last` has ended at `cursor`."""
        self.begun = [info for info in self.begun if info.first_index > last]
        if last >= self.index:
            self.index = self.durable = last
            self.segment, self.position = cursor.segment, cursor.position
            self.first_timestamp = cursor.first_timestamp

    def give_room(self, rooms: dict[int, Room]) -> None:
        """A flush has made room."""
        self.rooms.update(rooms)
        for segment in [n for n in self.rooms if n < self.segment]:
            del self.rooms[segment]


def write_payloads(payloads: Sequence[Payload]) -> int:
    """Write and sync them all; how many bytes. Blocks. Raises OSError.

    Of several, all are on their way before the first sync waits. The medium works on them side by
    side then, and the file system commits for many at once.
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
            uncache_steps(payload.file, payload.position, payload.position + payload.bytes)
    return total


def is_later(entry: EntryLike, first_timestamp: int | None, span_ms: int) -> bool:
    """Whether the entry is too late for a segment that begins with this timestamp."""
    if first_timestamp is None or first_timestamp < 0:
        return False
    return entry.timestamp - first_timestamp > span_ms
