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

A large entry may be written ahead, before it is appended: the bytes behind the first pages of its
payload go where they will be placed. That is a hint. If the same memory is placed at the same
position of the same open file later, these bytes are not written again; otherwise all are.

Does not depend on the journal, threads, or the commit index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from crc32c import crc32c

from ids import Index
from segments.api import CHANGING_BYTES, Buffer, CorruptRecord, EntryLike, SegmentLimits
from segments.format.frame import FRAME_BYTES
from segments.format.joined_crc import joined_crc
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
ROUNDS_OF_LARGE = 6
"""Rounds of checkpoints for which a log keeps its room after a large entry: at ten seconds each,
one a minute finds room."""
_PAGE_BYTES = 4096


@dataclass(slots=True)
class Room:
    """Durably allocated space in a segment file up to `end`.

    The file is closed when the last reference goes: a thread may still write when the log has
    released the room.
    """

    file: File
    end: int


NO_ROOMS: Mapping[int, Room] = MappingProxyType({})
"""The rooms of most logs."""


def _no_rooms() -> Mapping[int, Room]:
    return NO_ROOMS


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
        return b"".join(self.part(start, stop).buffers)

    def position_of(self, view: Buffer) -> int:
        """Return the position of one of the buffers in the file; -1 if it is none of them."""
        at = self.position
        for buffer in self.buffers:
            if buffer is view:
                return at
            at += len(buffer)
        return -1

    def part(self, start: int, stop: int) -> Payload:
        """Return what lies in [start, stop) of the file, without copying."""
        found: list[Buffer] = []
        at = self.position
        for buffer in self.buffers:
            if piece := buffer[max(start - at, 0) : max(stop - at, 0)]:
                found.append(piece)
            at += len(buffer)
        return replace(self, position=max(start, self.position), buffers=found)

    def steps(self, size: int) -> list[Payload]:
        """Return the payload in parts that end where the file's position is a multiple of `size`.

        `size` is a multiple of a page.
        """
        found: list[Payload] = []
        at, end = self.position, self.end
        while at < end:
            stop = min(at - at % size + size, end)
            found.append(self.part(at, stop))
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
    """A payload that is written before its entry is appended."""

    data: Buffer
    """The entry's payload. Use: compared by identity. Invariant: its memory does not change, except
    for the first `CHANGING_BYTES`."""
    view: memoryview
    """The same memory, as the tail will hold it."""
    position: int
    """Position of the payload in the file."""
    rest: Payload
    """The part that is written."""
    number: int
    """Number of this one among those of its log."""
    crc: int | None = None
    """CRC of `rest`. Invariant: not None only if `rest` is on disk at its position in its file."""

    @property
    def is_durable(self) -> bool:
        return self.crc is not None


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
    begun: tuple[SegmentInfo, ...] = ()
    """Segments that payloads have begun and no flush has reached, ascending."""
    rooms: Mapping[int, Room] = field(default_factory=_no_rooms)
    """Rooms by segment: the present one, and perhaps the next."""
    is_wanted: bool = False
    """True if an append since the last flush was large enough to be placed."""
    bytes_wanted: int = 0
    """Bytes of room that a large entry waits for; 0: none waits."""
    wishes: int = 0
    """Number of appends large enough to be placed. Use: a log without any during a round of
    checkpoints gives its room back."""
    rounds_kept: int = 0
    """Use: rounds of checkpoints for which room is kept without further wishes."""
    rewind_token: int = 0
    """Use: until that token is durable nothing is written after `index`; 0: it is.
    Invariant: not below the token of a truncation that has taken positions back."""
    rewinds: int = 0
    """Number of rewinds. Use: room made by a flush that began before one is not used."""
    aheads: int = 0
    """Number of payloads that were begun to be written ahead."""
    ahead: Ahead | None = None
    """Use: bytes that need not be written again, once durable.
    Invariant: while it is being written, nothing else is placed and no flush writes frames."""

    @property
    def is_settled(self) -> bool:
        """True if no payload and no truncation of placed entries is in progress."""
        is_settled = self.index == self.durable and not self.rewind_token
        return is_settled and (self.ahead is None or self.ahead.is_durable)

    @property
    def is_writing_ahead(self) -> bool:
        return self.ahead is not None and not self.ahead.is_durable

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
        """Take the positions of the entries up to `last`; return the payloads to be written.

        The entries are in `tail` now. `info` is the newest segment that a flush has begun.
        """
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
                self.begun += (info,)
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

    def write_ahead(
        self,
        data: Buffer,
        view: memoryview,
        layout: Layout,
        info: SegmentInfo,
        files: LogFiles,
        *,
        is_read: bool = True,
    ) -> Payload | None:
        """Begin to write a payload ahead, whose entry would end `layout`; return what to write.

        `info` is the newest segment that a flush has begun. The first bytes are left out: they
        share a page with the frame's header, and some change until the entry is appended.
        """
        assert self.ahead is None or self.ahead.is_durable, self.ahead
        position = layout.position - len(view)
        start = position + CHANGING_BYTES
        start -= start % -_PAGE_BYTES
        if start >= layout.position:
            return None
        file = self.rooms[layout.segment].file
        whole = Payload(file, position, [view], files, info, Index(0), is_read)
        self.aheads += 1
        rest = whole.part(start, layout.position)
        self.ahead = Ahead(data, view, position, rest, self.aheads)
        return rest

    def end_ahead(self, rest: Payload, crc: int | None) -> None:
        """Note that `rest` is durable, or (None) that it is no longer being written."""
        if self.ahead is not None and self.ahead.rest is rest:
            self.ahead.crc = crc
            if crc is None:
                self.ahead = None

    def forget_ahead(self, number: int) -> None:
        """Forget the payload of this number, if it is the last one and was not appended."""
        if self.ahead is not None and self.ahead.number == number:
            self.ahead = None

    def crc_of(self, payload: Buffer, before: int) -> int:
        """Return the CRC of some bytes and a large payload behind them; `before` is that of those.

        What was written ahead has been checksummed.
        """
        ahead = self.ahead
        if ahead is None or ahead.view is not payload or ahead.crc is None:
            return crc32c(payload, before)
        rest = len(payload) - (ahead.rest.position - ahead.position)
        return joined_crc(crc32c(payload[:-rest], before), ahead.crc, rest)

    def without_ahead(self, payloads: list[Payload]) -> list[Payload]:
        """Return the payloads without the bytes that are durable already where they belong."""
        ahead = self.ahead
        if ahead is None:
            return payloads
        assert ahead.is_durable, ahead.position
        found: list[Payload] = []
        for payload in payloads:
            at = payload.position_of(ahead.view)
            if payload.file is ahead.rest.file and at == ahead.position:
                before = payload.part(payload.position, ahead.rest.position)
                found += [before, payload.part(ahead.rest.end, payload.end)]
            else:
                found.append(payload)
        return [payload for payload in found if payload.buffers]

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
        self.begun = tuple([info for info in self.begun if info.first_index < index])
        self.segment, self.position = self.place_of(index, flushed, tail)
        self.first_timestamp = None  # a flush comes first and sets it
        self.index = index - 1
        self.durable = min(self.durable, self.index)
        self.rooms = NO_ROOMS
        self.rewind_token = token
        self.rewinds += 1

    def flushed(self, last: Index, cursor: Cursor) -> None:
        """Note that a flush up to entry `last` has ended at `cursor`."""
        self.begun = tuple([info for info in self.begun if info.first_index > last])
        if last >= self.index:
            self.index = self.durable = last
            self.segment, self.position = cursor.segment, cursor.position
            self.first_timestamp = cursor.first_timestamp

    def give_room(self, rooms: dict[int, Room]) -> None:
        """Add room that a flush has allocated."""
        both = {**self.rooms, **rooms}
        self.rooms = {n: room for n, room in both.items() if n >= self.segment} or NO_ROOMS


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
            uncache_steps(payload.file, payload.position, payload.position + payload.bytes)
    return total


def is_later(entry: EntryLike, first_timestamp: int | None, span_ms: int) -> bool:
    """Return True if the entry is too late for a segment that begins with this timestamp."""
    if first_timestamp is None or first_timestamp < 0:
        return False
    return entry.timestamp - first_timestamp > span_ms
