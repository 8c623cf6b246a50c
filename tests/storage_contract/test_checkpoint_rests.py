"""A checkpoint of many logs flushes some at a time, and rests in between when nothing presses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from segments.api import HardState, Log, StoredEntry, StoreOptions
from segments.fs import RealFileSystem
from segments.inline import InlineWorkers
from segments.log import DiskLog
from segments.store import DiskStore

LOGS, ENTRIES, ENTRY_BYTES = 3, 20, 1_000
INTERVAL_MS = 1_000
REST_MS = INTERVAL_MS // 8
"""Of three rests within half of the interval, and what they are between."""
OPTIONS = StoreOptions(
    journal_file_bytes=1 << 20,
    journal_first_file_bytes=1 << 20,
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


def opened(path: Path, workers: InlineWorkers) -> DiskStore:
    return DiskStore.open(RealFileSystem(), str(path), workers, OPTIONS, random.Random(1))


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
    """One that waits is answered by the checkpoint that runs, without a pause after this one."""
    ended: list[None] = []
    setup.store.checkpoint(lambda: ended.append(None))
    setup.workers.advance(REST_MS)
    assert setup.flushed() == [ENTRIES] * LOGS
    assert ended


def test_log_that_is_deleted_in_a_rest_is_left_out(setup: Setup) -> None:
    """Its files go when the checkpoint has ended."""
    gone = setup.logs[1]
    setup.store.delete_log(gone.log_id)
    setup.workers.advance(1_000)
    assert setup.flushed() == [ENTRIES, 0, ENTRIES]
    assert not Path(gone.files.directory).exists()


def test_store_that_closes_in_a_rest_has_everything_after_the_next_start(setup: Setup) -> None:
    """What no segment holds yet is in the journal."""
    closed: list[None] = []
    setup.store.close(lambda: closed.append(None))
    setup.workers.advance(1_000)
    assert closed
    again = opened(setup.path, InlineWorkers())
    try:
        assert [log.last_index for _, log in sorted(again.logs.items())] == [ENTRIES] * LOGS
    finally:
        again.abandon()


def test_store_that_is_abandoned_in_a_rest_writes_nothing_more(setup: Setup) -> None:
    """Somebody else may have the directory by then."""
    setup.store.abandon()
    setup.workers.advance(1_000)
    assert setup.flushed() == [ENTRIES, 0, 0]
