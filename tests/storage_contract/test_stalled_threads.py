"""A thread that stalls between two system calls while the loop and other threads proceed.

Its later operations by path must not affect files that were created under the same names meanwhile.
"""

import pytest

from segments.api import Compaction, HardState, MetaBatch, StoredEntry, StoreOptions
from segments.compaction.compactor import OLD_FILE_MS
from segments.io import failpoint
from tests.storage_contract.conftest import SimHarness
from tests.storage_contract.every_fifth import EveryFifth
from vdl.sim.filesystem import SimFileSystem

COUNT = 400


class Killed(BaseException):
    """Raised where the process ends."""


def write(engine, count):
    """Append and commit entries, and flush as many to segments as the store may."""
    log, at_once = engine.log, 50
    for first in range(log.last_index + 1, log.last_index + count + 1, at_once):
        offset = log.next_offset
        entries = [
            StoredEntry(1, n, 0, bytes([n & 0xFF]) * 1_000, offset + n - first, 1, n)
            for n in range(first, first + at_once)
        ]
        engine.store.append(log, entries)
        engine.store.set_hard_state(log, HardState(1, 0, log.last_index))
        engine.store.submit()
        engine.workers.advance(100)
        engine.collect(MetaBatch(log.log_id, log.commit_index, [(b"a", b"b")], clear=True))
        engine.store.checkpoint()
        engine.workers.advance(500)


@pytest.fixture
def engine():
    engine = SimHarness(StoreOptions(
        journal_file_bytes=4 << 20, journal_first_file_bytes=256 << 10, segment_bytes=64 << 10,
        cache_bytes_max=64 << 10, checkpoint_bytes=1 << 30, scrub_bytes_per_second=0,
        place_bytes_min=0,
    ))  # fmt: skip
    engine.start()
    engine.new_log()
    write(engine, COUNT)
    yield engine
    failpoint.arm("")
    assert engine.fatal == []
    engine.crash()


def compact(engine):
    answers = []
    engine.store.compact(
        engine.log, Compaction(300, 0), EveryFifth, pace=lambda count: 1, done=answers.append
    )
    return answers


def live_on(engine):
    """Reset the log; later entries go to new files."""
    log = engine.log
    engine.store.reset_log(log, first_index=500, prev_term=1, next_offset=700, state=b"")
    write(engine, 100)


def check(engine):
    """Check that all that was written is there, in this run and in the next one."""
    write(engine, 100)
    assert engine.log.flushed_index == 699
    for _ in range(2):
        assert not engine.log.lost
        assert not engine.log.damaged
        found = [bytes(data[:1]) for _, _, data, _, _, _ in engine.all_entries(engine.log)]
        assert found == [bytes([n & 0xFF]) for n in range(500, 700)]
        engine.reopen()


@pytest.mark.parametrize("call", ["exists", "unlink", "sync_directory"])
def test_old_file_of_a_compaction_goes_and_not_a_new_one_of_that_name(engine, monkeypatch, call):
    path = engine.log.files.segment_path(1)
    if call == "sync_directory":
        path = engine.log.files.directory
    assert compact(engine) == []
    engine.workers.advance(OLD_FILE_MS // 2)
    stalled = []
    real = getattr(SimFileSystem, call)

    def stall(fs, called):
        if called == path and not stalled:
            stalled.append(called)
            live_on(engine)
        return real(fs, called)

    monkeypatch.setattr(SimFileSystem, call, stall)
    engine.workers.advance(OLD_FILE_MS)
    monkeypatch.undo()
    assert stalled
    check(engine)


@pytest.mark.parametrize("place", ["compact.begun", "compact.written", "compact.named"])
def test_segment_written_anew_of_entries_that_are_gone_never_counts(engine, place):
    """The log was reset meanwhile, and the process dies before the file is removed."""
    stalled, steps = [], []

    def stall():
        if not stalled:
            stalled.append(place)
            live_on(engine)

    def end():
        steps.append(len(stalled))
        if steps[-1]:
            raise Killed

    failpoint.watch(place, stall)
    if place != "compact.named":
        failpoint.watch("compact.named", end)
    compact(engine)
    try:
        engine.workers.advance(5_000)
    except Killed:
        pass
    assert stalled
    for name in (place, "compact.named"):
        failpoint.unwatch(name)
    if steps:
        engine.reopen()
    check(engine)
