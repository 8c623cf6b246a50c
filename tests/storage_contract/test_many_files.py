"""Removal of logs with very many files in pieces, so that no flush waits or seems to hang."""

from dataclasses import replace
from pathlib import Path

import pytest

from segments.api import HardState, StoredEntry
from segments.io.fs import RealFileSystem
from segments.io.removals import FILES_AT_ONCE, REST_MS
from tests.storage_contract.test_times import MANY

SEGMENTS = 3 * FILES_AT_ONCE - 100


class Removals:
    """Files that each job removed, and the work that the store reported at each of them."""

    def __init__(self, engine, monkeypatch):
        self.jobs = []
        self.work = []
        real = RealFileSystem.unlink
        files = engine.workers.files

        def unlink(fs, path):
            if "/logs/" in path or "/deleted/" in path:
                self.jobs[-1] += 1
                self.work.append(engine.store.file_work)
            real(fs, path)

        def counted(job, done):
            def run():
                self.jobs.append(0)
                return job()

            files(run, done)

        monkeypatch.setattr(RealFileSystem, "unlink", unlink)
        monkeypatch.setattr(engine.workers, "files", counted)


def stage(engine, log, count):
    first = log.last_index + 1
    entries = [StoredEntry(1, n, 0, bytes(16), n - 1, 1, n) for n in range(first, first + count)]
    engine.store.append(log, entries)
    engine.store.set_hard_state(log, HardState(1, 1, log.last_index))


def put(engine, log, count):
    stage(engine, log, count)
    engine.submit()


@pytest.fixture
def engine(make_harness, tmp_path):
    """Yield an engine with one log of some six hundred segments, and another log."""
    options = replace(MANY, checkpoint_entries=100)  # flushes any tail
    engine = make_harness("disk", tmp_path, options)
    put(engine, engine.new_log(), 2 * SEGMENTS + 1)
    engine.checkpoint()
    engine.new_log(10)
    engine.workers.advance(1_000)
    assert len(engine.log.segments) == SEGMENTS + 1
    yield engine
    assert engine.fatal == []
    engine.crash()


def delete(engine, log):
    engine.store.delete_log(log.log_id)


def trim(engine, log):
    engine.store.trim_log(log, first_index=2 * SEGMENTS + 1)
    engine.store.submit()


def reset(engine, log):
    engine.store.reset_log(log, first_index=10_000, prev_term=1, next_offset=10_000)
    engine.store.submit()


@pytest.mark.parametrize("go", [delete, trim, reset])
def test_files_go_in_pieces_between_checkpoints(engine, monkeypatch, go):
    """Each removal is visible as progress, and others use the disk in between."""
    log, other = engine.log, engine.store.logs[2]
    removals = Removals(engine, monkeypatch)
    go(engine, log)
    engine.pump()
    assert removals.jobs[-1] == FILES_AT_ONCE
    put(engine, other, 9)
    checkpoints = []
    engine.store.checkpoint(lambda: checkpoints.append(sum(removals.jobs)))
    engine.pump()
    assert checkpoints == [FILES_AT_ONCE]
    assert other.flushed_index == 9
    engine.workers.advance(20 * REST_MS)
    assert max(removals.jobs) == FILES_AT_ONCE
    assert sum(removals.jobs) >= SEGMENTS
    assert removals.work == sorted(set(removals.work))
    assert not [*Path(engine.directory, "deleted").iterdir()]
    folder = Path(engine.directory, "logs", "00000001")
    assert len([*folder.glob("*.log")]) == (1 if go is trim else 0)
    assert engine.store.file_work == 0


@pytest.mark.parametrize("go", [delete, trim, reset])
def test_start_finishes_what_a_piece_has_begun(engine, go):
    """kill -9 between two pieces."""
    go(engine, engine.log)
    engine.pump()
    left = sum(1 for _ in Path(engine.directory).glob("*/*/*.log"))
    assert SEGMENTS - FILES_AT_ONCE <= left <= SEGMENTS - FILES_AT_ONCE + 1
    engine.reopen()
    engine.pump()
    assert sum(1 for _ in Path(engine.directory).glob("*/*/*.log")) == (1 if go is trim else 0)
    if go is not delete:
        first = engine.log.last_index + 1
        put(engine, engine.log, 20)
        engine.checkpoint()
        assert engine.log.flushed_index == first + 19


def test_reset_log_is_flushed_once_its_old_files_are_gone(engine):
    """All of them: leftovers of the log before the reset must not be written to."""
    log = engine.log
    reset(engine, log)
    engine.pump()
    put(engine, log, 5)
    engine.store.checkpoint()
    engine.pump()
    assert log.flushed_index == 9_999
    engine.workers.advance(20 * REST_MS)
    engine.checkpoint()
    assert log.flushed_index == 10_004
    assert engine.all_entries(log) == engine.all_entries(engine.reopen())


def test_start_that_empties_a_grave_lets_the_log_live_on(engine):
    """A log that was reset has both old files, whose removal was interrupted, and new ones."""
    log = engine.log
    reset(engine, log)
    engine.workers.advance(20 * REST_MS)
    put(engine, log, 5)
    engine.checkpoint()
    before = engine.all_entries(log)
    grave = Path(engine.directory, "deleted", "00000001")
    grave.mkdir()
    (grave / "0000000000.log").write_bytes(b"old")
    assert engine.all_entries(engine.reopen()) == before
    assert not engine.log.lost
    assert not grave.exists()


def test_full_disk_gets_its_room_back_without_rests(engine, monkeypatch):
    """Pauses do not help those who wait for space."""
    removals = Removals(engine, monkeypatch)
    monkeypatch.setattr(type(engine.store), "disk_full", True)
    delete(engine, engine.log)
    engine.pump()
    assert sum(removals.jobs) >= SEGMENTS
    assert max(removals.jobs) == FILES_AT_ONCE


@pytest.mark.parametrize("is_asked", [True, False])
def test_removal_has_its_turn_where_one_checkpoint_follows_the_other(
    make_harness, tmp_path, is_asked
):
    """Removals progress although one checkpoint follows the other.

    A crowded server requests one with each append that it refuses, also between the end of the last
    one and its notes; or enough has been appended by then. Each has something to flush.
    """
    options = replace(MANY, checkpoint_entries=100)  # flushes any tail
    if not is_asked:
        options = replace(options, checkpoint_bytes=1)
    engine = make_harness("disk", tmp_path, options)
    log, other, workers = engine.new_log(), engine.new_log(10), engine.workers
    put(engine, log, 9)
    engine.checkpoint()
    workers.advance(1_000)
    oldest = Path(log.files.segment_path(log.segments[0].number))
    assert oldest.exists()
    stage(engine, other, 20)
    engine.store.checkpoint()
    engine.store.trim_log(log, first_index=9)
    engine.store.submit()
    begun = engine.store._checkpoints.pulse.beats
    for _ in range(8):
        stage(engine, other, 20)
        engine.store.submit()
        if workers.pool_jobs:
            workers.run_one(workers.pool_jobs)
        if is_asked:
            engine.store.checkpoint()
        while workers.journal_jobs:
            workers.run_one(workers.journal_jobs)
    assert engine.store._checkpoints.pulse.beats > begun
    assert not oldest.exists()
    engine.pump()
    engine.crash()
