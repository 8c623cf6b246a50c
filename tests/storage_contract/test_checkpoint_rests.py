"""A checkpoint of many logs flushes some at a time, and rests in between when nothing presses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from segments.api import HardState, Log, StoredEntry, StoreOptions
from segments.fs import RealFileSystem
from segments.inline import InlineWorkers
from segments.log import DiskLog
from segments.store import DiskStore

LOGS, ENTRIES, ENTRY_BYTES = 3, 20, 1_000
INTERVAL_MS = 1_000
REST_MS = INTERVAL_MS // (2 * LOGS)
OPTIONS = StoreOptions(
    journal_file_bytes=4 << 20,
    journal_first_file_bytes=4 << 20,
    checkpoint_bytes=1 << 20,
    meta_map_bytes=1 << 24,
    checkpoint_interval_ms=INTERVAL_MS,
    flush_logs_max=1,
)


@dataclass
class Setup:
    """A store whose checkpoint rests after the first of its logs."""

    path: Path
    workers: InlineWorkers
    store: DiskStore
    logs: list[DiskLog]

    def flushed(self) -> list[int]:
        return [log.flushed_index for log in self.logs]


def opened(path: Path, workers: InlineWorkers, options: StoreOptions = OPTIONS) -> DiskStore:
    return DiskStore.open(RealFileSystem(), str(path), workers, options, random.Random(1))


def append(store: DiskStore, log: DiskLog) -> None:
    first = log.last_index + 1
    entries = [
        StoredEntry(1, index, 0, bytes(ENTRY_BYTES), index, 1, 5)
        for index in range(first, first + ENTRIES)
    ]
    store.append(log, entries)
    store.set_hard_state(log, HardState(1, 0, entries[-1].index))
    store.submit()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    workers = InlineWorkers()
    store = opened(tmp_path / "data", workers)
    created: list[Log] = []
    for number in range(LOGS):
        store.create_log(9 + number, 1, on_created=created.append)
    workers.advance(10)
    logs = [log for log in created if isinstance(log, DiskLog)]
    for log in logs:
        append(store, log)
    made = Setup(tmp_path / "data", workers, store, logs)
    workers.advance(INTERVAL_MS)
    assert made.flushed() == [ENTRIES, 0, 0]
    yield made
    store.abandon()


def test_rests_are_between_flushes_until_all_are_done(setup: Setup) -> None:
    """Also what came in a rest is flushed when its log's turn comes."""
    append(setup.store, setup.logs[1])
    setup.workers.advance(REST_MS)
    assert setup.flushed() == [ENTRIES, 2 * ENTRIES, 0]
    setup.workers.advance(REST_MS)
    assert setup.flushed() == [ENTRIES, 2 * ENTRIES, ENTRIES]
    assert setup.store.stats()["checkpoints"] == 1


def test_whoever_waits_for_a_checkpoint_ends_its_rests(setup: Setup) -> None:
    """Also the one that has begun."""
    ended: list[None] = []
    setup.store.checkpoint(lambda: ended.append(None))
    setup.workers.pump()
    assert setup.flushed() == [ENTRIES] * LOGS
    assert ended


def test_much_that_is_journaled_ends_the_rests(setup: Setup) -> None:
    """Memory fills while a checkpoint rests."""
    for _ in range(OPTIONS.checkpoint_bytes // (ENTRIES * ENTRY_BYTES)):
        append(setup.store, setup.logs[0])
        setup.workers.pump()
    assert setup.flushed()[1:] == [ENTRIES, ENTRIES]


def test_log_that_is_deleted_in_a_rest_is_left_out(setup: Setup) -> None:
    """Its files go when the checkpoint has ended, which is soon: they are waited for."""
    gone = setup.logs[1]
    setup.store.delete_log(gone.log_id)
    setup.workers.pump()
    assert setup.flushed() == [ENTRIES, 0, ENTRIES]
    assert not Path(gone.files.directory).exists()


def test_store_that_closes_in_a_rest_has_everything_after_the_next_start(setup: Setup) -> None:
    """What no segment holds yet is in the journal."""
    closed: list[None] = []
    setup.store.close(lambda: closed.append(None))
    setup.workers.pump()
    assert closed
    again = opened(setup.path, InlineWorkers())
    try:
        assert [log.last_index for _, log in sorted(again.logs.items())] == [ENTRIES] * LOGS
    finally:
        again.abandon()


@pytest.mark.parametrize("is_resting", [True, False])
def test_store_that_is_abandoned_writes_nothing_more(setup: Setup, is_resting: bool) -> None:
    """Somebody else may have the directory by then."""
    if not is_resting:
        setup.store.checkpoint(lambda: None)  # the next logs are on their way
    setup.store.abandon()
    setup.workers.advance(1_000)
    assert setup.flushed() == [ENTRIES, 0, 0]


def test_journal_is_kept_until_the_newest_note_is_durable(tmp_path: Path) -> None:
    """A checkpoint's notes become durable while the next one has flushed already: what that one
    needs no more counts only when its own note is on disk."""
    workers = InlineWorkers()
    options = replace(OPTIONS, journal_file_bytes=1 << 18, journal_first_file_bytes=1 << 18)
    store = opened(tmp_path / "data", workers, options)
    created: list[Log] = []
    store.create_log(9, 1, on_created=created.append)
    workers.advance(10)
    (log,) = created
    assert isinstance(log, DiskLog)

    def journaled() -> None:
        while workers.journal_jobs:
            workers.run_one(workers.journal_jobs)

    append(store, log)
    workers.pump()
    store.checkpoint()
    flush = workers.pool_jobs.popleft()
    for _ in range(25):  # the journal goes on to other files meanwhile
        append(store, log)
        journaled()
        while workers.pool_jobs:
            workers.run_one(workers.pool_jobs)
    workers.pool_jobs.append(flush)
    while workers.pool_jobs:
        workers.run_one(workers.pool_jobs)
    assert log.flushed_index == ENTRIES
    append(store, log)  # with it go the notes
    assert workers.journal_jobs
    store.checkpoint()
    workers.run_one(workers.pool_jobs)
    assert log.flushed_index == log.last_index
    journaled()
    while workers.pool_jobs:
        workers.run_one(workers.pool_jobs)
    store.abandon()
    (again,) = opened(tmp_path / "data", InlineWorkers(), options).logs.values()
    assert not again.lost
    assert again.last_index == log.last_index
