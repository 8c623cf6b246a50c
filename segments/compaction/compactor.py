"""Compaction of one log at a time, as seen by the loop: steps in the pool with pauses.

First the entries are scanned for keys that supersede earlier records. Then each sealed segment that
contains some of the entries is rewritten, oldest first; segments without remaining data are
skipped. If not all keys fitted in memory, this is one pass of several: each removes the records
superseded by its keys and leaves the others to the next. A pass rewrites nothing before the
previous pass's old files are gone, so a segment never has more than two files. At the end a note
records how far the log is compacted. Small adjacent segments are joined some seconds later, when no
old file of the log is left. Nothing depends on joins, and a compaction waits for the join of at
most one log.

A log may be reset, trimmed, damaged or deleted meanwhile. Completed work stays: a partial
compaction is valid, and the next one does the rest.

Does not depend on records, or on why and when a log is compacted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from itertools import pairwise
from typing import Protocol

from ids import Index
from segments.api import (
    Compaction,
    EntriesDamaged,
    RecordCleaner,
    StorageError,
    StoredEntry,
    Workers,
)
from segments.compaction import joining
from segments.compaction.joining import Joining
from segments.compaction.mending import mend
from segments.compaction.note import write_note
from segments.compaction.rewriting import (
    Rewriting,
    RewritingState,
    bytes_of,
    read_entries,
)
from segments.io import failpoint
from segments.io.fs import DISK_FULL_RETRY_MS, is_refused
from segments.io.removals import Job, Removal, Removals
from segments.log.log import DiskLog
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo, is_emptied

OLD_FILE_MS = 10_000
"""Time for which the old file of a rewritten segment is kept for reads that have begun."""
FILES_AT_ONCE = 64
"""Files removed by one job. Progress monitoring counts jobs, so a job must not be long."""


class Phase(Enum):
    """Current activity of a compaction."""

    SCANNING = auto()
    """Entries are scanned for their keys."""
    CLEANING = auto()
    """Segments are rewritten."""
    NOTING = auto()
    """The work is done; the note is being written."""
    CHOOSING = auto()
    """Segments to join are being chosen."""
    JOINING = auto()
    """Segments are being joined."""


class RemoveOld:
    """Removes old files of rewritten segments, a limited number per call.

    Returns True while more are left. Blocks.
    """

    def __init__(self, files: LogFiles, paths: Sequence[str]) -> None:
        self._files = files
        self._paths = paths

    def __call__(self) -> bool:
        fs = self._files.fs
        for path in self._paths[:FILES_AT_ONCE]:
            if fs.exists(path):
                fs.unlink(path)
                failpoint.hit("compact.removed")
        self._paths = self._paths[FILES_AT_ONCE:]
        fs.sync_directory(self._files.directory)
        return bool(self._paths)


class CompactorOwner(Protocol):
    """Methods that the compactor requires of the store."""

    def compaction_may_go_on(self) -> bool:
        """Return True if the store is open."""

    def compaction_failed(self, error: BaseException) -> None:
        """React to a disk that can no longer be trusted."""


class Compactor:
    """The current compaction, if any, and old files waiting for removal."""

    def __init__(self, workers: Workers, removals: Removals, owner: CompactorOwner) -> None:
        self._workers = workers
        self._removals = removals
        self._owner = owner
        self._run: _Run | None = None
        self._waiting: _Run | None = None
        """Compaction that waits for the end of a join."""
        self._held_up = False
        """True if the current run waits until its log has no old files."""
        self._to_join: dict[int, _Run] = {}
        """Joins to do, by log id, in order. Invariant: at most one per log compacted by this
        process."""
        self._old_files: Counter[int] = Counter()
        """Number of removals pending per log id. Invariant: a segment never has more than two
        files; otherwise a start could not tell which is the newest."""
        self.read_bytes = 0
        self.freed_bytes = 0
        self.segments_rewritten = 0
        self.segments_joined = 0

    def may_begin(self, log: DiskLog) -> bool:
        """Return True if this log may be compacted now.

        Old files of other logs are no obstacle: waiting for them would allow only one log every ten
        seconds, however small.
        """
        is_free = self._run is None or (self._run.is_join and self._run.log is not log)
        return is_free and self._waiting is None and log.id not in self._old_files

    @property
    def is_idle(self) -> bool:
        """True if nothing is in progress, nothing is to be joined, and no old file remains."""
        return self._run is None and not (self._to_join or self._old_files)

    # --- implementation of `segments.log.repair.SegmentWriter` -----------------------------------
    def hold(self, log: DiskLog) -> bool:
        busy = [run.log for run in (self._run, self._waiting) if run is not None]
        if log.id in self._old_files or log in busy:
            return False
        self._old_files[log.id] += 1
        return True

    def write(
        self, files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
    ) -> SegmentInfo:
        return mend(files, segment, end, copies)

    def release(
        self,
        log: DiskLog,
        generation: int,
        written: Sequence[tuple[SegmentInfo, SegmentInfo, Index]],
    ) -> None:
        for old, new, end in written:
            self._replace(log, generation, (old,), new, end)
        self._removed(log)

    # --- compactions -----------------------------------------------------------------------------
    def begin(
        self,
        log: DiskLog,
        compaction: Compaction,
        cleaner: RecordCleaner,
        pace: Callable[[int], int],
        done: Callable[[bool], None],
        *,
        segment_bytes: int,
    ) -> None:
        """Begin a compaction.

        All entries up to `compaction.upto` are in sealed segments, durably noted. Small segments
        are joined up to `segment_bytes`.
        """
        assert self.may_begin(log), "only one compaction runs at a time"
        run = _Run(log, compaction, cleaner, pace, done)
        self._to_join.pop(log.id, None)
        self._to_join[log.id] = _Run(
            log, compaction, None, pace, lambda is_whole: None, segment_bytes=segment_bytes
        )
        if self._run is None:
            self._run = run
            self._go_on(run)
        else:
            self._waiting = run

    def _ended(self, run: _Run, *, is_whole: bool) -> None:
        self._run = None
        run.done(is_whole)
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin the waiting compaction, else the next possible join."""
        if self._run is not None:
            return
        following, self._waiting = self._waiting, None
        if following is None:
            free = (log_id for log_id in self._to_join if log_id not in self._old_files)
            log_id = next(free, None)
            following = None if log_id is None else self._to_join.pop(log_id)
        if following is not None:
            self._run = following
            self._go_on(following)

    def _go_on(self, run: _Run) -> None:
        if not self._owner.compaction_may_go_on():
            return  # the next start begins again
        if run.is_void:
            self._give_up(run)
            return
        if run.begins_to_clean_again:
            if run.log.id in self._old_files:
                self._held_up = True
                return
            run.begins_again = False
        self._workers.pool(run.step, partial(self._stepped, run))

    def _stepped(self, run: _Run, result: int | BaseException) -> None:
        if isinstance(result, OSError) and is_refused(result) and run.is_to_be_repeated:
            self._workers.call_later(DISK_FULL_RETRY_MS, partial(self._go_on, run))
            return
        if isinstance(result, EntriesDamaged) and not run.is_void and result.first >= run.log.first:
            run.log.damaged_ranges.add(result.first, result.end)
        if isinstance(result, StorageError) or (isinstance(result, OSError) and is_refused(result)):
            self._give_up(run)
            return
        if isinstance(result, BaseException):
            if isinstance(result, FileNotFoundError) and run.is_void:
                self._give_up(run)
            else:
                self._owner.compaction_failed(result)
            return
        self.read_bytes += result
        if run.rewriting is not None and run.rewriting.is_done:
            self._settle(run, run.rewriting)
        if run.is_done:
            if not run.is_join:
                run.log.compacted = run.compaction
            self._ended(run, is_whole=True)
        else:
            self._workers.call_later(run.pace(result), partial(self._go_on, run))

    def _settle(self, run: _Run, rewriting: Rewriting) -> None:
        """Handle the end of a rewriting: one segment is done, or several were joined."""
        old, new = rewriting.replaces, rewriting.new
        run.rewriting = None
        if rewriting.state is RewritingState.UNCHANGED:
            return
        if not self._replace(run.log, run.generation, old, new, rewriting.end):
            return
        if len(old) > 1:
            self.segments_joined += len(old) - 1
            return
        self.segments_rewritten += 1
        before = old[0].sealed
        if before is not None and new.sealed is not None:
            self.freed_bytes += before.bytes - new.sealed.bytes

    def _replace(
        self,
        log: DiskLog,
        generation: int,
        old: tuple[SegmentInfo, ...],
        new: SegmentInfo,
        end: Index,
    ) -> bool:
        """Replace old segments by the new one; return False if one is gone.

        The files that do not count are removed later.
        """
        is_void = log.deleted or log.generation != generation
        is_replaced = not is_void and log.replace_segments(old, new, end)
        gone = old if is_replaced else (new,)
        paths = [log.files.segment_path(segment.number) for segment in gone]
        self._old_files[log.id] += 1
        self._workers.call_later(OLD_FILE_MS, partial(self._remove, log, generation, paths))
        return is_replaced

    def _remove(self, log: DiskLog, generation: int, paths: list[str]) -> None:
        """Remove files that are no longer read.

        Goes through the queue of removals: a reset removes all files of the log, and later flushes
        may create one with the same name.
        """

        def begin() -> Job | None:
            if not log.deleted and log.generation == generation:
                return RemoveOld(log.files, paths)
            self._removed(log)
            return None

        self._removals.add(Removal(0, begin, partial(self._removed, log)))
        self._removals.next()

    def _removed(self, log: DiskLog) -> None:
        self._old_files[log.id] -= 1
        if not self._old_files[log.id]:
            del self._old_files[log.id]
            if self._held_up and self._run is not None and self._run.log is log:
                self._held_up = False
                self._go_on(self._run)
            self._begin_next()

    def _give_up(self, run: _Run) -> None:
        """End the run early. Completed work stays; the rest is left to a later compaction."""

        def cleared(result: BaseException | None) -> None:
            if isinstance(result, OSError) and is_refused(result):
                self._workers.call_later(DISK_FULL_RETRY_MS, partial(self._give_up_again, run))
                return
            is_gone = isinstance(result, FileNotFoundError) and run.is_void
            if isinstance(result, BaseException) and not is_gone:
                self._owner.compaction_failed(result)
                return
            self._ended(run, is_whole=False)

        self._workers.pool(run.abandon, cleared)

    def _give_up_again(self, run: _Run) -> None:
        if self._owner.compaction_may_go_on():  # else the next start removes the leftovers
            self._give_up(run)


