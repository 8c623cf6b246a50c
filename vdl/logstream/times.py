"""Which offset belongs to a time: ListOffsets by timestamp (KIP-79).

The index knows the largest timestamp of every batch; the exact record is found by walking the one
batch that must hold it. Where the index leads to a deleted record, the batches from the log's start
on are looked at one after the other.

Must not know: requests, leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import segments.api as storage
from vdl.records import CorruptBatch, first_at_or_after


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record's offset, timestamp (ms) and the leader epoch it was written in; offset -1: none."""

    offset: int
    timestamp: int
    leader_epoch: int


NO_OFFSET = TimedOffset(-1, -1, -1)

WALK_BYTES = 1 << 20
"""How much is read at a time where one batch after the other has to be looked at."""

Done = Callable[[TimedOffset | storage.StorageError], None]


def find_offset_for_time(
    log: storage.Log,
    store: storage.Store,
    timestamp_ms: int,
    *,
    start_offset: int,
    commit: int,
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
        return record and TimedOffset(*record, entry.term)

    def walk_all(entries: Sequence[storage.EntryLike]) -> TimedOffset | None:
        return next(filter(None, map(walk, entries)), None)

    def fetch(index: int, bytes_max: int) -> None:
        """Entries from `index` on."""
        try:
            found(list(log.entries(index, commit + 1, bytes_max)))
        except storage.NotInMemory as missing:
            store.entries_cold(log, index, min(missing.end, commit + 1), bytes_max, found)
        except storage.StorageError as error:
            done(error)

    def found(
        entries: list[storage.StoredEntry] | list[storage.EntryLike] | storage.StorageError,
    ) -> None:
        if isinstance(entries, storage.StorageError):
            done(entries)
            return
        candidates: list[storage.EntryLike] = []
        for entry in entries:
            if not entry.records:
                continue
            if entry.base_offset + entry.records <= start_offset:
                # Deleted, and so is all before the log's start: on from there.
                store.index_of_offset(log, start_offset, started)
                return
            if entry.timestamp >= timestamp_ms:
                candidates.append(entry)
        last = entries[-1].index

        def walked(answer: TimedOffset | BaseException | None) -> None:
            if isinstance(answer, BaseException):
                raise answer
            if answer is not None:
                done(answer)
            elif last < commit:
                fetch(last + 1, WALK_BYTES)
            else:
                done(NO_OFFSET)

        if candidates:
            # A batch may hold as many records as its producer liked, compressed.
            store.workers.pool(partial(walk_all, candidates), walked)
        else:
            walked(None)

    def started(index: int | storage.StorageError) -> None:
        if isinstance(index, storage.OffsetOutOfRange):
            done(NO_OFFSET)  # all there is, is deleted
        else:
            located(index)

    def located(index: int | storage.StorageError) -> None:
        if isinstance(index, storage.StorageError):
            done(index)
        elif index > commit:
            done(NO_OFFSET)
        else:
            fetch(index, 1)

    store.index_of_timestamp(log, timestamp_ms, commit, located)
