"""Trims that leave nothing of what segments hold: files go, and what follows is kept."""

import errno
from dataclasses import replace

import pytest

from segments.api import Compacted, HardState, OffsetOutOfRange
from tests.storage_contract.conftest import PLACING, SimHarness, put
from tests.storage_contract.test_full_disk_corners import OPTIONS
from vdl.sim.filesystem import SimFileSystem

ROOMY = replace(OPTIONS, cache_bytes_max=8 << 20, segment_bytes=64 << 10)


@pytest.fixture
def engine():
    made = SimHarness(ROOMY)
    made.start()
    yield made
    assert made.fatal == []
    made.crash()


def held_bytes(engine):
    """Return the bytes of the files of all logs."""
    total = 0
    for log in engine.store.logs.values():
        files = log.files
        if files.fs.exists(files.directory):
            for name in files.fs.list(files.directory):
                total += files.fs.open(f"{files.directory}/{name}").size()
    return total


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("life", ["same", "next"])
def test_newest_segment_goes_when_all_is_trimmed(engine, writer, is_full, life):
    """A disk full of newest segments would stay full.

    Only records begin another segment, and a full disk takes none.
    """
    logs = [engine.new_log(group_id=10 + n) for n in range(20)]
    for log in logs:
        put(engine, log, writer, 40, size=1000)
    engine.checkpoint()
    engine.disk.returns_room = True
    if is_full:
        engine.disk.room = 0
        put(engine, logs[0], writer, 20, size=1000)
        engine.checkpoint()
        engine.workers.advance(3_000)
        assert engine.store.disk_full
    ends = [log.last_index for log in logs]
    assert held_bytes(engine) > 20 * 40_000
    for log in logs:
        engine.store.trim_log(log, first_index=log.commit_index + 1)
    if life == "next":
        engine.submit()
        engine.power_cut()
        engine.start()
        logs = list(engine.store.logs.values())
    engine.submit()
    engine.workers.advance(60_000)
    assert held_bytes(engine) == 0
    assert not engine.store.disk_full
    for log, end in zip(logs, ends, strict=True):
        assert (log.first_index, log.last_index) == (end + 1, end)
        put(engine, log, writer, 40, size=1000)
    held = [engine.all_entries(log) for log in logs]
    assert {len(entries) for entries in held} == {40}
    engine.disk.room = None
    engine.workers.advance(60_000)
    engine.power_cut()
    engine.start()
    assert [engine.all_entries(log) for log in engine.store.logs.values()] == held


@pytest.mark.parametrize("life", ["same", "next"])
@pytest.mark.parametrize("left", [0, 1])
def test_journal_files_go_when_what_they_hold_is_trimmed(engine, writer, life, left):
    """A full disk refuses the flush that would free them."""
    log = engine.new_log()
    put(engine, log, writer, 5)
    engine.checkpoint()
    engine.workers.advance(3_000)
    for _ in range(60):
        put(engine, log, writer, 20, size=1000)
        engine.workers.advance(10)
    engine.disk.returns_room = True
    engine.disk.room = 0
    engine.checkpoint()
    engine.workers.advance(3_000)
    assert engine.store.disk_full
    assert engine.store.unflushed_bytes > 1_000_000
    if life == "next":
        engine.crash()
        engine.start()
        log = engine.log
    engine.store.trim_log(log, first_index=log.commit_index + 1 - left)
    engine.submit()
    engine.workers.advance(60_000)
    assert engine.store.unflushed_bytes < 3_000
    assert not engine.store.disk_full


@pytest.mark.parametrize("end", ["crash", "power cut", "none"])
@pytest.mark.parametrize("moment", ["staged", "durable", "removed", "flushed"])
def test_what_follows_is_kept(engine, writer, moment, end):
    """Entries behind the trim are kept, committed or not, whether a crash keeps the trim or not."""
    log = engine.new_log()
    put(engine, log, writer, 200, size=1000)
    engine.checkpoint()
    put(engine, log, writer, 10)
    engine.store.append(log, writer(log).entries(20, term=2, size=1000))
    engine.submit()
    before = engine.all_entries(log)
    engine.store.trim_log(log, first_index=206)
    assert log.flushed_index == 205
    if moment != "staged":
        engine.store.submit()
        engine.workers.run_one(engine.workers.journal_jobs)
    if moment in ("removed", "flushed"):
        engine.workers.advance(1_000)
    if moment == "flushed":
        engine.store.set_hard_state(log, HardState(2, 1, 225))
        engine.submit()
        engine.checkpoint()
        assert (log.flushed_index, [s.number for s in log.segments]) == (225, [1])
    if end != "none":
        engine.crash() if end == "crash" else engine.power_cut()
        engine.start()
        log = engine.log
    assert not log.lost
    assert log.last_index == 230
    assert engine.all_entries(log) == before[log.first_index - 1 :]
    assert log.first_index == 206 or (moment == "staged" and end != "none")
    engine.store.append(log, writer(log).entries(50, term=3, size=900))
    engine.store.set_hard_state(log, HardState(3, 1, log.last_index))
    engine.submit()
    engine.workers.advance(1_000)
    engine.checkpoint()
    held = engine.all_entries(log)
    assert len(held) == 280 + 1 - log.first_index
    engine.power_cut()
    engine.start()
    assert engine.all_entries(engine.log) == held


