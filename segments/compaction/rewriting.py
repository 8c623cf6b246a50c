"""Rewriting of one sealed segment: the same entries, with reduced data.

A segment is read from its first entry on, and every entry is given to the cleaner. At the first
entry that loses data, the segment is written again from its beginning under a temporary name; one
that loses nothing stays as it is. Then the new file is renamed, and the Idx of its entries
overwrite the old ones. An Idx names its file, so a reader finds each entry in one of the two files,
whichever Idx it meets. The old file is removed when it is no longer read.

A crash leaves the old file, or both. The newer one counts then, because it was synced before it was
renamed. Idx that still point to the other are rebuilt when they are met.

Each step is a job for the pool, about a mebibyte of work. Does not depend on records or the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto

from ids import Index
from segments.api import (
    Compaction,
    CorruptRecord,
    EntriesDamaged,
    RecordCleaner,
    StoredEntry,
)
from segments.format.frame import FRAME_BYTES, frame_of
from segments.format.names import rewritten
from segments.io import failpoint
from segments.io.fs import File
from segments.log.index_files import IndexWriter
from segments.log.segment import LogFiles
from segments.log.segment_header import (
    SEGMENT_HEADER_BYTES,
    Sealed,
    SegmentInfo,
    encode_segment_header,
)

STEP_BYTES = 1 << 20
WRITE_BACK_BYTES = 2 << 20
"""Write-back step, as in a flush: the final sync finds little to write, and the journal's syncs do
not wait for it."""


class RewritingState(Enum):
    """Progress of one rewriting."""

    LOOKING = auto()
    """No entry has lost data so far."""
    WRITING = auto()
    """Some data is removed: the segment is being written again."""
    INDEXING = auto()
    """The new file is durable under its name; Idx are being written."""
    REWRITTEN = auto()
    """Everything is durable."""
    UNCHANGED = auto()
    """No data is removed; the segment stays."""


def read_entries(
    files: LogFiles, segments: Sequence[SegmentInfo], stop: Index, first: Index, end: Index
) -> list[StoredEntry]:
    """Return entries from `first`, one step's worth.

    `segments` are the log's, whose entries end at `stop`. Blocks. Raises CorruptRecord.
    """
    return files.healing(segments, stop, lambda: files.entries(first, end, STEP_BYTES))


class Rewriting:
    """Rewriting of one segment, whose entries end at `end`.

    `step` runs in the pool, one at a time. Without a `cleaner` no data is removed.
    """

    def __init__(
        self,
        files: LogFiles,
        segments: Sequence[SegmentInfo],
        stop: Index,
        segment: SegmentInfo,
        end: Index,
        compaction: Compaction,
        cleaner: RecordCleaner | None,
    ) -> None:
        self._files = files
        self._segments = segments
        self._stop = stop
        self.old = segment
        self.end = end
        self._compaction = compaction
        self._cleaner = cleaner
        self.state = RewritingState.LOOKING
        self.new = SegmentInfo(
            rewritten(segment.number), segment.first_index, segment.base_offset,
            through=segment.through,
        )  # fmt: skip
        """Replacement of the old segment; `sealed` is known once it is rewritten."""
        self._index = segment.first_index
        self._position = SEGMENT_HEADER_BYTES
        self._written_back = 0
        self._max_timestamp = -1
        self._walk: Iterator[tuple[StoredEntry, int, int]] | None = None

    @property
    def replaces(self) -> tuple[SegmentInfo, ...]:
        """Segments that the new one replaces."""
        return (self.old,)

    @property
    def _begun(self) -> str:
        return f"{self._files.segment_path(self.new.number)}.new"

    @property
    def is_done(self) -> bool:
        return self.state in (RewritingState.REWRITTEN, RewritingState.UNCHANGED)

    def step(self) -> int:
        """Continue; return the number of bytes read. Blocks. Raises OSError or CorruptRecord."""
        match self.state:
            case RewritingState.LOOKING:
                return self._look()
            case RewritingState.WRITING:
                return self._write()
            case RewritingState.INDEXING:
                return self._write_index()
            case RewritingState.REWRITTEN | RewritingState.UNCHANGED:
                return 0

    def _read(self) -> list[StoredEntry]:
        return read_entries(self._files, self._segments, self._stop, self._index, self.end)

    def _look(self) -> int:
        entries = self._read()
        for entry in entries:
            if self._cleaned(entry) is not entry:
                self._begin()
                return bytes_of(entries)
        self._index += len(entries)
        if self._index >= self.end:
            self.state = RewritingState.UNCHANGED
        return bytes_of(entries)

    def _cleaned(self, entry: StoredEntry) -> StoredEntry:
        """Return the entry with its remaining data; the same object if it loses nothing."""
        if entry.index > self._compaction.upto or not entry.records or not len(entry.data):
            return entry
        assert self._cleaner is not None, "only a log with a policy is compacted"
        left = self._cleaner.clean(entry, markers_upto=self._compaction.markers_upto)
        if left is None:
            return entry
        return StoredEntry(
            entry.term, entry.index, entry.kind, left, entry.base_offset, entry.records,
            entry.timestamp,
        )  # fmt: skip

    def _begin(self) -> None:
        """Begin the new file, from the segment's first entry."""
        files = self._files
        if files.fs.exists(self._begun):
            files.fs.unlink(self._begun)
        file = files.fs.open(self._begun, create=True)
        try:
            file.pwrite([encode_segment_header(self.new, files.log_id, files.group_id)], 0)
        finally:
            file.close()
        failpoint.hit("compact.begun")
        self._index = self.old.first_index
        self.state = RewritingState.WRITING

    def _write(self) -> int:
        files, entries = self._files, self._read()
        file = files.fs.open(self._begun)
        try:
            frames = [frame_of(self._cleaned(entry), files.group_id) for entry in entries]
            file.pwrite([b"".join(frames)], self._position)
            self._position += sum(map(len, frames))
            self._index += len(entries)
            self._write_back(file)
            if self._index >= self.end:
                file.sync()
                self._name()
        finally:
            file.close()
        return bytes_of(entries)

    def _write_back(self, file: File) -> None:
        behind = self._position - self._written_back
        if behind >= WRITE_BACK_BYTES:
            file.write_back(behind, self._written_back)
            self._written_back = self._position

    def _name(self) -> None:
        """Rename the complete new file: from here on it counts, also for a start."""
        files = self._files
        failpoint.hit("compact.written")
        files.fs.rename(self._begun, files.segment_path(self.new.number))
        failpoint.hit("compact.named")
        files.fs.sync_directory(files.directory)
        self._walk = files.walk(self.new, self.end)
        self.state = RewritingState.INDEXING

    def _write_index(self) -> int:
        """Write Idx of some entries by their position in the new file.

        Raises CorruptRecord if that cannot be read: the log's entries are in the old file, and none
        of them is damaged.
        """
        assert self._walk is not None, "a scan has a file"
        files, read, is_end = self._files, 0, True
        writer = IndexWriter(files)
        try:
            for entry, position, length in self._walk:
                self._max_timestamp = max(self._max_timestamp, entry.timestamp)
                writer.add(
                    entry.index, entry.base_offset, self._max_timestamp, position, length,
                    self.new.number, entry.term, entry.records, int(entry.kind),
                )  # fmt: skip
                read += length
                if read >= STEP_BYTES:
                    is_end = False
                    break
            writer.flush()
            writer.sync()
        except EntriesDamaged as damage:
            raise CorruptRecord("segment written anew", self.new.number) from damage
        except OSError:
            self._walk, self._max_timestamp = files.walk(self.new, self.end), -1
            raise  # the next step starts from the beginning
        finally:
            writer.close()
        if not is_end:
            return read
        failpoint.hit("compact.indexed")
        self.new.sealed = Sealed(self.new.number, self._position, self._max_timestamp)
        self.state = RewritingState.REWRITTEN
        return read

    def abandon(self) -> None:
        """Remove the new file; the old one stays.

        Idx that point to the new file are rebuilt when met. Durable on return, because a start
        would use the new file. Blocks. Raises OSError; must be called again then.
        """
        fs, directory = self._files.fs, self._files.directory
        self._walk = None
        for path in (self._begun, self._files.segment_path(self.new.number)):
            if fs.exists(path):
                fs.unlink(path)
        if self.state is not RewritingState.LOOKING:
            fs.sync_directory(directory)


def bytes_of(entries: Sequence[StoredEntry]) -> int:
    return sum(len(entry.data) + FRAME_BYTES for entry in entries)
