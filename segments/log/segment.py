"""The segment files of one log, read: by index, by offset, by timestamp; and rebuilt indexes.

A log segment is a 64-byte header and frames, end to end. Which bytes of it count is not the file's
business: entries up to the log's durable end do, as the journal says; what lies behind is scrap of
an unfinished flush.

Header: magic "VDLSEG01" 8, CRC32C of bytes [12, 64) 4, segment number 4, log id 8, group 8,
first index 8, base offset 8 (of the first entry), through 4, check of that 4, zero 8.

A segment that stands for several, because compaction joined them, has the number of the first of
them and says in `through` which one was the last; others have zero there. It is said twice, because
nothing else in the file tells it: the check is a CRC32C of its own.

Everything here blocks and runs in the pool (small index look-ups also on the loop). No state but
names: files are opened, read and closed, so nothing is shared between threads.

Must not know: the cache, the journal.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from ids import NO_INDEX, GroupId, Index, LogId, Offset, Term, indexes
from segments.api import CorruptRecord, EntriesDamaged, OffsetOutOfRange, StoredEntry
from segments.format.frame import FRAME_BYTES, frame_at, frame_length, read_frame
from segments.format.names import (
    COMPACTION,
    is_begun,
    rewritten,
    says_nothing,
    segment_number,
    segment_path,
    sequence_of,
)
from segments.io import failpoint
from segments.io.fs import File, FileSystem, cut_off, read_around, read_whole, write_over
from segments.log.index import (
    IDX_BYTES,
    Idx,
    IndexDamaged,
    encode_index_header,
    pack_idx,
    place,
    read_idx,
)

T = TypeVar("T")
SEGMENT_HEADER_BYTES = 64
SEGMENT_MAGIC = b"VDLSEG01"
SEGMENT_HEADER = struct.Struct("<8sIIQQQQII8x")
_CRC = struct.Struct("<I")
_THROUGH = struct.Struct("<II")
_THROUGH_AT = 48
_UNKNOWN = -1
"""Of `through`: the header does not say it any more, Idx have to."""
_READ_ROWS_MAX = 1024
_BLOCK_ROWS = 64
_GUESSES_MAX = 4
_base_offset = attrgetter("base_offset")
_first_index = attrgetter("first_index")
_WALK_BYTES = 1 << 20
assert SEGMENT_HEADER.size == SEGMENT_HEADER_BYTES, SEGMENT_HEADER.size


class Sealed(NamedTuple):
    """What a segment comes to that no flush adds to any more."""

    number: int
    bytes: int
    max_timestamp: int


class TimeFound(NamedTuple):
    """What a look-up by time found: the entry's index, or -1; and what it had to learn of
    segments."""

    entry: Index
    learned: list[Sealed]


def is_emptied(sealed: Sealed, first: Index, end: Index) -> bool:
    """Whether nothing is left of any of a segment's entries [first, end)."""
    return sealed.bytes <= SEGMENT_HEADER_BYTES + FRAME_BYTES * (end - first)


@dataclass(slots=True)
class SegmentInfo:
    """One log segment. `sealed` is known once it is sealed; of one that an earlier life sealed,
    once somebody has looked."""

    number: int
    first_index: Index
    base_offset: Offset
    sealed: Sealed | None = None
    through: int = 0
    """Which of the log's segments was the last of those that are joined in it; 0: it is one by
    itself."""

    @property
    def last_sequence(self) -> int:
        """Of the last segment that it stands for: the one behind it has the next."""
        return max(self.through, sequence_of(self.number))


@dataclass(slots=True)
class Cursor:
    """Where the next frame of a log goes. `segment` 0: there is no segment yet."""

    segment: int = 0
    position: int = 0
    max_timestamp: int = -1
    first_timestamp: int | None = None
    """Of the segment's first entry; None when it is not known and has to be looked up."""


def encode_segment_header(info: SegmentInfo, log_id: LogId, group_id: GroupId) -> bytes:
    """The header of a log segment."""
    header = bytearray(
        SEGMENT_HEADER.pack(
            SEGMENT_MAGIC, 0, info.number, log_id, group_id, info.first_index, info.base_offset,
            info.through, _through_check(info.through, log_id),
        )
    )  # fmt: skip
    _CRC.pack_into(header, 8, crc32c(memoryview(header)[12:]))
    return bytes(header)