def test_segment_stays_that_has_a_payload_behind_the_trim(writer):
    """The payload's segment is the only place where its entries are."""
    engine = SimHarness(PLACING)
    engine.start()
    log = engine.new_log()
    for _ in range(20):
        put(engine, log, writer, 3, size=700)
        engine.workers.advance(300)
    put(engine, log, writer, 3, size=700)
    while not log.placement.index > log.flushed_index:
        put(engine, log, writer, 1, size=700)
    first = log.placement.index
    held = engine.all_entries(log)[first - log.last_index - 1 :]
    engine.store.trim_log(log, first_index=first)
    engine.submit()
    engine.workers.advance(1_000)
    assert engine.all_entries(log) == held
    engine.power_cut()
    engine.start()
    assert engine.all_entries(engine.log) == held
    assert engine.fatal == []
    engine.crash()


def test_reader_of_what_is_cleared_meanwhile_is_told_so(writer):
    """A reader of a cleared range gets the error for trimmed entries.

    Its missing file is no damage.
    """
    engine = SimHarness(replace(ROOMY, cache_bytes_max=16 << 10))
    engine.start()
    log = engine.new_log()
    put(engine, log, writer, 40, size=1000)
    engine.checkpoint()
    answers = []
    engine.store.read_cold(log, 3, log.commit_index, 5_000, answers.append)
    engine.store.entries_cold(log, 3, 10, 5_000, answers.append)
    engine.store.trim_log(log, first_index=41)
    engine.store.submit()
    engine.workers.run_one(engine.workers.journal_jobs)
    engine.workers.pool_jobs.rotate(1)  # the removal runs first
    engine.workers.advance(1_000)
    assert {type(answer) for answer in answers} == {OffsetOutOfRange, Compacted}
    assert log.damaged == ()
    assert engine.fatal == []
    engine.crash()


def test_files_of_a_flush_under_way_go_too(engine, writer):
    """The flush does not count: the log was cleared meanwhile."""
    log = engine.new_log()
    put(engine, log, writer, 40, size=1000)
    engine.store.checkpoint(lambda: None)
    engine.store.trim_log(log, first_index=41)
    engine.submit()
    engine.workers.advance(60_000)
    assert held_bytes(engine) == 0


@pytest.mark.parametrize("second", ["clear", "reset", "delete"])
@pytest.mark.parametrize("first", ["trim", "clear", "reset"])
def test_refused_removal_does_not_remove_what_was_written_since(
    engine, writer, monkeypatch, first, second
):
    """A refused removal keeps new files, though earlier removals of its log succeeded."""
    logs = [engine.new_log(), engine.new_log(group_id=10)]
    for log in logs:
        for _ in range(4):
            put(engine, log, writer, 60, size=1000)
            engine.checkpoint()
    log, other = logs
    refusals = {log.files.directory: 2, other.files.directory: 3}

    def refused(name):
        call = getattr(SimFileSystem, name)

        def may_be(fs, path, *others):
            for directory, left in refusals.items():
                if path.startswith(directory) and left:
                    refusals[directory] -= 1
                    raise OSError(errno.ENOSPC, "no space left", path)
            return call(fs, path, *others)

        monkeypatch.setattr(SimFileSystem, name, may_be)

    refused("unlink")
    refused("rename")
    remove(engine, log, first)
    engine.workers.advance(300)
    assert refusals[log.files.directory] == 1
    remove(engine, log, second)
    engine.store.trim_log(other, first_index=other.commit_index - 30)
    for _ in range(60):
        engine.submit()
        if second != "delete" and log.last_index - log.first_index < 60:
            put(engine, log, writer, 5, size=1000)
        engine.store.checkpoint(lambda: None)
        engine.workers.advance(100)
    assert set(refusals.values()) == {0}
    held = [engine.all_entries(one) for one in engine.store.logs.values()]
    engine.power_cut()
    engine.start()
    assert [engine.all_entries(one) for one in engine.store.logs.values()] == held


def remove(engine, log, how):
    if how == "delete":
        engine.store.delete_log(log.log_id)
    elif how == "reset":
        first = log.last_index + 10
        engine.store.reset_log(log, first_index=first, prev_term=1, next_offset=log.next_offset)
    else:
        kept = 0 if how == "clear" else 30
        engine.store.trim_log(log, first_index=log.commit_index + 1 - kept)
    engine.submit()
