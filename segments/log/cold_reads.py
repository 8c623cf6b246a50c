"""Jobs for the pool that read a log from disk.

A job takes what it needs from the log when it is created on the loop: the present segments and the
durable end. It then touches only files, so the loop may continue to append and flush. Data read
here never enters the cache, because a slow consumer must not evict what tailing consumers read.

Does not depend on the journal or on its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from ids import Index, Offset
from segments.api import (
    EntriesDamaged,
    EntryLike,
    OffsetOutOfRange,
    SegmentSpan,
    Slices,
    StorageError,
    StoredEntry,
)
from segments.format.frame import FRAME_BYTES
from segments.log.index import IndexDamaged
from segments.log.index_files import IndexReader
from segments.log.log import DiskLog
from segments.log.segment import LogFiles
from segments.log.segment_header import Sealed, SegmentInfo, TimeFound

T = TypeVar("T")

SKIP_BYTES = 256 << 10
"""Bytes read at a time to skip entries that have no data left: each read costs as much as some
hundred of these entries."""


@dataclass(slots=True)
class Found:
    """Result of a job: entries from `index` on, of which the reader gets the first `count`."""

    index: Index
    entries: list[StoredEntry]
    count: int = 0


def read(
    log: DiskLog, offset: Offset, end_index: Index, bytes_max: int, index: Index, ahead: int
) -> Callable[[], Found]:
    """Return a job that reads what `Log.read` returns, and `ahead` bytes more.

    `index` is that of the entry that holds `offset`, or 0 if unknown.
    """
    files, segments, first, stop = log.files, log.segments, log.first, log.flushed_index + 1
    end = min(stop, end_index + 1)

    def look(end: Index) -> Found:
        start = index or files.index_of(segments, offset, first, end)
        found = Found(start, files.entries(start, end, bytes_max + ahead))
        for entry in found.entries[:1]:
            if entry.base_offset > offset:
                # The index is after the entry that holds the offset: this would skip records.
                raise IndexDamaged("base offset", start, expected=offset, actual=entry.base_offset)
            after = entry.base_offset + entry.records
            if entry.records and entry.index == end - 1 and after == offset:
                return Found(end, [])
            if entry.records and after <= offset:
                raise OffsetOutOfRange(f"offset {offset} is behind entry {entry.index}")
        # At least one entry with records; entries without any that precede it are dropped.
        while not any(map(_has_records, found.entries)) and start + len(found.entries) < end:
            start = files.skip_emptied(segments, start + len(found.entries), end)
            found = Found(start, files.entries(start, end, max(SKIP_BYTES, bytes_max + ahead)))
        return found

    return lambda: _up_to_damage(files, segments, stop, end, look)


def entries(
    log: DiskLog, first: Index, end: Index, bytes_max: int, ahead: int
) -> Callable[[], Found]:
    """Return a job that reads flushed entries as `Log.entries` does, and `ahead` bytes more."""
    files, segments, stop = log.files, log.segments, log.flushed_index + 1

    def look(end: Index) -> Found:
        return Found(first, files.entries(first, end, bytes_max + ahead))

    return lambda: _up_to_damage(files, segments, stop, stop if ahead else min(end, stop), look)


def _up_to_damage(
    files: LogFiles,
    segments: Sequence[SegmentInfo],
    stop: Index,
    end: Index,
    look: Callable[[Index], Found],
) -> Found:
    """Return `look(end)`.

    If damage makes later entries of a segment unreachable, return only the entries before it, and
    before other damage on the way to it. Raises EntriesDamaged if there are none.
    """
    damage: EntriesDamaged | None = None
    while True:
        limit = end
        try:
            found = files.healing(segments, stop, lambda: look(limit))  # noqa: B023 - called now
        except EntriesDamaged as found_damage:
            if found_damage.first >= limit:
                raise
            damage, end = found_damage, found_damage.first
        except OffsetOutOfRange:
            if damage is None:
                raise
            raise damage from None
        else:
            if damage is not None and not found.entries:
                raise damage
            return found


def slices(found: Found, offset: Offset, end_index: Index, bytes_max: int) -> Slices:
    """Return the first batches found, as `Log.read` does, and count them in `found`.

    The reader continues at the offset after the last batch, and so must the rest of `found`:
    compacted-away entries after that batch are not counted.
    """
    made = Slices(first_offset=offset, end_offset=offset)
    count = 0
    for n, entry in enumerate(found.entries):
        if entry.index > end_index:
            break
        size = len(entry.data)
        if _has_records(entry):
            if made.buffers and made.bytes + size > bytes_max:
                break
            if not made.buffers:
                made.first_offset = entry.base_offset
            made.buffers.append(entry.data)
            made.end_offset = entry.base_offset + entry.records
            made.bytes += size
            count = n + 1
        elif not entry.records and count == n:
            count = n + 1
    found.count = count
    return made


def _has_records(entry: StoredEntry) -> bool:
    """Return True if the entry is a batch that was not compacted away."""
    return bool(entry.records and len(entry.data))


def first_entries(found: Found, end: Index, bytes_max: int) -> list[StoredEntry]:
    """Return the first entries found, as `Log.entries` does, and count them in `found`."""
    taken: list[StoredEntry] = []
    total = 0
    for entry in found.entries:
        total += len(entry.data) or FRAME_BYTES
        if entry.index >= end or (taken and total > bytes_max):
            break
        taken.append(entry)
    found.count = len(taken)
    return taken


def index_of_offset(log: DiskLog, offset: Offset) -> Callable[[], Index]:
    """Return a job that finds the entry which holds `offset`. The job raises OffsetOutOfRange."""
    files, segments, first, stop = log.files, log.segments, log.first, log.flushed_index + 1
    return lambda: files.healing(
        segments, stop, lambda: files.index_of(segments, offset, first, stop)
    )


def index_of_timestamp(
    log: DiskLog, timestamp_ms: int, first: Index, end: Index
) -> tuple[Callable[[], TimeFound], Index]:
    """Return (job, index to continue with if it finds nothing).

    The job finds the first of entries [first, end) in segments with a timestamp ≥ `timestamp_ms`.
    """
    files, segments, stop = log.files, log.segments, log.flushed_index + 1
    places, following = log.places_of_time(timestamp_ms, first, end)
    return (
        lambda: files.healing(
            segments,
            stop,
            lambda: files.index_of_timestamp(segments, places, timestamp_ms, first, end),
        )
    ), following


def segment_spans(log: DiskLog) -> Callable[[], tuple[list[SegmentSpan], list[Sealed]]]:
    """Return a job that returns the span of each segment, then of the committed tail.

    The job also returns the totals of sealed segments that it had to determine.
    """
    files, segments, stop = log.files, log.segments, log.flushed_index + 1
    newest = [] if not segments else [
        SegmentSpan(
            log.flushed_offset, log.cursor.position, log.cursor.max_timestamp, log.flushed_index
        )
    ]  # fmt: skip
    tail = _tail_span(log)

    def look() -> tuple[list[SegmentSpan], list[Sealed]]:
        found: list[SegmentSpan] = []
        learned: list[Sealed] = []
        with IndexReader(files) as reader:
            for segment, following in pairwise(segments):
                sealed = segment.sealed
                if sealed is None:
                    sealed = reader.sealed(segment, following.first_index)
                    learned.append(sealed)
                found.append(
                    SegmentSpan(
                        following.base_offset, sealed.bytes, sealed.max_timestamp,
                        following.first_index - 1,
                    )
                )  # fmt: skip
        return [*found, *newest, tail], learned

    return lambda: files.healing(segments, stop, look)


def _tail_span(log: DiskLog) -> SegmentSpan:
    first, end = log.flushed_index + 1, log.hard.commit + 1
    size, newest = 0, -1
    for chunk, start, stop in log.tail.spans(first, end):
        size += chunk.ends[stop - 1] - chunk.start_of(start)
        newest = max(newest, *(entry.timestamp for entry in chunk.entries[start:stop]))
    return SegmentSpan(log.offset_after(end - 1), size, newest, end - 1)


def index_in_tail(log: DiskLog, timestamp_ms: int, first: Index, end: Index) -> Index:
    """Return the first entry in the tail with a timestamp ≥ `timestamp_ms`, or `end`.

    Entries [first, end) are all in memory.
    """
    for chunk, start, stop in log.tail.spans(max(first, log.first), min(end, log.last + 1)):
        for n in range(start, stop):
            if chunk.entries[n].timestamp >= timestamp_ms:
                return chunk.first + n
    return end


def outcome(look: Callable[[], T]) -> Callable[[], T]:
    """Run `look` now, on the loop, and return a job that returns or raises its outcome."""
    try:
        found = look()
    except StorageError as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail
    return lambda: found


def as_stored(found: Sequence[EntryLike]) -> list[StoredEntry]:
    return [
        StoredEntry(e.term, e.index, e.kind, e.data, e.base_offset, e.records, e.timestamp)
        for e in found
    ]
