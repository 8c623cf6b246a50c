"""Cold reads, as seen by the loop: started, shared between readers, and kept for continued reading.

Readers waiting for the same position share one read. The data after a window is read ahead of its
reader (`read_ahead.py`). The result of a thread is checked against changes of the log meanwhile:
removed entries are reported as `Compacted`, and damaged ones are noted.

Does not depend on the journal or on its readers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ids import NO_INDEX, Index, Offset
from segments.api import (
    Compacted,
    CorruptRecord,
    EntriesDamaged,
    OffsetOutOfRange,
    ReadRefused,
    SegmentSpan,
    Slices,
    StorageError,
    StoredEntry,
    Timer,
    Workers,
)
from segments.io.fs import is_disk_full, is_passing
from segments.log import cold_reads as cold
from segments.log.log import DiskLog
from segments.log.read_ahead import AHEAD_BYTES, IDLE_MS, Key, ReadAhead
from segments.log.segment_header import Sealed, TimeFound

T = TypeVar("T")


class Reader:
    """Implementation of the cold reads of `segments.api.Store`, where each is documented."""

    def __init__(
        self,
        workers: Workers,
        *,
        refused: Callable[[OSError], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Create a reader without windows.

        `refused` is called for each read that lacked a descriptor or memory, `fail` for an error of
        the disk. Both concern the store's owner, not only the caller.
        """
        self._workers = workers
        self._refused = refused
        self._fail = fail
        self.read_ahead = ReadAhead()
        self._timer: Timer | None = None
        """Use: windows that no reader takes are dropped when it fires.
        Invariant: runs while there are windows, until `stop`."""
        self._reading: dict[Key, list[Callable[[cold.Found | StorageError], None]]] = {}
        """Use: reads for consumers in progress, and the callbacks waiting for each; several if
        readers continue at the same position."""
        self._is_stopped = False
        self.refusals = 0

    def read(
        self,
        log: DiskLog,
        offset: Offset,
        end_index: Index,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
    ) -> None:
        """See `Store.read_cold`."""
        is_in_segments = offset < log.flushed_offset or end_index < log.flushed_index
        if offset < log.start_offset or not is_in_segments:
            self._run(log, cold.outcome(lambda: log.read(offset, end_index, bytes_max)), done)
            return
        end_index = min(end_index, log.hard.commit)
        before, age, first = _age(log), _reading_age(log), log.first

        def give(found: cold.Found | StorageError, *, is_joined: bool = False) -> None:
            is_trimmed = isinstance(found, Compacted) and not log.deleted and first < log.first
            if is_trimmed or _is_replaced(log, before, found):
                # It began in a part that was removed.
                self.read(log, offset, end_index, bytes_max, done)
                return
            if isinstance(found, StorageError):
                done(found)
                return
            slices = cold.slices(found, offset, end_index, bytes_max)
            following = found.index + len(found.entries)
            if is_joined and not slices.buffers and following <= min(end_index, log.flushed_index):
                # The first caller may have a lower end, up to which nothing is left.
                self.read(log, offset, end_index, bytes_max, done)
                return
            self._keep((log.id, age, "offset", slices.end_offset), found)
            self._read_on(log, age, end_index, found)
            done(slices)

        key = (log.id, age, "offset", offset)
        window = self.read_ahead.take(key)
        if window is not None and window.entries and window.entries[0].base_offset > offset:
            window = None  # it would skip records, and so would a read from its index
        if window is not None and _holds_records(window, end_index):
            # Immediately: on a busy loop each further turn would cost as much as the disk.
            self.read_ahead.hits += 1
            give(window)
            return
        waiting = self._reading.get(key)
        if waiting is not None:
            waiting.append(partial(give, is_joined=True))
            return
        self._reading[key] = [give]
        index, ahead = NO_INDEX, 0
        if window is not None:
            ahead = self.read_ahead.ahead_bytes(AHEAD_BYTES)
            if window.index >= log.first:  # else its entry has been trimmed
                index = window.index
        look = cold.read(log, offset, end_index, bytes_max, index, ahead)
        self._run(log, look, lambda result: self._found(key, result))

    def _read_on(self, log: DiskLog, age: int, end_index: Index, window: cold.Found) -> None:
        """Read the data after a window ahead of its reader, once little of the window is left.

        A reader then waits for the disk only if the disk is slower.
        """
        rest = window.entries[window.count :]
        ahead = self.read_ahead.ahead_bytes(AHEAD_BYTES)
        if not rest or not ahead or sum(len(entry.data) for entry in rest) > ahead // 2:
            return
        last = rest[-1]
        offset, index = last.base_offset + last.records, last.index + 1
        key = (log.id, age, "offset", offset)
        if index > min(end_index, log.flushed_index) or _reading_age(log) != age:
            return
        if key in self._reading or key in self.read_ahead:
            return
        self._reading[key] = []
        look = cold.read(log, offset, end_index, 0, index, ahead)
        self._run(log, look, lambda result: self._found(key, result))

    def _found(self, key: Key, result: cold.Found | StorageError) -> None:
        """Finish a read for consumers: give the result to those waiting, or keep it for later."""
        waiting = self._reading.pop(key)
        for give in waiting:
            give(result)
        if not waiting and not isinstance(result, StorageError):
            self._keep(key, result, readers=0)

    def entries(
        self,
        log: DiskLog,
        first: Index,
        end: Index,
        bytes_max: int,
        done: Callable[[list[StoredEntry] | StorageError], None],
    ) -> None:
        """See `Store.entries_cold`."""
        if first < log.first or first > log.flushed_index or end > log.last + 1:
            look = cold.outcome(lambda: cold.as_stored(log.entries(first, end, bytes_max)))
            self._run(log, look, done)
            return
        before, age = _age(log), _reading_age(log)

        def give(found: cold.Found | StorageError) -> None:
            if _is_replaced(log, before, found):
                self.entries(log, first, end, bytes_max, done)
                return
            if isinstance(found, StorageError):
                done(found)
                return
            entries = cold.first_entries(found, end, bytes_max)
            self._keep((log.id, age, "index", first + len(entries)), found)
            done(entries)

        window = self.read_ahead.take((log.id, age, "index", first))
        if window is not None and window.entries:
            self.read_ahead.hits += 1
            self._workers.call_later(0, lambda: give(window))
            return
        ahead = 0 if window is None else self.read_ahead.ahead_bytes(AHEAD_BYTES)
        self._run(log, cold.entries(log, first, end, bytes_max, ahead), give)

    def _keep(self, key: Key, found: cold.Found, *, readers: int = 1) -> None:
        self.read_ahead.keep(key, found, readers=readers)
        if self._timer is None:
            self._timer = self._workers.call_later(IDLE_MS, self._expire)

    def _expire(self) -> None:
        self.read_ahead.expire()
        self._timer = None
        if len(self.read_ahead) and not self._is_stopped:
            self._timer = self._workers.call_later(IDLE_MS, self._expire)

    def index_of_offset(
        self, log: DiskLog, offset: Offset, done: Callable[[Index | StorageError], None]
    ) -> None:
        """See `Store.index_of_offset`."""
        answer: Index | StorageError = log.tail.find_offset(offset)
        if not log.start_offset <= offset < log.offset:
            answer = OffsetOutOfRange(f"offset {offset} not in [{log.start_offset}, {log.offset})")
        if answer:
            self._workers.call_later(0, lambda: done(answer))
        else:
            self._run(log, cold.index_of_offset(log, offset), done)

    def index_of_timestamp(
        self,
        log: DiskLog,
        timestamp_ms: int,
        end_index: Index,
        done: Callable[[Index | StorageError], None],
        *,
        first_index: Index = NO_INDEX,
    ) -> None:
        """See `Store.index_of_timestamp`."""
        age = _age(log)
        first = max(log.first, first_index)
        end = max(first, min(log.flushed_index + 1, end_index + 1))

        def in_memory() -> Index:
            if end > end_index:
                return end_index + 1
            return cold.index_in_tail(log, timestamp_ms, end, end_index + 1)

        if not log.segments or first == end:
            index = in_memory()
            self._workers.call_later(0, lambda: done(index))
            return
        job, following = cold.index_of_timestamp(log, timestamp_ms, first, end)

        def found(result: TimeFound | StorageError) -> None:
            if _is_replaced(log, age, result):
                self.index_of_timestamp(log, timestamp_ms, end_index, done, first_index=first_index)
                return
            if isinstance(result, StorageError):
                done(result)
                return
            if _age(log) == age:
                log.note_sealed(result.learned)
            if result.entry >= 0:
                done(result.entry)
            elif following <= min(log.flushed_index, end_index):
                # There are more segments, or entries that were in memory have been flushed since,
                # and perhaps evicted.
                self.index_of_timestamp(log, timestamp_ms, end_index, done, first_index=following)
            else:
                done(in_memory())

        self._run(log, job, found)

    def segment_spans(
        self, log: DiskLog, done: Callable[[list[SegmentSpan] | StorageError], None]
    ) -> None:
        """See `Store.segment_spans`."""
        age = _age(log)

        def found(result: tuple[list[SegmentSpan], list[Sealed]] | StorageError) -> None:
            if isinstance(result, StorageError):
                done(result)
                return
            spans, learned = result
            if _age(log) == age:
                log.note_sealed(learned)
            done(spans)

        self._run(log, cold.segment_spans(log), found)

    def _run(
        self, log: DiskLog, job: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        before, first = _age(log), log.first

        def finished(result: T | BaseException) -> None:
            if isinstance(result, EntriesDamaged) and first == log.first < result.end:
                # Nothing was trimmed meanwhile. The range may begin in a part trimmed earlier.
                result = EntriesDamaged(max(result.first, first), result.end, result.position)
            is_gone = isinstance(result, EntriesDamaged) and result.first < log.first
            if isinstance(result, EntriesDamaged | FileNotFoundError) and (
                is_gone or log.deleted or log.generation != before[0]
            ):
                done(Compacted("the segment was deleted during the read"))
            elif isinstance(result, OSError) and is_disk_full(result):
                # A retry may find space.
                done(CorruptRecord("index without disk space to rebuild it", 0))
            elif isinstance(result, OSError) and is_passing(result):
                self.refusals += 1
                self._refused(result)
                done(ReadRefused(str(result)))
            elif isinstance(result, OSError):
                self._fail(result)
            elif isinstance(result, BaseException) and not isinstance(result, StorageError):
                raise result
            else:
                if isinstance(result, EntriesDamaged) and before == _age(log):
                    log.damaged_ranges.add(result.first, result.end)
                    log.damaged_ranges.trim(log.first)
                done(result)

        self._workers.pool(job, finished)

    def stop(self) -> None:
        """Stop the timer for good."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _holds_records(window: cold.Found, end_index: Index) -> bool:
    return any(len(e.data) and e.records and e.index <= end_index for e in window.entries)


def _reading_age(log: DiskLog) -> int:
    """Return the log's version for windows, changed by each reset, repair and compaction."""
    return log.generation + log.damaged_ranges.repairs


def _age(log: DiskLog) -> tuple[int, int]:
    """Return the log's version for damage, changed by each reset, repair and rewriting.

    Damage found by a read counts only if the version is still the same.
    """
    return log.generation, log.damaged_ranges.repairs


def _is_replaced(log: DiskLog, before: tuple[int, int], found: object) -> bool:
    """Return True if damage found by a read may concern a segment rewritten since.

    The read began at version `before`. The old file is kept only for some seconds, and a slow read
    may find it gone without looking at its replacement.
    """
    generation, repairs = _age(log)
    is_older = repairs != before[1] and generation == before[0] and not log.deleted
    return is_older and isinstance(found, EntriesDamaged)