class _Run:
    """One compaction of one log, or, with `segment_bytes`, the join of small segments after one.

    `step` and `abandon` run in the pool.
    """

    def __init__(
        self,
        log: DiskLog,
        compaction: Compaction,
        cleaner: RecordCleaner | None,
        pace: Callable[[int], int],
        done: Callable[[bool], None],
        *,
        segment_bytes: int = 0,
    ) -> None:
        self.log = log
        self.compaction = compaction
        self.pace = pace
        self.done = done
        self.rewriting: Rewriting | None = None
        """Rewriting of one segment, until the loop has put the new one in its place."""
        self.is_done = False
        self.begins_again = False
        """True if segments are about to be rewritten that the previous pass may have rewritten."""
        self._cleaner = cleaner
        self._segment_bytes = segment_bytes
        self._phase = Phase.CHOOSING if segment_bytes else Phase.SCANNING
        self.generation = log.generation
        self._end = compaction.upto + 1
        self._stop = log.flushed_index + 1
        self._index = log.first
        """Index of the next entry to be scanned."""
        self._keys_from = max(log.compacted.upto + 1, log.first)
        """Use: records before it supersede no earlier records any more.
        Invariant: records removed by earlier compactions and passes are gone from all segments."""
        self._keys_end = self._end
        """First entry whose keys did not fit in this pass."""
        self._todo = self._segments_of_pass()
        self._to_join: list[tuple[tuple[SegmentInfo, ...], Index]] = []
        """Result of `joining.find`."""

    @property
    def is_join(self) -> bool:
        return self._segment_bytes > 0

    @property
    def is_void(self) -> bool:
        """True if the log was reset or deleted, so that no work on it counts."""
        return self.log.deleted or self.log.generation != self.generation

    @property
    def is_to_be_repeated(self) -> bool:
        """True if a refused step must be retried, because half of the Idx are written."""
        rewriting = self.rewriting
        return rewriting is not None and rewriting.state is RewritingState.INDEXING

    @property
    def begins_to_clean_again(self) -> bool:
        """True if the next step may rewrite a segment that still has an old file."""
        return self.begins_again and self._phase is Phase.CLEANING

    def _segments_of_pass(self) -> list[tuple[SegmentInfo, Index]]:
        """Return (segment, index after its last entry) of segments to process, newest first."""
        found = [
            (segment, following.first_index)
            for segment, following in pairwise(self.log.segments)
            if segment.first_index < self._end
        ]
        return found[::-1]

    def step(self) -> int:
        """Continue; return the number of bytes read. Blocks. Raises OSError or CorruptRecord."""
        match self._phase:
            case Phase.SCANNING:
                return self._scan()
            case Phase.CLEANING:
                return self._clean()
            case Phase.NOTING:
                files = self.log.files
                write_note(files.fs, files.directory, files.log_id, self.compaction)
                self.is_done = True
                return 0
            case Phase.CHOOSING:
                self._choose()
                return 0
            case Phase.JOINING:
                return self._join()

    def _scan(self) -> int:
        log = self.log
        self._index = max(self._index, log.first)
        entries: list[StoredEntry] = []
        if self._index < self._end:
            files, segments = log.files, log.segments
            self._index = files.healing(
                segments, self._stop, lambda: files.skip_emptied(segments, self._index, self._end)
            )
            entries = read_entries(log.files, log.segments, self._stop, self._index, self._end)
            assert self._cleaner is not None, "a join scans nothing"
            index = self._cleaner.scan(entries, keys_from=self._keys_from)
            self._index += len(entries)
            if index < self._index and self._keys_end == self._end:
                self._keys_end = index
                self._keys_from = self._end  # no more keys are collected in this pass
        if self._index >= self._end:
            self._phase = Phase.CLEANING
        return bytes_of(entries)

    def _clean(self) -> int:
        if self.rewriting is None:
            if not self._todo:
                self._end_pass()
                return 0
            segment, end = self._todo.pop()
            if segment not in self.log.segments:
                return 0  # trimmed meanwhile
            if segment.sealed is not None and is_emptied(segment.sealed, segment.first_index, end):
                return 0
            is_last = self._keys_end == self._end
            compaction = self.compaction if is_last else Compaction(self.compaction.upto)
            self.rewriting = Rewriting(
                self.log.files, self.log.segments, self._stop, segment, end, compaction,
                self._cleaner,
            )  # fmt: skip
        return self.rewriting.step()

    def _choose(self) -> None:
        log = self.log
        segments = log.segments
        if segments:
            self._stop = log.flushed_index + 1
            self._to_join = joining.find(
                log.files, segments, self._stop, self._end, self._segment_bytes
            )
        self._phase = Phase.JOINING

    def _join(self) -> int:
        log = self.log
        if self.rewriting is None:
            if not self._to_join:
                self.is_done = True
                return 0
            joined, end = self._to_join.pop()
            if joined[0] not in log.segments:
                return 0  # trimmed or mended meanwhile
            self.rewriting = Joining(log.files, log.segments, self._stop, joined, end)
        return self.rewriting.step()

    def _end_pass(self) -> None:
        if self._keys_end == self._end:
            self._phase = Phase.NOTING
            return
        assert self._cleaner is not None, "a join has no passes"
        self._cleaner.next_pass()
        self._index = self._keys_from = self._keys_end
        self._keys_end = self._end
        self._todo = self._segments_of_pass()
        self.begins_again = True
        self._phase = Phase.SCANNING

    def abandon(self) -> None:
        """Remove files that do not count. Blocks."""
        if self.rewriting is not None:
            self.rewriting.abandon()
