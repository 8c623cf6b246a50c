"""The index segments of one log: look-up and writing of one Idx per entry.

All functions block and run in the pool; small look-ups also run on the loop. The only state is
names: files are opened, read and closed, so threads share nothing.

Does not depend on the contents of log segments, the cache or the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from ids import NO_INDEX, GroupId, Index, LogId, Offset, Term
from segments.io import failpoint
from segments.io.fs import File, FileSystem, read_around, write_over
from segments.log.index import (
    IDX_BYTES,
    Idx,
    IndexDamaged,
    encode_index_header,
    pack_idx,
    place,
    read_idx,
)
from segments.log.segment_header import Sealed, SegmentInfo

_LOOK_BACK = 64


@dataclass(frozen=True, slots=True)
class IndexFiles:
    """Names and layout of one log's files, and look-up of its Idx."""

    fs: FileSystem
    directory: str
    log_id: LogId
    group_id: GroupId
    index_entries: int

    def index_path(self, number: int) -> str:
        return f"{self.directory}/{number:010d}.index"

    def open_index(self, number: int, index: Index) -> File:
        """Open an index file. Raises IndexDamaged if it does not exist."""
        try:
            return self.fs.open(self.index_path(number))
        except FileNotFoundError:
            raise IndexDamaged("index missing", index) from None

    def block(self, first: Index, end: Index) -> IdxBlock:
        """Return the Idx of entries [first, end) that lie in one index file; fewer at its end.

        They are not checked yet: one `pread` may return a thousand, and a read of large entries
        needs two of them. Raises IndexDamaged if the file does not exist.
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
        """Return the first index of [first, end) for whose Idx `is_after` is true, or `end`."""
        with IndexReader(self) as reader:
            while first < end:
                middle = (first + end) // 2
                if is_after(reader.idx(middle)):
                    end = middle
                else:
                    first = middle + 1
        return first

    def good_before(self, first: Index, end: Index) -> tuple[Index, Idx] | None:
        """Return the last entry of [first, end) whose Idx is good, with the Idx, or None."""
        with IndexReader(self) as reader:
            while first < end:
                start = Index(max(first, (end - 1) // self.index_entries * self.index_entries))
                with contextlib.suppress(IndexDamaged):
                    reader.open(start)  # without its file, all of its entries are passed over
                    start = Index(max(start, end - _LOOK_BACK))
                    block = reader.block(start, end)
                    for n in reversed(range(block.count)):
                        with contextlib.suppress(IndexDamaged):
                            return Index(start + n), block.idx(n)
                end = start
        return None


class IndexReader:
    """Look-ups that keep the last index file open, for searches."""

    __slots__ = ("_file", "_files", "_number")

    def __init__(self, files: IndexFiles) -> None:
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
        """Return the totals of a segment whose entries end at `end`. Raises IndexDamaged."""
        last = self.idx(end - 1)
        if last.segment != segment.number:
            raise IndexDamaged("index names another segment", end - 1, actual=last.segment)
        return Sealed(segment.number, last.position + last.length, last.max_timestamp)

    def block(self, first: Index, end: Index) -> IdxBlock:
        """Return the Idx of entries from `first` up to `end` or the end of their index file."""
        files = self._files
        file = self.open(first)
        _, position = place(first, files.index_entries)
        count = min(end - first, files.index_entries - first % files.index_entries)
        data = _read_rows(file, count, position)
        return IdxBlock(data, files.log_id, first, count)

    def open(self, index: Index) -> File:
        """Return the file that an entry's Idx belongs to. Raise IndexDamaged if there is none."""
        number, _ = place(index, self._files.index_entries)
        if self._file is None or number != self._number:
            if self._file is not None:
                self._file.close()
            self._file = None
            self._file = self._files.open_index(number, index)
            self._number = number
        return self._file


@dataclass(frozen=True, slots=True)
class IdxBlock:
    """Consecutive Idx as read, each checked on access."""

    data: bytes
    log_id: LogId
    first: Index
    count: int

    def idx(self, n: int) -> Idx:
        return read_idx(self.data, n * IDX_BYTES, self.log_id, self.first + n)

    def first_after(self, offset: Offset) -> int:
        """Return the number of the first Idx whose base offset is above `offset`, or `count`."""
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
    """Appends consecutive Idx, file by file. Data is written but not synced until `sync`.

    A flush and rebuilds may write the same file at once. Each writes only its own Idx and never
    data it has read, so Idx that another has truncated do not come back. In a page that cannot be
    read, the last writer leaves zeros in place of other writers' Idx, which are rebuilt when
    needed.
    """

    files: IndexFiles
    _rows: bytearray = field(default_factory=bytearray)
    _first: Index = NO_INDEX
    _file: File | None = None
    _number: int = -1
    has_new_name: bool = False
    """True if a file was created whose name is not durable yet."""

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
        """Write the added Idx."""
        if not self._rows:
            return
        files = self.files
        number, position = place(self._first, files.index_entries)
        if self._file is None or self._number != number:
            self.sync()
            self.close()
            self._file, is_new = _open_or_create(files.fs, files.index_path(number))
            self.has_new_name |= is_new
            self._number = number
            write_over(self._file, encode_index_header(files.log_id, number), 0)
        write_over(self._file, self._rows, position)
        failpoint.hit("index.written")
        self._rows = bytearray()

    def sync(self) -> None:
        """Make the written Idx and the names of new files durable."""
        if self._file is not None:
            self._file.sync()
        if self.has_new_name:
            self.files.fs.sync_directory(self.files.directory)
            self.has_new_name = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _open_or_create(fs: FileSystem, path: str) -> tuple[File, bool]:
    """Return (index file, True if it was created here).

    Other threads may create or remove the file at the same time.
    """
    while True:
        try:
            return fs.open(path), False
        except FileNotFoundError:
            pass
        try:
            file = fs.open(path, create=True)
        except FileExistsError:
            continue
        failpoint.hit("index.created")
        return file, True


def _read_rows(file: File, count: int, position: int) -> bytes:
    """Return the Idx at `position`.

    Those that the medium cannot read are replaced by zeros, which fail every check: each counts as
    damaged, and only its own segment is read to rebuild it.
    """
    data, bad = read_around(file, count * IDX_BYTES, position)
    if not bad:
        return data
    rows = bytearray(data)
    for start, end in bad:
        first = (start - position) // IDX_BYTES * IDX_BYTES
        stop = min(len(rows), -(-(end - position) // IDX_BYTES) * IDX_BYTES)
        rows[first:stop] = bytes(stop - first)
    return bytes(rows)
