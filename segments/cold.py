"""Reads that need the disk, as jobs for the pool.

What a job needs of the log is taken on the loop when it is made: the segments there are, and where
the durable end lies. It then touches only files, so the loop may go on appending and flushing. What
it reads never enters the cache: a slow consumer must not evict what tailing ones read.

Must not know: the journal, who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from segments.api import EntriesDamaged, EntryLike, SegmentSpan, Slices, StorageError, StoredEntry
from segments.log import DiskLog

T = TypeVar("T")


def read(log: DiskLog, offset: int, end_index: int, bytes_max: int) -> Callable[[], Slices]:
    """A job that reads as `Log.read` does."""
    if not log.start_offset <= offset < log.flushed_offset:
        return _outcome(lambda: log.read(offset, end_index, bytes_max))
    files, segments, first, stop = log.files, list(log.segments), log.first, log.flushed_index + 1
    end = min(stop, end_index + 1)

    def look(end: int) -> Slices:
        return files.healing(
            segments, stop, lambda: files.read(segments, offset, first, end, bytes_max)
        )

    def job() -> Slices:
        try:
            return look(end)
        except EntriesDamaged as hole:
            # Without its Idx a hole takes more of its segment along; what lies before it is good.
            found = look(hole.first) if hole.first > first else Slices()
            if found.end_offset <= offset:
                raise
            return found

    return job


def entries(log: DiskLog, first: int, end: int, bytes_max: int) -> Callable[[], list[StoredEntry]]:
    """A job that reads as `Log.entries` does, as far as segments reach."""
    if first < log.first or first > log.flushed_index or end > log.last + 1:
        return _outcome(lambda: _as_stored(log.entries(first, end, bytes_max)))
    files, segments, stop = log.files, list(log.segments), log.flushed_index + 1
    end = min(end, stop)

    def look(end: int) -> list[StoredEntry]:
        return files.healing(segments, stop, lambda: files.entries(first, end, bytes_max))

    def job() -> list[StoredEntry]:
        try:
            return look(end)
        except EntriesDamaged as hole:
            if hole.first <= first:
                raise
            return look(hole.first)

    return job


def index_of_timestamp(
    log: DiskLog, timestamp_ms: int, end_index: int
) -> tuple[Callable[[], int], int]:
    """(job, end): the first entry with a timestamp ≥ `timestamp_ms` that segments hold, or `end`,
    from where the tail is to be searched."""
    files, segments, first, stop = log.files, list(log.segments), log.first, log.flushed_index + 1
    end = max(first, min(stop, end_index + 1))
    if not segments or first >= end:
        return (lambda: end), end
    return (
        lambda: files.healing(
            segments, stop, lambda: files.index_of_timestamp(segments, timestamp_ms, first, end)
        )
    ), end


def segment_spans(log: DiskLog) -> Callable[[], list[SegmentSpan]]:
    """A job that says what each segment holds, and last the committed part of the tail."""
    files, segments, stop = log.files, list(log.segments), log.flushed_index + 1
    tail = _tail_span(log)

    def look() -> list[SegmentSpan]:
        found = []
        ends = [*(segment.first_index for segment in segments[1:]), stop]
        for end in ends if segments else ():
            last = files.idx(end - 1)
            found.append(
                SegmentSpan(
                    last.base_offset + last.records, last.position + last.length, last.max_timestamp
                )
            )
        return [*found, tail]

    return lambda: files.healing(segments, stop, look)


def _tail_span(log: DiskLog) -> SegmentSpan:
    first, end = log.flushed_index + 1, log.hard.commit + 1
    size, newest = 0, -1
    for chunk, start, stop in log.tail.spans(first, end):
        size += chunk.ends[stop - 1] - chunk.start_of(start)
        newest = max(newest, *(entry.timestamp for entry in chunk.entries[start:stop]))
    return SegmentSpan(log.offset_after(end - 1), size, newest)


def index_in_tail(log: DiskLog, timestamp_ms: int, first: int, end: int) -> int:
    """The first entry of [first, end) in memory with a timestamp ≥ `timestamp_ms`, or `end`."""
    first = max(first, log.first, log.tail.first)
    for chunk, start, stop in log.tail.spans(first, min(end, log.last + 1)):
        for n in range(start, stop):
            if chunk.entries[n].timestamp >= timestamp_ms:
                return chunk.first + n
    return end


def _outcome(look: Callable[[], T]) -> Callable[[], T]:
    """A job that hands over what `look`, run here and now on the loop, gave or raised."""
    try:
        found = look()
    except StorageError as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
    return lambda: found


def _as_stored(found: Sequence[EntryLike]) -> list[StoredEntry]:
    return [
        StoredEntry(e.term, e.index, e.kind, e.data, e.base_offset, e.records, e.timestamp)
        for e in found
    ]
