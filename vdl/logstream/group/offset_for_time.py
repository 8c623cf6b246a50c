"""Offset lookup by time: ListOffsets by timestamp (KIP-79), and by the largest of all (KIP-734).

The store knows the largest timestamp of every batch; the exact record is found by walking the one
batch that must hold it. A batch may not hold it if its header overstates, or if that record is
deleted. Then the entries close behind it are read and searched, and the search in the store
continues from there.

Does not depend on requests or leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import segments.api as storage
from ids import NO_INDEX, NO_OFFSET, Index, Offset
from vdl.records.batch import CorruptBatch, first_at_or_after


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record's offset, timestamp (ms) and leader epoch; offset -1: none."""

    offset: Offset
    timestamp: int
    leader_epoch: int


NO_RECORD = TimedOffset(NO_OFFSET, -1, -1)

WALK_BYTES = 1 << 20
"""Bytes read behind a batch that holds no such record."""

NO_TIME = -1
"""Timestamp of a record without one, which is the least possible."""

Done = Callable[[TimedOffset | storage.StorageError], None]


def find_offset_for_time(
    log: storage.Log,
    store: storage.Store,
    timestamp_ms: int,
    *,
    start_offset: Offset,
    commit: Index,
    done: Done,
) -> None:
    """Find the first record with timestamp ≥ `timestamp_ms`.

    The search covers `start_offset` up to index `commit`. The log may hold deleted records below
    `start_offset`.
    """

    def walk(entry: storage.EntryLike) -> TimedOffset | None:
        """Return the entry's first such record.

        Batches are found by their largest timestamp, which their header may overstate. None: this
        batch has no such record, and the search goes on with the next.
        """
        try:
            record = first_at_or_after(memoryview(entry.data), timestamp_ms, start_offset)
        except CorruptBatch:
            # The producer's records cannot be decoded; the batch is the best answer left.
            first = max(entry.base_offset, start_offset)
            return TimedOffset(first, entry.timestamp, entry.term)
        return record and TimedOffset(Offset(record[0]), record[1], entry.term)

    def walk_all(entries: Sequence[storage.EntryLike]) -> TimedOffset | None:
        return next(filter(None, map(walk, entries)), None)

    def search(first: Index | storage.StorageError) -> None:
        """Search the batches from index `first` on."""
        if isinstance(first, storage.OffsetOutOfRange):
            done(NO_RECORD)  # all records are deleted
        elif isinstance(first, storage.StorageError):
            done(first)
        else:
            store.index_of_timestamp(log, timestamp_ms, commit, located, first_index=first)

    def located(index: Index | storage.StorageError) -> None:
        if isinstance(index, storage.StorageError):
            done(index)
        elif index > commit:
            done(NO_RECORD)
        else:
            fetch(index, 1, is_near=False)

    def fetch(index: Index, bytes_max: int, *, is_near: bool) -> None:
        """Read entries from `index` on; `is_near`: behind one without such a record."""

        def read(entries: list[storage.StoredEntry] | storage.StorageError) -> None:
            found(entries, is_near=is_near)

        try:
            found(list(log.entries(index, commit + 1, bytes_max)), is_near=is_near)
        except storage.NotInMemory as missing:
            store.entries_cold(log, index, min(missing.end, commit + 1), bytes_max, read)
        except storage.StorageError as error:
            done(error)

    def found(
        entries: list[storage.StoredEntry] | list[storage.EntryLike] | storage.StorageError,
        *,
        is_near: bool,
    ) -> None:
        if isinstance(entries, storage.StorageError):
            done(entries)
            return
        candidates: list[storage.EntryLike] = []
        for entry in entries:
            if not entry.records or not len(entry.data):
                continue  # a command, or compacted away
            if entry.base_offset + entry.records <= start_offset:
                # Deleted, like all records before the log's start: continue from there.
                store.index_of_offset(log, start_offset, search)
                return
            if entry.timestamp >= timestamp_ms:
                candidates.append(entry)
        last = entries[-1].index

        def walked(answer: TimedOffset | BaseException | None) -> None:
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                done(answer)
            elif last >= commit:
                done(NO_RECORD)
            elif is_near:
                search(last + 1)
            else:
                fetch(last + 1, WALK_BYTES, is_near=True)

        if candidates:
            # A compressed batch may hold any number of records.
            store.workers.pool(partial(walk_all, candidates), walked)
        else:
            walked(None)

    search(NO_INDEX)


def find_offset_of_largest_time(
    bound_ms: int, find: Callable[[int, Done], None], done: Done
) -> None:
    """Find the first of the records with the largest timestamp.

    No record is later than `bound_ms`; `find` searches the first at or after a time.

    As a rule a record has the bounding time. If not, because that one is deleted or a header
    overstates, the largest is found by bisection: 63 searches at most.
    """
    low, high = NO_RECORD, bound_ms

    def ask(timestamp_ms: int) -> None:
        find(timestamp_ms, partial(answered, timestamp_ms))

    def answered(timestamp_ms: int, answer: TimedOffset | storage.StorageError) -> None:
        nonlocal low, high
        if isinstance(answer, storage.StorageError):
            done(answer)
            return
        if answer.offset >= 0:
            low = answer
        else:
            high = timestamp_ms
        # No record has the time `high` or a later one; `low` is the first with its time or later.
        if low.offset >= 0 and low.timestamp + 1 >= high:
            done(low)
        elif low.offset >= 0:
            ask((low.timestamp + high) // 2)
        elif high > NO_TIME:
            ask(NO_TIME)
        else:
            done(NO_RECORD)

    ask(bound_ms)
