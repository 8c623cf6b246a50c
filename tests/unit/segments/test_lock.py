"""A directory's lock is released only when no operation of the store uses its files any more."""

import random
import threading
from functools import partial

import pytest

from segments.api import DirectoryInUse
from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.io.jobs import Jobs
from segments.io.workers import ThreadWorkers
from segments.journal.files import JournalFiles
from segments.recovery import start
from segments.store import DiskStore
from tests.hangs import HANG_SECONDS
from tests.unit.segments.conftest import OPTIONS


def other_is_refused(bench):
    with pytest.raises(DirectoryInUse):
        RealFileSystem().lock(f"{bench.directory}/lock")
    return True


def run_journal(workers):
    while workers.journal_jobs:
        workers.run_one(workers.journal_jobs)


def test_lock_is_held_until_the_last_job_of_a_closed_store_has_ended(bench):
    """The next file is still being made when the closing block is durable."""
    bench.workers.pump()
    (log,) = bench.create()
    bench.append(log, 55, size=4000)  # a file is full: the one after the next is to be made
    while not bench.workers.pool_jobs:
        bench.append(log, 1, size=4000)
        bench.store._journal.allocation.prepared.clear()
        bench.store._journal._prepare()
    done = []
    bench.store.close(lambda: done.append(True))
    run_journal(bench.workers)
    assert bench.store._journal.closed
    assert other_is_refused(bench)
    assert done == []
    bench.workers.pump()
    assert done == [True]
    bench.open()


def test_lock_is_held_when_its_file_is_removed(bench):
    """The lock is held though a user removes its file, as if a dead process had left it."""
    (bench.path / "lock").unlink()
    assert other_is_refused(bench)
    bench.store.abandon()
    lock = RealFileSystem().lock(f"{bench.directory}/lock")
    assert other_is_refused(bench)
    lock.release()
    bench.open()


def test_lock_is_held_while_a_read_is_under_way(bench):
    """A cold read may also write: it rebuilds a damaged index."""
    (log,) = bench.create()
    bench.append(log, 200, size=500)
    bench.checkpoint()
    read, done = [], []
    bench.store.entries_cold(log, 1, 3, 1 << 20, read.append)
    bench.store.close(lambda: done.append(True))
    run_journal(bench.workers)
    assert other_is_refused(bench)
    bench.workers.pump()
    assert len(read[0]) == 2
    assert done == [True]
    bench.open()


def test_job_of_a_store_that_was_abandoned_does_not_begin(bench):
    """A pending job of an abandoned store never runs.

    It would replace the next process's journal file.
    """
    (log,) = bench.create()
    bench.append(log, 10)
    bench.store._journal.allocation.prepared.clear()
    bench.store._journal._prepare()
    former = bench.workers
    assert former.pool_jobs
    bench.reopen()
    before = sorted((path, path.read_bytes()) for path in bench.path.rglob("*.journal"))
    former.pump()
    after = sorted((path, path.read_bytes()) for path in bench.path.rglob("*.journal"))
    assert after == before


def test_job_of_a_start_that_failed_does_not_begin(bench, monkeypatch):
    """A pending job of a failed start never runs.

    The start has begun its journal by then, and requested the next file.
    """
    bench.store.abandon()
    workers = InlineWorkers()

    def fail(*_):
        raise OSError("cannot")

    with monkeypatch.context() as patch:
        patch.setattr(start, "remove_stale", fail)
        with pytest.raises(OSError, match="cannot"):
            DiskStore.open(RealFileSystem(), bench.directory, workers, OPTIONS, random.Random(5))
    bench.open()
    assert workers.pool_jobs
    before = sorted((path, path.read_bytes()) for path in bench.path.rglob("*.journal"))
    workers.pump()
    after = sorted((path, path.read_bytes()) for path in bench.path.rglob("*.journal"))
    assert after == before


def test_lock_follows_a_job_that_a_thread_is_in_the_middle_of():
    """A running job cannot be cancelled: it is awaited, and its result is dropped."""
    rung, released, told = [], [], []
    begun, go_on, has_rung = threading.Event(), threading.Event(), threading.Event()

    def ring(fn, argument):
        rung.append(partial(fn, argument))
        has_rung.set()

    workers = ThreadWorkers(ring, lambda delay_ms, fn: None, pool_threads=1)
    jobs = Jobs(workers)

    def write():
        begun.set()
        assert go_on.wait(HANG_SECONDS)

    jobs.pool(write, told.append)
    jobs.pool(lambda: told.append("began"), told.append)
    assert begun.wait(HANG_SECONDS)
    jobs.over(lambda: released.append(True))
    assert released == []
    go_on.set()
    assert has_rung.wait(HANG_SECONDS)
    workers.close()
    for call in rung:
        call()
    assert released == [True]
    assert told == []


def test_journal_file_is_never_made_over_another(bench):
    """A rename would silently replace the existing file."""
    files = JournalFiles(RealFileSystem(), f"{bench.directory}/journal", OPTIONS)
    existing = bench.journals()[0]
    before = existing.read_bytes()
    for make in (
        lambda n: files.make(n, 64 << 10),
        lambda n: files.make_from_reserve(n, 64 << 10),
    ):
        with pytest.raises(FileExistsError):
            make(int(existing.stem, 16))
    assert existing.read_bytes() == before
