"""Which offset belongs to a time: ListOffsets by timestamp (KIP-79).

The index knows the largest timestamp of every batch; the exact record is found by walking the one
batch that must hold it.

Must not know: requests, leadership.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import segments.api as storage
from vdl.records import CorruptBatch, first_at_or_after


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """A record's offset, timestamp (ms) and the leader epoch it was written in; offset -1: none."""

    offset: int
    timestamp: int
    leader_epoch: int


NO_OFFSET = TimedOffset(-1, -1, -1)

Done = Callable[[TimedOffset | storage.StorageError], None]


def find_offset_for_time(
    log: storage.Log, store: storage.Store, timestamp_ms: int, commit: int, done: Done
) -> None:
    """The first record up to index `commit` whose timestamp is ≥ `timestamp_ms`."""

    def walk(entry: storage.EntryLike) -> None:
        """Batches are found by their largest timestamp, which their header may overstate: a batch
        without such a record after all passes the question on to the next."""
        try:
            record = first_at_or_after(memoryview(entry.data), timestamp_ms)
        except CorruptBatch:
            # The records are the producer's own business; the best answer left is the batch.
            done(TimedOffset(entry.base_offset, entry.timestamp, entry.term))
            return
        if record is not None:
            done(TimedOffset(record.offset, record.timestamp, entry.term))
        elif entry.index < commit:
            fetch(entry.index + 1)
        else:
            done(NO_OFFSET)

    def fetch(index: int) -> None:
        """The next entry from `index` that holds records up to the time."""
        try:
            found(list(log.entries(index, index + 1, 1)))
        except storage.NotInMemory:
            store.entries_cold(log, index, index + 1, 1, found)
        except storage.StorageError as error:
            done(error)

    def found(
        entries: list[storage.StoredEntry] | list[storage.EntryLike] | storage.StorageError,
    ) -> None:
        if isinstance(entries, storage.StorageError):
            done(entries)
            return
        entry = entries[0]
        if entry.records and entry.timestamp >= timestamp_ms:
            walk(entry)
        elif entry.index < commit:
            fetch(entry.index + 1)
        else:
            done(NO_OFFSET)

    def located(index: int | storage.StorageError) -> None:
        if isinstance(index, storage.StorageError):
            done(index)
        elif index > commit:
            done(NO_OFFSET)
        else:
            fetch(index)

    store.index_of_timestamp(log, timestamp_ms, commit, located)
