"""Rewriting one sealed segment: the same entries, with less in them.

A segment is read from its first entry on and every entry given to the cleaner. When the first one
is met of which something goes, the segment is written anew, from its beginning, under a name of its
own; one that loses nothing stays as it is. Then the new file gets its name, and the Idx of its
entries are written over the old ones. An Idx names the file that it speaks of, so a reader finds
each entry in either of the two, whichever Idx it meets. The old file goes when nobody reads it any
more.

A crash leaves the old file whole, or both. The newer one counts then: it was synced before it got
its name. Idx that still speak of the other are rebuilt where they are met.

Each step is a job for the pool, about a mebibyte of work. Must not know: records, the loop.
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
"""As of a flush: a sync at the end finds little to write, and the journal's do not wait for it."""


class RewritingState(Enum):
    """How far one segment is."""

    LOOKING = auto()
    """Nothing was found to go so far."""
    WRITING = auto()
    """Something goes: the segment is being written anew."""
    INDEXING = auto()
    """The new file is durable under its name; Idx are being written."""
    REWRITTEN = auto()
    """All is durable."""
    UNCHANGED = auto()
    """Nothing goes."""


def read_entries(
    files: LogFiles, segments: Sequence[SegmentInfo], stop: Index, first: Index, end: Index
) -> list[StoredEntry]:
    """Entries from `first`, a step of them; `segments` are the log's, whose entries end at `stop`.
    Blocks. Raises CorruptRecord."""
    return files.healing(segments, stop, lambda: files.entries(first, end, STEP_BYTES))


class Rewriting:
    """One segment, whose entries end at `end`. `step` is for the pool, one at a time. Without a
    `cleaner` nothing goes."""

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
        """What takes the old one's place; `sealed` is known once it is rewritten."""
        self._index = segment.first_index
        self._position = SEGMENT_HEADER_BYTES
        self._written_back = 0
        self._max_timestamp = -1
        self._walk: Iterator[tuple[StoredEntry, int, int]] | None = None

    @property
    def replaces(self) -> tuple[SegmentInfo, ...]:
        """What goes once the new one is in its place."""
        return (self.old,)

    @property
    def _begun(self) -> str:
        return f"{self._files.segment_path(self.new.number)}.new"

    @property
    def is_done(self) -> bool:
        return self.state in (RewritingState.REWRITTEN, RewritingState.UNCHANGED)

    def step(self) -> int:
        """Go on; how many bytes were read. Blocks. Raises OSError, CorruptRecord."""
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
        """The entry with what is left of it; itself when all is."""
        if entry.index > self._compaction.upto or not entry.records or not len(entry.data):
            return entry
        assert self._cleaner is not None, "who has none compacts nothing"
        left = self._cleaner.clean(entry, markers_upto=self._compaction.markers_upto)
        if left is None:
            return entry
        return StoredEntry(
            entry.term, entry.index, entry.kind, left, entry.base_offset, entry.records,
            entry.timestamp,
        )  # fmt: skip

    def _begin(self) -> None:
        """Write the segment anew, from its first entry on."""
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
        """The new file is whole: from here on it counts, also for a start."""
        files = self._files
        failpoint.hit("compact.written")
        files.fs.rename(self._begun, files.segment_path(self.new.number))
        failpoint.hit("compact.named")
        files.fs.sync_directory(files.directory)
        self._walk = files.walk(self.new, self.end)
        self.state = RewritingState.INDEXING

    def _write_index(self) -> int:
        """Idx of some of the entries, as they lie in the new file. Raises CorruptRecord where that
        cannot be read: the log's entries are in the old one, and none of them is damaged."""
        assert self._walk is not None, "no file is walked over"
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
            raise  # and from the beginning at the next step
        finally:
            writer.close()
        if not is_end:
            return read
        failpoint.hit("compact.indexed")
        self.new.sealed = Sealed(self.new.number, self._position, self._max_timestamp)
        self.state = RewritingState.REWRITTEN
        return read

    def abandon(self) -> None:
        """It is not gone on with: the new file goes, and the old one stays. Idx that speak of the
        new one are rebuilt where they are met. Durable on return: a start would believe the new
        one. Blocks. Raises OSError; to be called again then."""
        fs, directory = self._files.fs, self._files.directory
        self._walk = None
        for path in (self._begun, self._files.segment_path(self.new.number)):
            if fs.exists(path):
                fs.unlink(path)
        if self.state is not RewritingState.LOOKING:
            fs.sync_directory(directory)


def bytes_of(entries: Sequence[StoredEntry]) -> int:
    return sum(len(entry.data) + FRAME_BYTES for entry in entries)
