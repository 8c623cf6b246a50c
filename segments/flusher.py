"""Moving committed entries from the tails into segments: the checkpoint's work.

On the loop `FlushPlan`s are made: which chunks, from where to where. In the pool `run_flushes`
writes them: long runs straight from the chunks, Idx beside them, a new segment whenever the next
frame would pass the size limit, written back in steps of a mebibyte so that the journal's writes
never wait behind a large sync, and synced at the end. Nothing counts until the journal has a
FLUSHED record; a crash or a full disk before that leaves scrap, which the next flush removes before
it begins.

Several logs go through each step together: all are written, then all are written back, then all are
synced, names last. The first sync has the file system commit its own journal with what was done to
all of them; the others find that done. Log by log each sync would be a commit, and the writes of
our journal would wait for every one.

Must not know: the journal, when to flush.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from segments import failpoint
from segments.api import CorruptRecord, EntryLike, SegmentLimits
from segments.fs import File, is_disk_full
from segments.segment import (
    SEGMENT_HEADER_BYTES,
    Cursor,
    IndexWriter,
    LogFiles,
    SegmentInfo,
    encode_segment_header,
)

WRITE_BACK_BYTES = 1 << 20
"""Written back, not synced: a sync has the file system commit its own journal, too, and the writes
of ours wait for that."""
NO_TIMESTAMP = -1
_GROW_MIN = 64 << 10
_GROW_MAX = 4 << 20


@dataclass(slots=True)
class FlushSpan:
    """Consecutive frames of one chunk: the memory from the first one's start, and their ends."""

    view: memoryview
    entries: Sequence[EntryLike]
    ends: Sequence[int]
    start: int


@dataclass(slots=True)
class FlushPlan:
    """Entries [first, last] of one log. `generation` tells whether the log was reset meanwhile."""

    files: LogFiles
    generation: int
    first: int
    last: int
    next_offset: int
    bytes: int
    cursor: Cursor
    spans: list[FlushSpan]
    limits: SegmentLimits
    segment_first: int
    """First index of the segment that is being written; 0: there is none."""
    has_scrap: bool
    """Behind the cursor there may be what another flush has left."""


@dataclass(slots=True)
class FlushResult:
    """Where the log's segments end now. `sealed` are (number, max timestamp)."""

    log_id: int
    plan: FlushPlan
    cursor: Cursor
    opened: list[SegmentInfo] = field(default_factory=list)
    sealed: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Flushed:
    """What came of several plans. `is_full`: the disk refused at least one; it has no result."""

    results: list[FlushResult] = field(default_factory=list)
    is_full: bool = False


def run_flushes(plans: Sequence[FlushPlan]) -> Flushed:
    """Write the plans and sync them. Blocks. Raises OSError, but for a full disk, which may refuse
    one log and have room for another."""
    flushed = Flushed()
    writers: list[_Writer] = []

    def each(step: Callable[[_Writer], None]) -> None:
        for writer in list(writers):
            try:
                step(writer)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                flushed.is_full = True
                writers.remove(writer)
                writer.close()

    try:
        writers += [_Writer(plan) for plan in plans]
        each(_Writer.make_directory)
        for path, files in {w.files.parent: w.files for w in writers if w.is_first}.items():
            files.fs.sync_directory(path)
        each(_Writer.open)
        each(_Writer.write)
        each(_Writer.write_back)
        each(_Writer.sync)
        each(_Writer.sync_names)
        flushed.results = [writer.result for writer in writers]
    finally:
        for writer in writers:
            writer.close()
    return flushed


