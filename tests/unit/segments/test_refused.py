"""Lack of descriptors or memory is no disk fault.

Reads can be retried, background work is done later, and no process ends.
"""

import errno

import pytest

from segments.api import ReadRefused
from segments.io.fs import RealFileSystem, SyncFailed, is_passing

CODES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR]


@pytest.fixture
def refuse(monkeypatch):
    """Return a callable that makes every further `open` fail with a code; with 0 it works again."""
    real = RealFileSystem.open

    def begin(code):
        def refused(fs, path, *, create=False):
            if code:
                raise OSError(code, "none to spare")
            return real(fs, path, create=create)

        monkeypatch.setattr(RealFileSystem, "open", refused)

    return begin


@pytest.mark.parametrize("code", CODES)
def test_read_that_finds_no_descriptor_is_to_be_asked_again(bench, refuse, code):
    """A read without a descriptor is counted, logged and retriable."""
    (log,) = bench.create()
    fatal, told, answers = [], [], []
    bench.store.on_fatal, bench.store.on_read_refused = fatal.append, told.append
    bench.append(log, 200, size=500)
    bench.checkpoint()
    refuse(code)
    bench.store.entries_cold(log, 1, 3, 1 << 20, answers.append)
    bench.workers.pump()
    assert isinstance(answers[0], ReadRefused)
    assert [error.errno for error in told] == [code]
    assert bench.store.stats()["reads_refused"] == 1
    refuse(0)
    bench.store.entries_cold(log, 1, 3, 1 << 20, answers.append)
    bench.workers.pump()
    assert [entry.index for entry in answers[1]] == [1, 2]
    assert fatal == []


def test_background_work_that_finds_no_descriptor_is_done_later(bench, refuse):
    """Flush, identity and next files: the disk counts as full meanwhile."""
    (log,) = bench.create()
    fatal = []
    bench.store.on_fatal = fatal.append
    bench.append(log, 30, size=500)
    before = log.flushed_index
    assert before < 30
    refuse(errno.EMFILE)
    bench.store.checkpoint()
    made = []
    bench.store.create_log(77, 1, on_created=made.append)
    bench.workers.advance(3_000)
    assert bench.store.disk_full
    assert (log.flushed_index, made, fatal) == (before, [], [])
    refuse(0)
    bench.workers.advance(3_000)
    assert not bench.store.disk_full
    assert (log.flushed_index, len(made), fatal) == (30, 1, [])


def test_read_that_fails_for_another_reason_ends_the_process(bench, refuse):
    """An unknown error of a read ends the process."""
    (log,) = bench.create()
    fatal = []
    bench.store.on_fatal = fatal.append
    bench.append(log, 200, size=500)
    bench.checkpoint()
    refuse(errno.EIO)
    bench.store.entries_cold(log, 1, 3, 1 << 20, lambda _: None)
    bench.workers.pump()
    assert [error.errno for error in fatal] == [errno.EIO]


def test_failed_sync_is_no_want_of_memory():
    """A failed sync is fatal whatever its error code: the data is gone."""
    assert is_passing(OSError(errno.ENOMEM, "no memory"))
    assert not is_passing(SyncFailed(OSError(errno.ENOMEM, "no memory")))
