"""Which offset belongs to a time: ListOffsets by timestamp (KIP-79), and by the largest of all
(KIP-734).

The store knows the largest timestamp of every batch; the exact record is found by walking the one
batch that must hold it. A batch may not: its header overstates, or that record is deleted. What
lies near behind it has been read then and is looked at, and the store is asked again from there on.

Must not know: requests, leadership.
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
    """A record's offset, timestamp (ms) and the leader epoch it was written in; offset -1: none."""

    offset: Offset
    timestamp: int
    leader_epoch: int


NO_RECORD = TimedOffset(NO_OFFSET, -1, -1)

WALK_BYTES = 1 << 20
"""How much is read behind a batch that has no such record."""

NO_TIME = -1
"""The timestamp of a record without one, and the least there is."""

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
    """The first record from `start_offset` up to index `commit` whose timestamp is ≥
    `timestamp_ms`. The log may hold deleted records below `start_offset`."""

    def walk(entry: storage.EntryLike) -> TimedOffset | None:
        """Batches are found by their largest timestamp, which their header may overstate: a batch
        without such a record after all passes the question on to the next."""
        try:
            record = first_at_or_after(memoryview(entry.data), timestamp_ms, start_offset)
        except CorruptBatch:
            # The records are the producer's own business; the best answer left is the batch.
            first = max(entry.base_offset, start_offset)
            return TimedOffset(first, entry.timestamp, entry.term)
        return record and TimedOffset(Offset(record[0]), record[1], entry.term)

    def walk_all(entries: Sequence[storage.EntryLike]) -> TimedOffset | None:
        return next(filter(None, map(walk, entries)), None)

    def search(first: Index | storage.StorageError) -> None:
        """The batches from index `first` on."""
        if isinstance(first, storage.OffsetOutOfRange):
            done(NO_RECORD)  # all there is, is deleted
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
        """Entries from `index` on; `is_near`: behind one that had no such record."""

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
                # Deleted, and so is all before the log's start: on from there.
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
            # A batch may hold as many records as its producer liked, compressed.
            store.workers.pool(partial(walk_all, candidates), walked)
        else:
            walked(None)

    search(NO_INDEX)


def find_offset_of_largest_time(
    bound_ms: int, find: Callable[[int, Done], None], done: Done
) -> None:
    """The first of the records with the largest timestamp. None has a later one than `bound_ms`;
    `find` looks for the first at or after a time.

    As a rule a record has the time that bounds all. If not, because that one is deleted or a header
    overstates, the largest is found by halving: 63 questions at most.
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