class _Writer:
    """One log's flush in progress."""

    def __init__(self, plan: FlushPlan) -> None:
        self.plan = plan
        self.files = plan.files
        cursor = plan.cursor
        self.result = FlushResult(
            plan.files.log_id,
            plan,
            Cursor(cursor.segment, cursor.position, cursor.max_timestamp, cursor.first_timestamp),
        )
        self._index = IndexWriter(self.files)
        self._file: File | None = None
        self._allocated = 0
        self._behind = 0
        """Bytes before the cursor that were neither synced nor written back."""
        self._new_names = False

    @property
    def is_first(self) -> bool:
        """Whether the log has no segment yet."""
        return not self.plan.cursor.segment

    def make_directory(self) -> None:
        """One made earlier may not be durable either: who made it may have died before."""
        if self.is_first and not self.files.fs.exists(self.files.directory):
            self.files.fs.make_directory(self.files.directory)

    def open(self) -> None:
        """Have the segment that is written on, and nothing behind it."""
        files, number = self.files, self.plan.cursor.segment
        if number:
            self._file = files.fs.open(files.segment_path(number))
            self._allocated = self._file.size()
        if self.plan.has_scrap:
            files.remove_scrap(number, self.plan.first)

    def write(self) -> None:
        """Write everything; how much of it reaches the disk is the system's affair."""
        for span in self.plan.spans:
            self._add(span)
        failpoint.hit("flush.written")

    def _add(self, span: FlushSpan) -> None:
        """Write a span's frames and their Idx."""
        cursor = self.result.cursor
        limit, span_ms = self.plan.limits.bytes, self.plan.limits.span_ms
        if span_ms >= 0 and cursor.segment and cursor.first_timestamp is None:
            cursor.first_timestamp = self._first_timestamp()
        add_idx = self._index.add
        run_start = start = span.start
        for entry, end in zip(span.entries, span.ends, strict=True):
            length = end - start
            if (
                not cursor.segment
                or (cursor.position + length > limit and cursor.position > SEGMENT_HEADER_BYTES)
                or (span_ms >= 0 and _is_later(entry, cursor.first_timestamp, span_ms))
            ):
                self._write(span.view[run_start:start])
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
        self._write(span.view[run_start:start])

    def _first_timestamp(self) -> int:
        """Of the segment that a life before this one began."""
        try:
            return self.files.idx(self.plan.segment_first).max_timestamp
        except CorruptRecord:
            return NO_TIMESTAMP  # the index is rebuilt by whoever reads there

    def write_back(self) -> None:
        """What is left of the last step."""
        assert self._file is not None, "a plan without entries"
        self._index.flush()
        if self._behind:
            self._file.write_back(self._behind, self.result.cursor.position - self._behind)

    def sync(self) -> None:
        """Make the segment's content durable."""
        assert self._file is not None, "a plan without entries"
        self._file.sync()

    def sync_names(self) -> None:
        """Make it durable that new segments are there."""
        if self._new_names:
            self.files.fs.sync_directory(self.files.directory)
        failpoint.hit("flush.done")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._index.close()

    def _write(self, view: memoryview) -> None:
        """Write the frames that end at the cursor, in paced steps."""
        file, position = self._file, self.result.cursor.position - len(view)
        if not len(view):
            return
        assert file is not None, "no segment is open"
        self._grow(file, position + len(view))
        done = 0
        while done < len(view):
            step = view[done : done + WRITE_BACK_BYTES - self._behind]
            file.pwrite([step], position + done)
            done += len(step)
            self._behind += len(step)
            if self._behind >= WRITE_BACK_BYTES:
                file.write_back(self._behind, position + done - self._behind)
                self._behind = 0

    def _grow(self, file: File, end: int) -> None:
        """Lengthen the file in steps, so that most syncs find its length unchanged."""
        while end > self._allocated:
            step = min(max(self._allocated, _GROW_MIN), _GROW_MAX)
            self._allocated = min(self._allocated + step, max(self.plan.limits.bytes, end))
            file.truncate(self._allocated)

    def _roll(self, entry: EntryLike) -> None:
        """Seal the segment and begin the next with `entry`."""
        files, cursor = self.files, self.result.cursor
        if self._file is not None:
            self._file.truncate(cursor.position)
            self._file.sync()
            self._file.close()
            self._index.flush()
            self._index.sync()
            failpoint.hit("flush.sealed")
            self.result.sealed.append((cursor.segment, cursor.max_timestamp))
        info = SegmentInfo(cursor.segment + 1, entry.index, entry.base_offset)
        self._file = files.fs.open(files.segment_path(info.number), create=True)
        failpoint.hit("flush.created")
        self._file.pwrite([encode_segment_header(info, files.log_id, files.group_id)], 0)
        self._allocated = self._behind = SEGMENT_HEADER_BYTES
        self._new_names = True
        self.result.opened.append(info)
        cursor.segment, cursor.position = info.number, SEGMENT_HEADER_BYTES
        cursor.max_timestamp = cursor.first_timestamp = NO_TIMESTAMP


def _is_later(entry: EntryLike, first_timestamp: int | None, span_ms: int) -> bool:
    """Whether the entry is too late for a segment that begins with this timestamp."""
    if first_timestamp is None or first_timestamp < 0:
        return False
    return entry.timestamp - first_timestamp > span_ms
