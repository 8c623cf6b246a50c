"""Reads of one log's segment files by index, offset and timestamp, and rebuilding of its Idx.

A log segment is a 64-byte header (`segment_header.py`) followed by consecutive frames. The file
itself does not say how many of its bytes count: entries up to the log's durable end, known from the
journal, do. Anything after them is left over from an unfinished flush.

All functions block and run in the pool; small index look-ups also run on the loop. The only state
is names: files are opened, read and closed, so threads share nothing.

Does not depend on the cache or the journal.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from ids import NO_INDEX, GroupId, Index, Offset, Term, indexes
from segments.api import CorruptRecord, EntriesDamaged, OffsetOutOfRange, StoredEntry
from segments.format.frame import (
    FRAME_BYTES,
    INDEX_AND_OFFSET,
    MARK_AT,
    frame_at,
    frame_length,
    read_frame,
)
from segments.format.names import (
    COMPACTION,
    is_begun,
    rewritten,
    says_nothing,
    segment_number,
    segment_path,
    sequence_of,
)
from segments.io.fs import File, cut_off, read_around, read_whole, uncache_around
from segments.log.index import (
    Idx,
    IndexDamaged,
    place,
)
from segments.log.index_files import (
    IdxBlock,
    IndexFiles,
    IndexReader,
    IndexWriter,
)
from segments.log.segment_header import (
    SEGMENT_HEADER_BYTES,
    UNKNOWN_THROUGH,
    Sealed,
    SegmentInfo,
    TimeFound,
    decode_segment_header,
    is_emptied,
    through_of,
)

T = TypeVar("T")
_READ_ROWS_MAX = 1024
_BLOCK_ROWS = 64
_GUESSES_MAX = 4
_base_offset = attrgetter("base_offset")
_first_index = attrgetter("first_index")
_WALK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogFiles(IndexFiles):
    """One log's files: its index segments, and its log segments read through them."""

    def segment_path(self, number: int) -> str:
        return segment_path(self.directory, number)

    def indexes_below(self, first_index: Index) -> list[str]:
        """Return the paths of index files that describe only entries below `first_index`."""
        return [
            path for name in self.fs.list(self.directory)
            if (found := segment_number(name)) is not None
            and found[0] == "index" and found[1] < first_index // self.index_entries
            and not self.fs.is_directory(path := f"{self.directory}/{name}")
        ]  # fmt: skip

    def remove_scrap(self, segment: int, first: Index) -> None:
        """Remove, durably, leftovers of a flush that do not count.

        These are files after `segment` and Idx from entry `first` on. The next flush may lay out
        entries differently, and remains of the earlier layout could be mistaken for it.
        """
        fs = self.fs
        index_number, position = place(first, self.index_entries)
        last = {"log": segment, "index": index_number}
        scrap = [
            name for name in fs.list(self.directory)
            if (found := segment_number(name)) is not None
            and (sequence_of(found[1]) if found[0] == "log" else found[1]) > last[found[0]]
            and not fs.is_directory(f"{self.directory}/{name}")
        ]  # fmt: skip
        for name in reversed(scrap):  # newest first: a crash leaves no gap among the rest
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

    # --- entries ---------------------------------------------------------------------------------
    def entries(self, first: Index, end: Index, bytes_max: int) -> list[StoredEntry]:
        """Return entries of [first, end): at least one, then ≤ `bytes_max` of payload.

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
        """Return `index`, or a later index below `end` before which no entry has data left.

        Most of an old log may be such emptied segments, of millions of entries each. Raises
        IndexDamaged.
        """
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
        """Return the index of the entry in [first, end) that holds `offset`.

        Offsets grow about evenly within a segment. The position is therefore interpolated from the
        segment's ends, and a block of rows around it usually contains the entry. After some
        guesses, bisection takes over. Raises OffsetOutOfRange.
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
        """Find the first entry of [first, end) whose timestamp is ≥ `timestamp`.

        Searches the `segments` at positions `places`. All but the last of `segments` are sealed;
        unknown totals of sealed ones are determined.
        """
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
        """Return the first entry of one segment whose timestamp is ≥ `timestamp`, or `high`.

        Searches [low, high), all of one segment. An Idx has the largest timestamp so far in its
        segment, which is ascending, so about twenty Idx are read by bisection, and the entry. If
        the larger timestamp belongs to an entry before `low`, the Idx are no help, and the entries
        of this one segment are read on from there.
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
        """Return (first index, term, offset) of each run of equal terms, found by bisection.

        Searches entries [first, end).
        """
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
        """Return the term of an entry.

        If both its frame and its Idx are damaged, use the neighbours' term if they agree. Raises
        IndexDamaged.
        """
        try:
            return reader.idx(index).term
        except IndexDamaged:
            if index + 1 < end:
                term = reader.idx(index + 1).term
                if term == reader.idx(index - 1).term:
                    return term
            raise

    def _frames(self, rows: Sequence[Idx], first: Index) -> list[StoredEntry]:
        """Return the entries of `rows` up to the first damaged one.

        The rows are consecutive in one segment. Raises EntriesDamaged if the first of them is
        damaged.
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

    def _stretch(
        self, number: int, start: int, length: int, index: Index, *, from_medium: bool = False
    ) -> Stretch:
        """Return bytes of a log segment, none if the file does not exist.

        With `from_medium` the page cache is bypassed. Raises IndexDamaged if the Idx of entry
        `index` names a segment that was rewritten since.
        """
        try:
            file = self.fs.open(self.segment_path(number))
        except FileNotFoundError:
            if self._is_rewritten(number):
                raise IndexDamaged("index names a segment of before", index) from None
            return Stretch(memoryview(b""), start, [])
        try:
            if from_medium:
                uncache_around(file, length, start)
            return read_stretch(file, length, start)
        finally:
            file.close()

    def _is_rewritten(self, number: int) -> bool:
        """Return True if another file may hold the entries of a missing segment.

        It may be a rewritten form of the segment, or an older segment into which it was joined.
        Callers look there, and may find nothing.
        """
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
        """Read and check entries from `first`, about `bytes_max` bytes, none from `end` on.

        Return (index to continue with, bytes read, damaged ranges [first, end)). Reads come from
        the medium: the page cache may hold good copies long after the medium has lost the data.
        Raises IndexDamaged, also if a frame and its Idx disagree.
        """
        block = self.block(first, min(end, first + _READ_ROWS_MAX))
        rows, _ = _run(block, 0, bytes_max, any_yet=False)
        start = rows[0].position
        length = rows[-1].position + rows[-1].length - start
        read = self._stretch(rows[0].segment, start, length, first, from_medium=True)
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
        """Return (log segments by number, paths of files that do not count).

        The latter were begun but cut short by a crash, or were replaced by a rewritten form. A
        damaged header is recovered from the first frame or from the index. Foreign files are added
        to `strays`. Raises CorruptRecord if a segment that holds entries up to `flushed_index`
        follows a file that was cut short.
        """
        found: list[SegmentInfo] = []
        begun: list[int] = []
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
                if found and self._stands_for(found[-1], number):
                    replaced.append(path)
                else:
                    begun.append(number)
                continue
            if begun and self._stands_for(info, begun[-1]):
                replaced.append(self.segment_path(begun.pop()))
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
            if info.through == UNKNOWN_THROUGH and self._reaches(info, following.first_index):
                info.through = sequence_of(following.number) - 1
        for info in found:
            info.through = max(info.through, 0)
        return found, [*map(self.segment_path, begun), *replaced]

    def _stands_for(self, info: SegmentInfo, number: int) -> bool:
        """Return True if segment `info` replaces the unreadable file `number`.

        `info` is older and joined it, or is its rewritten form, or is its original to which an Idx
        still points.
        """
        if sequence_of(info.number) != sequence_of(number):
            return sequence_of(info.number) < sequence_of(number) <= info.through
        if rewritten(number) == info.number:
            return True
        try:
            return self.idx(info.first_index).segment == info.number
        except IndexDamaged:
            return False

    def _is_joined_in(self, info: SegmentInfo, other: SegmentInfo) -> bool:
        """Return True if the entries of segment `other` were joined into `info`.

        Return False if `other` is an earlier form of `info`. If the header no longer shows it, Idx
        decide: they were written before any other file was removed.
        """
        if sequence_of(info.number) == sequence_of(other.number):
            return False
        if info.through != UNKNOWN_THROUGH:
            return sequence_of(other.number) <= info.through
        try:
            return self.idx(other.first_index).segment == info.number
        except IndexDamaged:
            return False

    def _reaches(self, info: SegmentInfo, end: Index) -> bool:
        """Return True if the segment has all entries below `end`."""
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
        """Return a log segment's description from its header, or from its first frame.

        Raises CorruptRecord.
        """
        header = b""
        try:
            header = read_whole(file, SEGMENT_HEADER_BYTES, 0)
            return decode_segment_header(header, self.log_id)
        except CorruptRecord:
            head = memoryview(read_whole(file, FRAME_BYTES, SEGMENT_HEADER_BYTES))
            size = min(frame_length(head, 0), file.size())
            view = memoryview(read_whole(file, size, SEGMENT_HEADER_BYTES))
            first = read_frame(view, 0, self.group_id, SEGMENT_HEADER_BYTES)
            through = through_of(header, number, self.log_id)
            return SegmentInfo(number, first.index, first.base_offset, through=through)

    def _told_by_index(self, number: int, low: Index, end: Index) -> SegmentInfo | None:
        """Describe a segment by its Idx, because its header and first frame are unreadable.

        Idx of entries [low, end), all of which count, are searched: the segment's first entry is
        the one right after the header. None if there is no such entry. Missing Idx are passed over:
        a trim removes the oldest, and a power cut takes the newest.
        """
        stop = end
        while low < stop:
            middle = (low + stop) // 2
            known = self.good_before(low, middle + 1)
            if known is not None and sequence_of(known[1].segment) >= sequence_of(number):
                stop = known[0]
            else:
                low = middle + 1
        try:
            idx = self.idx(low) if low < end else None
        except IndexDamaged:
            return None
        if idx is None or (idx.segment, idx.position) != (number, SEGMENT_HEADER_BYTES):
            return None
        through = 0 if number == sequence_of(number) else UNKNOWN_THROUGH
        return SegmentInfo(number, low, idx.base_offset, through=through)

    def walk(
        self,
        segment: SegmentInfo,
        end: Index,
        *,
        index: Index = NO_INDEX,
        position: int = SEGMENT_HEADER_BYTES,
        damaged: list[Index] | None = None,
    ) -> Generator[tuple[StoredEntry, int, int]]:
        """Yield (entry, position, length) of a segment's frames below index `end`, in order.

        Begins with entry `index` at `position` if given. With `damaged`, a damaged frame is skipped
        and its index added there, if its length is known: from a good Idx that points to it, or
        from its own length field, with up to one bit flipped, if that leads to a good frame of the
        next entry. Raises EntriesDamaged if the frames break off before `end`.
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
        """Return the length of the frame of entry `index` at `position`; 0 if no Idx says so."""
        try:
            idx = self.idx(index)
        except IndexDamaged:
            return 0
        lies_here = (idx.segment, idx.position) == (segment.number, position)
        return idx.length if lies_here else 0

    def _damaged_length(self, file: File, index: Index, end: int, position: int) -> int:
        """Return the length of the damaged frame of entry `index`; 0 if unknown.

        It must lead to the good frame of the next entry, which is below `end`.
        """
        says = frame_length(read_stretch(file, FRAME_BYTES, position).view, 0) - FRAME_BYTES
        if index + 1 >= end or says < 0:
            return 0
        for payload in (says, *(says ^ 1 << bit for bit in range(32))):
            if self._begins(file, index + 1, position + FRAME_BYTES + payload):
                return FRAME_BYTES + payload
        return 0

    def _begins(self, file: File, index: Index, position: int) -> bool:
        """Return True if the good frame of entry `index` is at `position`."""
        room = file.size() - position
        if room < FRAME_BYTES:
            return False
        length = frame_length(read_stretch(file, FRAME_BYTES, position).view, 0)
        if not 0 < length <= room:
            return False
        read = read_stretch(file, length, position)
        return read.frame(position, length, self.group_id, index) is not None

    def find(
        self, segment: SegmentInfo, index: Index, base_offset: Offset, position: int
    ) -> list[int]:
        """Return the positions from `position` on of good frames of that entry.

        Searches byte by byte for the entry's index and offset. If there are several, all but one
        are inside payloads.
        """
        mark = INDEX_AND_OFFSET.pack(index, base_offset)
        found: list[int] = []
        with contextlib.closing(self.fs.open(self.segment_path(segment.number))) as file:
            end = file.size()
            while position < end:
                data, _ = read_around(file, _WALK_BYTES + FRAME_BYTES, position)
                at = data.find(mark, MARK_AT)
                while at >= 0:
                    if self._begins(file, index, position + at - MARK_AT):
                        found.append(position + at - MARK_AT)
                    at = data.find(mark, at + 1)
                position += _WALK_BYTES
        return sorted(set(found))

    def healing(self, segments: Sequence[SegmentInfo], end: Index, look: Callable[[], T]) -> T:
        """Return `look()`; rebuild damaged Idx that it encounters from entries below `end`."""
        healed: set[int] = set()
        while True:
            try:
                return look()
            except IndexDamaged as damage:
                if damage.position in healed:
                    break
                healed.add(damage.position)
                self._rebuild_around(segments, end, damage)
        for _ in range(len(segments) + 1):
            try:
                return look()
            except IndexDamaged as damage:
                self._rebuild_around(segments, end, damage, whole=True)
        return look()

    def _rebuild_around(
        self,
        segments: Sequence[SegmentInfo],
        end: Index,
        damage: IndexDamaged,
        *,
        whole: bool = False,
    ) -> None:
        """Rebuild only the missing Idx if the surrounding ones allow it.

        Otherwise, and with `whole`, all Idx of the segment are rebuilt.
        """
        for n, segment in enumerate(segments):
            stop = segments[n + 1].first_index if n + 1 < len(segments) else end
            if segment.first_index <= damage.position < stop:
                if not whole and self._fill_gap(segment, stop, Index(damage.position)):
                    return
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

    def _fill_gap(self, segment: SegmentInfo, end: Index, missing: Index) -> bool:
        """Write the Idx of entry `missing` again, and unreadable ones beside it.

        Covers entries from the nearest good Idx before it up to the next one that agrees with its
        frame. A power cut loses the newest Idx of a log; reading whole segments for them would
        delay a start with many logs by minutes. Return False if there is no such good Idx, if
        something is damaged, or if the Idx of `missing` can be read but is wrong: others may be
        wrong too.
        """
        with contextlib.suppress(IndexDamaged):
            self.idx(missing)
            return False
        known = self.good_before(segment.first_index, missing)
        if known is None or known[1].segment != segment.number:
            return False
        before, idx = known
        max_timestamp = idx.max_timestamp
        writer = IndexWriter(self)
        walk = self.walk(segment, end, index=before, position=idx.position)
        try:
            with contextlib.closing(walk), IndexReader(self) as reader:
                for entry, position, length in walk:
                    max_timestamp = max(max_timestamp, entry.timestamp)
                    if entry.index == before or entry.index > missing:
                        says = segment.number, position, length, max_timestamp
                        if _agrees(reader, entry, *says):
                            if entry.index == before:
                                continue
                            break
                        if entry.index == before:
                            return False
                    writer.add(
                        entry.index, entry.base_offset, max_timestamp, position, length,
                        segment.number, entry.term, entry.records, int(entry.kind),
                    )  # fmt: skip
            writer.flush()
            writer.sync()
        except EntriesDamaged:
            return False
        finally:
            writer.close()
        return True

    def rebuild(self, segment: SegmentInfo, end: Index) -> list[Index]:
        """Write the Idx of a segment's entries below `end` again from its frames.

        Return the indexes of damaged entries, whose Idx are left as they are.

        After a damaged entry without an Idx, the largest timestamp so far may be too small; when
        that entry is repaired, all Idx are written again. Raises EntriesDamaged for the part that
        could not be read.
        """
        damaged: list[Index] = []
        max_timestamp, following = -1, segment.first_index
        writer = IndexWriter(self)
        try:
            for entry, position, length in self.walk(segment, end, damaged=damaged):
                if entry.index != following:
                    writer.flush()  # the next Idx added follows a damaged entry
                    known = self._max_timestamp(segment, following, entry.index)
                    max_timestamp = max(max_timestamp, known)
                following = entry.index + 1
                max_timestamp = max(max_timestamp, entry.timestamp)
                writer.add(
                    entry.index, entry.base_offset, max_timestamp, position, length,
                    segment.number, entry.term, entry.records, int(entry.kind),
                )  # fmt: skip
        except EntriesDamaged:
            writer.flush()
            writer.sync()
            raise
        else:
            writer.flush()
            writer.sync()
        finally:
            writer.close()
        return damaged

    def _max_timestamp(self, segment: SegmentInfo, first: Index, end: Index) -> int:
        """Return the largest timestamp in the Idx of damaged entries [first, end), or -1."""
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
    """Bytes of a log segment from `start` on.

    `bad` are ranges of the file that the medium cannot read.
    """

    view: memoryview
    start: int
    bad: list[tuple[int, int]]

    def frame(
        self, position: int, length: int, group_id: GroupId, index: Index
    ) -> StoredEntry | None:
        """Return entry `index` whose frame is at `position`, or None if it is absent or damaged."""
        for first, end in self.bad:
            if first < position + length and position < end:
                return None
        return frame_at(self.view, position - self.start, group_id, index)


def read_stretch(file: File, length: int, position: int) -> Stretch:
    """Read up to `length` bytes from `position` on."""
    data, bad = read_around(file, length, position)
    return Stretch(memoryview(data), position, bad)


def _compare(row: Idx, entry: StoredEntry) -> None:
    """Check that an Idx and its entry agree. Raises IndexDamaged.

    The Idx's largest timestamp must not be below the entry's. Needed because an Idx has a check of
    only 16 bits, a frame one of 32.
    """
    says = row.term, row.base_offset, row.records, row.kind
    is_same = says == (entry.term, entry.base_offset, entry.records, entry.kind)
    if not is_same or row.max_timestamp < entry.timestamp:
        raise IndexDamaged(
            "index of another entry", entry.index, expected=entry.base_offset,
            actual=row.base_offset,
        )  # fmt: skip


def _agrees(
    reader: IndexReader,
    entry: StoredEntry,
    segment: int,
    position: int,
    length: int,
    max_timestamp: int,
) -> bool:
    """Return True if the Idx of an entry is good and points to that location."""
    try:
        idx = reader.idx(entry.index)
        _compare(idx, entry)
    except IndexDamaged:
        return False
    lies_here = (idx.segment, idx.position, idx.length) == (segment, position, length)
    return lies_here and idx.max_timestamp >= max_timestamp


def _run(block: IdxBlock, start: int, left: int, *, any_yet: bool) -> tuple[list[Idx], int]:
    """Return (Idx from number `start` on, bytes left). Raises IndexDamaged.

    The Idx lie in one segment and total at most `left` payload bytes.
    """
    rows: list[Idx] = []
    for n in range(start, block.count):
        row = block.idx(n)
        size = row.length - FRAME_BYTES or FRAME_BYTES  # empty entries have a cost, too
        if rows and row.segment != rows[0].segment:
            break
        if size > left and (any_yet or rows):
            break
        left -= size
        rows.append(row)
    return rows, left