def decode_segment_header(data: bytes, log_id: LogId) -> SegmentInfo:
    """Raises CorruptRecord."""
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


def _through_of(data: bytes, number: int, log_id: LogId) -> int:
    """What a header that is damaged elsewhere says of the segments that are joined in it."""
    if number == sequence_of(number):
        return 0  # what was joined has been rewritten
    if len(data) < SEGMENT_HEADER_BYTES:
        return _UNKNOWN
    through, check = _THROUGH.unpack_from(data, _THROUGH_AT)
    return through if through and check == _through_check(through, log_id) else _UNKNOWN


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Names and shape of one log's files."""

    fs: FileSystem
    directory: str
    log_id: LogId
    group_id: GroupId
    index_entries: int

    def segment_path(self, number: int) -> str:
        return segment_path(self.directory, number)

    def index_path(self, number: int) -> str:
        return f"{self.directory}/{number:010d}.index"

    def remove_scrap(self, segment: int, first: Index) -> None:
        """Remove, durably, what a flush has left that did not count: files behind `segment` and Idx
        from entry `first` on. Entries may be laid out differently next time, and what is left of an
        earlier layout could pass for this one."""
        fs = self.fs
        index_number, position = place(first, self.index_entries)
        last = {"log": segment, "index": index_number}
        scrap = [
            name for name in fs.list(self.directory)
            if (found := segment_number(name)) is not None
            and (sequence_of(found[1]) if found[0] == "log" else found[1]) > last[found[0]]
            and not fs.is_directory(f"{self.directory}/{name}")
        ]  # fmt: skip
        for name in reversed(scrap):  # newest first: a crash leaves no gap before what is left
            fs.unlink(f"{self.directory}/{name}")
        if fs.exists(self.index_path(index_number)):
            file = self.open_index(index_number, first)
            try:
                if file.size() > position:
                    cut_off(file, position)
                    file.sync()
            finally:
                file.close()
        if scrap:
            fs.sync_directory(self.directory)

    def open_index(self, number: int, index: Index) -> File:
        """Raises IndexDamaged when there is no such file."""
        try:
            return self.fs.open(self.index_path(number))
        except FileNotFoundError:
            raise IndexDamaged("index missing", index) from None

    # --- Idx -----------------------------------------------------------------------------------
    def block(self, first: Index, end: Index) -> IdxBlock:
        """Idx of entries [first, end) that lie in one index file; fewer at that file's end. They
        are not looked at yet: of a thousand that one `pread` gives a read of large entries needs
        two.

        Raises IndexDamaged when there is no such file.
        """
        number, position = place(first, self.index_entries)
        count = min(end - first, self.index_entries - first % self.index_entries)
        file = self.open_index(number, first)
        try:
            data = _read_rows(file, count, position)
        finally:
            file.close()
        return IdxBlock(data, self.log_id, first, count)

    def idx(self, index: Index) -> Idx:
        return self.block(index, index + 1).idx(0)

    def search(self, first: Index, end: Index, is_after: Callable[[Idx], bool]) -> Index:
        """The first index of [first, end) for whose Idx `is_after` holds, or `end`."""
        with IndexReader(self) as reader:
            while first < end:
                middle = (first + end) // 2
                if is_after(reader.idx(middle)):
                    end = middle
                else:
                    first = middle + 1
        return first

    # --- entries ---------------------------------------------------------------------------------
    def entries(self, first: Index, end: Index, bytes_max: int) -> list[StoredEntry]:
        """Entries [first, end), at least one, then ≤ `bytes_max` of payload.

        Raises CorruptRecord.
        """
        found: list[StoredEntry] = []
        left = bytes_max
        while first < end:
            block = self.block(first, min(end, first + _READ_ROWS_MAX))
            start = 0
            while start < block.count:
                rows, left = _run(block, start, left, any_yet=bool(found))
                if not rows:
                    return found
                part = self._frames(rows, first + start)
                found += part
                if len(part) < len(rows):
                    return found
                start += len(rows)
            first += block.count
        return found

    def skip_emptied(self, segments: Sequence[SegmentInfo], index: Index, end: Index) -> Index:
        """`index`, or where to read on instead, below `end`: nothing is left of any entry before
        that. Most of an old log may be segments like that, of millions of entries each. Raises
        IndexDamaged."""
        place = max(bisect_right(segments, index, key=_first_index) - 1, 0)
        with IndexReader(self) as reader:
            for segment, following in pairwise(segments[place:]):
                stop = following.first_index
                sealed = segment.sealed or reader.sealed(segment, stop)
                if index >= end or not is_emptied(sealed, segment.first_index, stop):
                    break
                index = max(index, min(stop, end - 1))
        return index

    def index_of(
        self, segments: Sequence[SegmentInfo], offset: Offset, first: Index, end: Index
    ) -> Index:
        """Index of the entry in [first, end) that holds `offset`. Raises OffsetOutOfRange.

        Offsets grow about evenly within a segment: the place is guessed from its ends, and a block
        of rows looked at, which holds it as a rule; after some guesses the range is halved instead.
        """
        at = bisect_right(segments, offset, key=_base_offset) - 1
        low_offset, high_offset = offset, 0
        if at >= 0 and first <= segments[at].first_index < end:
            first, low_offset = segments[at].first_index, segments[at].base_offset
        if at + 1 < len(segments) and segments[at + 1].first_index < end:
            end, high_offset = segments[at + 1].first_index, segments[at + 1].base_offset
        low, high = first, end
        guesses = 0
        with IndexReader(self) as reader:
            while low < high:
                guess = (low + high) // 2
                if low_offset < offset < high_offset and guesses < _GUESSES_MAX:
                    guess = low + (offset - low_offset) * (high - low) // (high_offset - low_offset)
                    guesses += 1
                block = max(low, min(guess - _BLOCK_ROWS // 2, high - _BLOCK_ROWS))
                rows = reader.block(block, min(high, block + _BLOCK_ROWS))
                if rows.idx(0).base_offset > offset:
                    high, high_offset = block, rows.idx(0).base_offset
                elif rows.idx(rows.count - 1).base_offset <= offset:
                    low = block + rows.count
                    low_offset = rows.idx(rows.count - 1).base_offset
                else:
                    low = high = block + rows.first_after(offset)
        if low == first:
            raise OffsetOutOfRange(f"offset {offset} is below entry {first}")
        return low - 1

    def index_of_timestamp(
        self,
        segments: Sequence[SegmentInfo],
        places: Sequence[int],
        timestamp: int,
        first: Index,
        end: Index,
    ) -> TimeFound:
        """The first entry of [first, end) whose timestamp is ≥ `timestamp` in those of `segments`
        that are at `places`. All but the last of `segments` are sealed: what they come to is
        learned where it is not known."""
        learned: list[Sealed] = []
        with IndexReader(self) as reader:
            for n in places:
                segment, stop = segments[n], end
                if n + 1 < len(segments):
                    stop = segments[n + 1].first_index
                    if segment.sealed is None:
                        learned.append(reader.sealed(segment, stop))
                        if learned[-1].max_timestamp < timestamp:
                            continue
                low, high = max(first, segment.first_index), min(stop, end)
                found = self._timed(low, high, timestamp) if low < high else high
                if found < high:
                    return TimeFound(found, learned)
        return TimeFound(Index(-1), learned)

    def _timed(self, low: Index, high: Index, timestamp: int) -> Index:
        """The first entry of [low, high), all of one segment, whose timestamp is ≥ `timestamp`, or
        `high`.

        "Largest so far" starts anew with each segment, so within one it is ordered: some twenty Idx
        are read, and the entry. Where what is larger lies before `low`, it says nothing of what
        follows, and entries are read on from there, of this one segment.
        """
        found = self.search(low, high, lambda idx: idx.max_timestamp >= timestamp)
        bytes_max = 0
        while found < high:
            entries = self.entries(found, high, bytes_max)
            for entry in entries:
                if entry.timestamp >= timestamp:
                    return entry.index
            found += len(entries)
            bytes_max = _WALK_BYTES
        return high

    def term_runs(self, first: Index, end: Index) -> list[tuple[Index, Term, Offset]]:
        """(first index, term, offset) of each run of equal terms in [first, end), by search."""
        runs: list[tuple[Index, Term, Offset]] = []
        with IndexReader(self) as reader:
            while first < end:
                idx = reader.idx(first)
                runs.append((first, idx.term, idx.base_offset))
                low, high = first + 1, end
                while low < high:
                    middle = (low + high) // 2
                    if self._term(reader, middle, end) == idx.term:
                        low = middle + 1
                    else:
                        high = middle
                first = low
        return runs

    def _term(self, reader: IndexReader, index: Index, end: Index) -> Term:
        """Term of an entry. Where both frame and Idx are damaged, its neighbours tell, if they
        agree. Raises IndexDamaged."""
        try:
            return reader.idx(index).term
        except IndexDamaged:
            if index + 1 < end:
                term = reader.idx(index + 1).term
                if term == reader.idx(index - 1).term:
                    return term
            raise

    def _frames(self, rows: Sequence[Idx], first: Index) -> list[StoredEntry]:
        """The entries of `rows`, which lie end to end in one segment, up to the first damaged one.

        Raises EntriesDamaged when that is the first of all.
        """
        start = rows[0].position
        length = rows[-1].position + rows[-1].length - start
        read = self._stretch(rows[0].segment, start, length, first)
        found: list[StoredEntry] = []
        for n, row in enumerate(rows):
            entry = read.frame(row.position, row.length, self.group_id, first + n)
            if entry is None:
                break
            _compare(row, entry)
            found.append(entry)
        if not found:
            bad = 1
            while bad < len(rows) and not read.frame(
                rows[bad].position, rows[bad].length, self.group_id, first + bad
            ):
                bad += 1
            raise EntriesDamaged(first, first + bad, rows[0].position)
        return found

    def _stretch(self, number: int, start: int, length: int, index: Index) -> Stretch:
        """Bytes of a log segment; nothing where there is none. Raises IndexDamaged when the Idx of
        entry `index` names one that was rewritten since."""
        try:
            file = self.fs.open(self.segment_path(number))
        except FileNotFoundError:
            if self._is_rewritten(number):
                raise IndexDamaged("index names a segment of before", index) from None
            return Stretch(memoryview(b""), start, [])
        try:
            return read_stretch(file, length, start)
        finally:
            file.close()

    def _is_rewritten(self, number: int) -> bool:
        """Whether there may be another file with the entries of a segment that is gone: another
        one of the same, or an older one in which it may be joined with others. Who believes it
        looks there, and finds them or not."""
        if number != sequence_of(number):
            return True
        nearest = 0
        for name in self.fs.list(self.directory):
            kind, other = segment_number(name) or ("", 0)
            if kind == "log" and sequence_of(nearest) <= sequence_of(other) <= number:
                nearest = other
        return nearest != sequence_of(nearest)

    def check(
        self, first: Index, end: Index, bytes_max: int
    ) -> tuple[Index, int, list[tuple[Index, Index]]]:
        """Read entries from `first`, about `bytes_max` of them, none from `end` on: (index to go
        on with, bytes read, ranges [first, end) that are damaged). Raises IndexDamaged, also where
        a frame and its Idx disagree."""
        block = self.block(first, min(end, first + _READ_ROWS_MAX))
        rows, _ = _run(block, 0, bytes_max, any_yet=False)
        start = rows[0].position
        length = rows[-1].position + rows[-1].length - start
        read = self._stretch(rows[0].segment, start, length, first)
        bad: list[tuple[Index, Index]] = []
        for n, row in enumerate(rows):
            entry = read.frame(row.position, row.length, self.group_id, first + n)
            if entry is not None:
                _compare(row, entry)
            else:
                joined = bad.pop()[0] if bad and bad[-1][1] == first + n else first + n
                bad.append((joined, first + n + 1))
        return first + len(rows), length, bad

    # --- rebuilding ------------------------------------------------------------------------------
    def segments(
        self, flushed_index: Index, strays: list[str] | None = None
    ) -> tuple[list[SegmentInfo], list[str]]:
        """(log segments by number, files that do not count: begun, and cut short by a crash; or
        rewritten since). A header that is damaged is told by the first frame, or by the index. What
        is not ours is added to `strays`.

        Raises CorruptRecord when one that holds entries up to `flushed_index` is behind such a
        file."""
        found: list[SegmentInfo] = []
        begun: list[str] = []
        replaced: list[str] = []
        for name in self.fs.list(self.directory):
            path = f"{self.directory}/{name}"
            kind, number = segment_number(name) or ("", 0)
            if is_begun(name):
                replaced.append(path)
            elif not kind and strays is not None and not says_nothing(name) and name != COMPACTION:
                strays.append(path)
            if kind != "log":
                if kind and strays is not None and self.fs.is_directory(path):
                    strays.append(path)
                continue
            try:
                file = self.fs.open(path)
            except IsADirectoryError:
                if strays is not None:
                    strays.append(path)
                continue
            info: SegmentInfo | None
            try:
                info = self._look(file, number)
            except CorruptRecord:
                low = found[-1].first_index if found else NO_INDEX
                info = self._told_by_index(number, low, flushed_index + 1)
            finally:
                file.close()
            if info is None:
                begun.append(path)
                continue
            if begun and info.first_index <= flushed_index:
                raise CorruptRecord("segment header", info.number)
            if found and self._is_joined_in(found[-1], info):
                replaced.append(path)
                continue
            if found and sequence_of(found[-1].number) == sequence_of(info.number):
                if rewritten(info.number) == found[-1].number:
                    found[-1], info = info, found[-1]
                replaced.append(self.segment_path(found.pop().number))
            found.append(info)
        for info, following in pairwise(found):
            if info.through == _UNKNOWN and self._reaches(info, following.first_index):
                info.through = sequence_of(following.number) - 1
        for info in found:
            info.through = max(info.through, 0)
        return found, begun + replaced

    def _is_joined_in(self, info: SegmentInfo, other: SegmentInfo) -> bool:
        """Whether the entries of a segment, which is not `info`'s own of before, are in that. Where
        the header does not say it any more: Idx were written before any other file went."""
        if sequence_of(info.number) == sequence_of(other.number):
            return False
        if info.through != _UNKNOWN:
            return sequence_of(other.number) <= info.through
        try:
            return self.idx(other.first_index).segment == info.number
        except IndexDamaged:
            return False

    def _reaches(self, info: SegmentInfo, end: Index) -> bool:
        """Whether the segment has all entries below `end`."""
        try:
            return self.idx(end - 1).segment == info.number
        except IndexDamaged:
            pass
        last = info.first_index - 1
        with contextlib.suppress(EntriesDamaged):
            for entry, _, _ in self.walk(info, end, damaged=[]):
                last = entry.index
        return last == end - 1

    def _look(self, file: File, number: int) -> SegmentInfo:
        """What a log segment says of itself. Raises CorruptRecord."""
        header = b""
        try:
            header = read_whole(file, SEGMENT_HEADER_BYTES, 0)
            return decode_segment_header(header, self.log_id)
        except CorruptRecord:
            head = memoryview(read_whole(file, FRAME_BYTES, SEGMENT_HEADER_BYTES))
            size = min(frame_length(head, 0), file.size())
            view = memoryview(read_whole(file, size, SEGMENT_HEADER_BYTES))
            first = read_frame(view, 0, self.group_id, SEGMENT_HEADER_BYTES)
            through = _through_of(header, number, self.log_id)
            return SegmentInfo(number, first.index, first.base_offset, through=through)

    def _told_by_index(self, number: int, low: Index, end: Index) -> SegmentInfo | None:
        """What Idx of entries [low, end), all of which count, say of a segment that says nothing of
        itself: its first entry is the one that lies behind the header. None: there is no such."""
        stop = end
        while low < stop:
            middle = (low + stop) // 2
            try:
                is_after = sequence_of(self.idx(middle).segment) >= sequence_of(number)
            except IndexDamaged:  # below the oldest there are none
                is_after = False
            if is_after:
                stop = middle
            else:
                low = middle + 1
        try:
            idx = self.idx(low) if low < end else None
        except IndexDamaged:
            return None
        if idx is None or (idx.segment, idx.position) != (number, SEGMENT_HEADER_BYTES):
            return None
        through = 0 if number == sequence_of(number) else _UNKNOWN
        return SegmentInfo(number, low, idx.base_offset, through=through)

    def walk(
        self,
        segment: SegmentInfo,
        end: Index,
        *,
        index: Index = NO_INDEX,
        position: int = SEGMENT_HEADER_BYTES,
        damaged: list[Index] | None = None,
    ) -> Iterator[tuple[StoredEntry, int, int]]:
        """(entry, position, length) of a segment's frames below index `end`, in order; from entry
        `index` at `position` when that is given.

        With `damaged`, a damaged frame is passed over and noted there, if its Idx is good and says
        that it lies here, or if its own length, but for one bit, leads to a good one of the next
        entry. Raises EntriesDamaged where the frames break off
        before `end`.
        """
        index = index or segment.first_index
        try:
            file = self.fs.open(self.segment_path(segment.number))
        except FileNotFoundError:
            raise EntriesDamaged(index, end, position) from None
        try:
            size = file.size()
            read = Stretch(memoryview(b""), position, [])
            while index < end:
                at = position - read.start
                need = frame_length(read.view, at)
                if need == 0 or at + need > len(read.view):
                    read = read_stretch(file, _WALK_BYTES, position)
                    need = frame_length(read.view, 0)
                    if need > len(read.view) and need <= size - position:
                        read = read_stretch(file, need, position)
                entry = read.frame(position, need, self.group_id, index)
                if entry is not None:
                    yield entry, position, need
                else:
                    if damaged is None:
                        raise EntriesDamaged(index, end, position)
                    need = self._length_by_idx(segment, index, position)
                    need = need or self._damaged_length(file, index, end, position)
                    if not need:
                        raise EntriesDamaged(index, end, position)
                    damaged.append(index)
                position += need
                index += 1
        finally:
            file.close()

    def _length_by_idx(self, segment: SegmentInfo, index: Index, position: int) -> int:
        """Length of the frame of entry `index`, which lies there; 0 where no Idx says so."""
        try:
            idx = self.idx(index)
        except IndexDamaged:
            return 0
        lies_here = (idx.segment, idx.position) == (segment.number, position)
        return idx.length if lies_here else 0

    def _damaged_length(self, file: File, index: Index, end: int, position: int) -> int:
        """Length of the damaged frame of entry `index`: behind it lies the good one of the next,
        which is below `end`. 0: that cannot be told."""
        says = frame_length(read_stretch(file, FRAME_BYTES, position).view, 0) - FRAME_BYTES
        if index + 1 >= end or says < 0:
            return 0
        for payload in (says, *(says ^ 1 << bit for bit in range(32))):
            if self._begins(file, index + 1, position + FRAME_BYTES + payload):
                return FRAME_BYTES + payload
        return 0

    def _begins(self, file: File, index: Index, position: int) -> bool:
        """Whether the good frame of entry `index` lies there."""
        room = file.size() - position
        if room < FRAME_BYTES:
            return False
        length = frame_length(read_stretch(file, FRAME_BYTES, position).view, 0)
        if not 0 < length <= room:
            return False
        read = read_stretch(file, length, position)
        return read.frame(position, length, self.group_id, index) is not None

    def healing(self, segments: Sequence[SegmentInfo], end: Index, look: Callable[[], T]) -> T:
        """`look()`, rebuilding from entries below `end` the Idx it stumbles over."""
        for _ in range(len(segments) + 1):
            try:
                return look()
            except IndexDamaged as damage:
                self._rebuild_around(segments, end, damage)
        return look()

    def _rebuild_around(
        self, segments: Sequence[SegmentInfo], end: Index, damage: IndexDamaged
    ) -> None:
        for n, segment in enumerate(segments):
            stop = segments[n + 1].first_index if n + 1 < len(segments) else end
            if segment.first_index <= damage.position < stop:
                try:
                    damaged = self.rebuild(segment, stop)
                except EntriesDamaged as found:
                    if found.first <= damage.position:
                        raise
                else:
                    if damage.position in damaged:
                        index = Index(damage.position)
                        raise EntriesDamaged(index, index + 1, 0)
                return
        raise damage

    def rebuild(self, segment: SegmentInfo, end: Index) -> list[Index]:
        """Write the Idx of a segment's entries below `end` again from its frames; those that are
        damaged, whose Idx are left as they are. The largest timestamp so far may be too small
        behind one of them that has no Idx: when that is repaired, all are written again.

        Raises EntriesDamaged behind what could be read.
        """
        damaged: list[Index] = []
        max_timestamp, following = -1, segment.first_index
        writer = IndexWriter(self)
        try:
            for entry, position, length in self.walk(segment, end, damaged=damaged):
                if entry.index != following:
                    writer.flush()  # what is added next begins behind a damaged entry
                    known = self._max_timestamp(segment, following, entry.index)
                    max_timestamp = max(max_timestamp, known)
                following = entry.index + 1
                max_timestamp = max(max_timestamp, entry.timestamp)
                writer.add(
                    entry.index, entry.base_offset, max_timestamp, position, length,
                    segment.number, entry.term, entry.records, int(entry.kind),
                )  # fmt: skip
        finally:
            writer.flush()
            writer.sync()
            writer.close()
        return damaged

    def _max_timestamp(self, segment: SegmentInfo, first: Index, end: Index) -> int:
        """The largest timestamp that Idx of damaged entries [first, end) know, or -1."""
        largest = -1
        for index in indexes(first, end):
            try:
                idx = self.idx(index)
            except IndexDamaged:
                continue
            if idx.segment == segment.number:
                largest = max(largest, idx.max_timestamp)
        return largest


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a log segment from `start` on; `bad` are ranges of the file that the medium cannot
    give."""

    view: memoryview
    start: int
    bad: list[tuple[int, int]]

    def frame(
        self, position: int, length: int, group_id: GroupId, index: Index
    ) -> StoredEntry | None:
        """The entry `index` whose frame is this, or None when it is not there or damaged."""
        for first, end in self.bad:
            if first < position + length and position < end:
                return None
        return frame_at(self.view, position - self.start, group_id, index)


def read_stretch(file: File, length: int, position: int) -> Stretch:
    """Up to `length` bytes from `position` on."""
    data, bad = read_around(file, length, position)
    return Stretch(memoryview(data), position, bad)


class IndexReader:
    """Keeps the index file of the last look-up open, for searches."""

    __slots__ = ("_file", "_files", "_number")

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._number = -1
        self._file: File | None = None

    def __enter__(self) -> IndexReader:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._file is not None:
            self._file.close()

    def idx(self, index: Index) -> Idx:
        return self.block(index, index + 1).idx(0)

    def sealed(self, segment: SegmentInfo, end: Index) -> Sealed:
        """What a segment comes to whose entries end at `end`. Raises IndexDamaged."""
        last = self.idx(end - 1)
        if last.segment != segment.number:
            raise IndexDamaged("index names another segment", end - 1, actual=last.segment)
        return Sealed(segment.number, last.position + last.length, last.max_timestamp)

    def block(self, first: Index, end: Index) -> IdxBlock:
        """Idx of entries from `first`, up to `end` or the end of their index file."""
        files = self._files
        number, position = place(first, files.index_entries)
        if self._file is None or number != self._number:
            if self._file is not None:
                self._file.close()
            self._file = None
            self._file = files.open_index(number, first)
            self._number = number
        count = min(end - first, files.index_entries - first % files.index_entries)
        data = _read_rows(self._file, count, position)
        return IdxBlock(data, files.log_id, first, count)


@dataclass(frozen=True, slots=True)
class IdxBlock:
    """Consecutive Idx as they were read, each checked when it is looked at."""

    data: bytes
    log_id: LogId
    first: Index
    count: int

    def idx(self, n: int) -> Idx:
        return read_idx(self.data, n * IDX_BYTES, self.log_id, self.first + n)

    def first_after(self, offset: Offset) -> int:
        """Number of the first Idx whose base offset is above `offset`, or `count`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.idx(middle).base_offset > offset:
                high = middle
            else:
                low = middle + 1
        return low


@dataclass(slots=True)
class IndexWriter:
    """Appends consecutive Idx, file by file. Written, not synced, until `sync`.

    Several may be at one file, a flush and rebuilds: each writes what is its own and never what it
    has read, so nothing that another has cut off comes back. Where a page cannot be read, the last
    one to write it leaves zeros in place of the others' Idx, which are rebuilt when they are
    missed.
    """

    files: LogFiles
    _rows: bytearray = field(default_factory=bytearray)
    _first: Index = NO_INDEX
    _file: File | None = None
    _number: int = -1

    def add(
        self, index: Index, base_offset: Offset, max_timestamp: int, position: int, length: int,
        segment: int, term: Term, records: int, kind: int,
    ) -> None:  # fmt: skip
        if index % self.files.index_entries == 0:
            self.flush()
        rows = self._rows
        if not rows:
            self._first = index
        at = len(rows)
        rows += bytes(IDX_BYTES)
        pack_idx(
            rows, at, self.files.log_id, index, base_offset, max_timestamp, position, length,
            segment, term, records, kind,
        )  # fmt: skip

    def flush(self) -> None:
        """Write what was added."""
        if not self._rows:
            return
        files = self.files
        number, position = place(self._first, files.index_entries)
        if self._file is None or self._number != number:
            self.sync()
            self.close()
            self._file = _open_or_create(files.fs, files.index_path(number))
            self._number = number
            write_over(self._file, encode_index_header(files.log_id, number), 0)
        write_over(self._file, self._rows, position)
        failpoint.hit("index.written")
        self._rows = bytearray()

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _open_or_create(fs: FileSystem, path: str) -> File:
    """An index file, which another thread may create or remove at the same time."""
    while True:
        try:
            return fs.open(path)
        except FileNotFoundError:
            pass
        try:
            file = fs.open(path, create=True)
        except FileExistsError:
            continue
        failpoint.hit("index.created")
        return file


def _read_rows(file: File, count: int, position: int) -> bytes:
    """Idx as they lie there; zeros, which fail every check, for those that the medium cannot give:
    each is then met as a damaged one, and only its segment is looked at for it."""
    data, bad = read_around(file, count * IDX_BYTES, position)
    if not bad:
        return data
    rows = bytearray(data)
    for start, end in bad:
        first = (start - position) // IDX_BYTES * IDX_BYTES
        stop = min(len(rows), -(-(end - position) // IDX_BYTES) * IDX_BYTES)
        rows[first:stop] = bytes(stop - first)
    return bytes(rows)


def _compare(row: Idx, entry: StoredEntry) -> None:
    """Idx have a check of 16 bits, frames one of 32: what they both say must be the same, and the
    largest timestamp so far no less than this one. Raises IndexDamaged."""
    says = row.term, row.base_offset, row.records, row.kind
    is_same = says == (entry.term, entry.base_offset, entry.records, entry.kind)
    if not is_same or row.max_timestamp < entry.timestamp:
        raise IndexDamaged(
            "index of another entry", entry.index, expected=entry.base_offset,
            actual=row.base_offset,
        )  # fmt: skip


def _run(block: IdxBlock, start: int, left: int, *, any_yet: bool) -> tuple[list[Idx], int]:
    """(Idx from number `start` on that are in one segment and come to `left` payload bytes, what is
    left). Raises IndexDamaged."""
    rows: list[Idx] = []
    for n in range(start, block.count):
        row = block.idx(n)
        size = row.length - FRAME_BYTES or FRAME_BYTES  # many of nothing are much, too
        if rows and row.segment != rows[0].segment:
            break
        if size > left and (any_yet or rows):
            break
        left -= size
        rows.append(row)
    return rows, left
