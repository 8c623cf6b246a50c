"""New names whose directory could not be synced are not relied on before they are durable."""

import errno
from dataclasses import replace

import pytest

from segments.api import HardState, StoredEntry
from tests.storage_contract.conftest import SMALL, SimHarness
from vdl.sim.filesystem import SimFileSystem

OPTIONS = replace(SMALL, segment_bytes=400, index_segment_entries=8, checkpoint_interval_ms=10**6)


@pytest.fixture
def engine():
    engine = SimHarness(OPTIONS)
    engine.start()
    yield engine
    engine.crash()


def put(engine, log, count):
    first = log.last_index + 1
    entries = [StoredEntry(1, n, 0, bytes(60), n - 1, 1, n) for n in range(first, first + count)]
    engine.store.append(log, entries)
    engine.store.set_hard_state(log, HardState(1, 1, log.last_index))
    engine.submit()


def refuse(patch, name, path, number):
    """Refuse the next call with that path."""
    real = getattr(SimFileSystem, name)
    failures = [OSError(number, path)]

    def call(fs, asked, *rest):
        if asked == path and failures:
            raise failures.pop()
        return real(fs, asked, *rest)

    patch.setattr(SimFileSystem, name, call)
    return failures


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_directory_of_a_log_is_durable_where_its_first_flush_was_refused(
    engine, monkeypatch, number
):
    """The next flush finds the directory there."""
    log = engine.new_log()
    put(engine, log, 50)
    with monkeypatch.context() as patch:
        failures = refuse(patch, "sync_directory", "data/logs", number)
        engine.store.checkpoint()
        engine.pump()
        assert not failures
    assert log.flushed_index == 0
    engine.workers.advance(10_000)
    engine.checkpoint()
    assert log.flushed_index == 50
    before = engine.all_entries(log)
    engine.power_cut()
    engine.start()
    assert engine.all_entries(engine.log) == before


def test_start_makes_the_identity_durable_before_logs_go_by_it(engine, monkeypatch):
    """A run ended between the identity's rename and the sync.

    The start after it ends at a power cut.
    """
    log = engine.new_log()
    put(engine, log, 50)
    engine.checkpoint()
    with monkeypatch.context() as patch:
        failures = refuse(patch, "sync_directory", "data", errno.EIO)
        engine.store.delete_log(log.log_id)
        engine.pump()
        assert not failures
    engine.fatal.clear()
    engine.crash()
    with monkeypatch.context() as patch:
        refuse(patch, "remove_tree", "data/deleted/00000001", errno.EIO)
        with pytest.raises(OSError, match="deleted"):
            engine.start()
    engine.power_cut()
    engine.start()
    assert engine.log is None
