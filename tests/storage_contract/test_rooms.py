"""Preallocated space: unused space returns to the disk, and allocating it never fills one."""

import errno
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from segments.api import HardState
from segments.checkpoint import rooms, scheduler
from segments.io import failpoint
from segments.io.fs import RealFile, RealFileSystem
from tests.storage_contract.conftest import PLACING, DiskHarness, SimHarness
from tests.storage_contract.test_crowded_lives import CrowdedLives, live
from tests.storage_contract.test_placed import (
    append,
    commit,
    entries_from,
    harness,
    has_places,
    jobs,
    settle_all,
    settled,
    written,
)
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFileSystem

BLOCK = 4096
LARGE = replace(
    PLACING,
    segment_bytes=4 << 20,
    journal_file_bytes=1 << 20,
    cache_bytes_max=4 << 20,
    checkpoint_bytes=1 << 30,
    checkpoint_entries=10**6,
    checkpoint_interval_ms=1000,
)
SIZE = 5_000
"""Entry size: four of these are flushed at once."""
ROUNDS_MS = 5_000
"""Duration of several rounds of checkpoints."""


@pytest.fixture(params=["disk", "sim"])
def engine(request, tmp_path):
    made = settled(harness(request.param, tmp_path, LARGE), SIZE)
    yield made
    made.crash()


@pytest.fixture
def sim():
    return settled(SimHarness(LARGE), SIZE)


def settle_twice(sim, logs):
    """Have all logs preallocate the first time, and use the space the second."""
    for _ in range(2):
        for log in logs:
            sim.store.append(log, entries_from(log, log.last_index + 1, 4, 1, SIZE))
            sim.store.set_hard_state(log, HardState(1, 0, log.last_index))
        sim.submit()
        sim.checkpoint()
        sim.submit()


def disk_bytes(engine, log):
    """Return the disk space that the segments of a log take."""
    if isinstance(engine, DiskHarness):
        files = Path(log.files.directory).glob("*.log")
        return sum(path.stat().st_blocks * 512 for path in files)
    node = SimFileSystem(engine.disk)._directory(log.files.directory)
    return sum(
        min(inode.allocated, len(inode.data))
        for name, inode in node.entries.items()
        if name.endswith(".log")
    )


def bound(log):
    """Return the bytes that they hold, in blocks, plus a block or two each for the file system."""
    segments = {*(info.number for info in log.segments), log.placement.segment}
    held = sum(info.sealed.bytes if info.sealed else 0 for info in log.segments[:-1])
    return held + log.placement.position + 3 * BLOCK * len(segments)


def is_idle(engine):
    """Return True if no work is pending: no round is under way, and nothing is to be retried."""
    return engine.store._checkpoints._round is None and engine.store._checkpoints.rooms.is_empty


def is_small(engine, log):
    return disk_bytes(engine, log) <= bound(log)


def test_log_that_becomes_quiet_gives_its_room_back(engine):
    """Nothing is appended any more, and no flush runs. Then the server is idle."""
    append(engine, 8, size=SIZE)
    settle_all(engine)
    log = engine.log
    held = engine.all_entries(log)
    assert disk_bytes(engine, log) > 1 << 20
    engine.workers.advance(ROUNDS_MS)
    assert is_small(engine, log)
    assert not log.placement.rooms
    assert is_idle(engine)
    for _ in range(3):  # and it begins anew
        append(engine, 8, size=SIZE)
        settle_all(engine)
    assert log.placement.rooms
    before = written(engine)
    append(engine, 8, size=SIZE)
    engine.submit()
    assert written(engine) > before
    held += engine.all_entries(log)[len(held) :]
    engine.reopen()
    assert engine.all_entries(engine.log) == held


def test_log_that_goes_on_keeps_its_room(engine):
    """A large append in each round is enough."""
    for _ in range(12):
        engine.workers.advance(700)
        append(engine, 4, size=SIZE)
        engine.submit()
        commit(engine)
        engine.submit()
    assert written(engine) > 10 * 4 * SIZE


def test_log_whose_entries_are_never_committed_gives_its_room_back(engine):
    """Placed entries stay; rounds do not go on for ever."""
    append(engine, 8, size=SIZE)
    engine.submit()
    log = engine.log
    held, flushed = engine.all_entries(log), log.flushed_index
    engine.workers.advance(ROUNDS_MS)
    assert is_small(engine, log)
    assert is_idle(engine)
    engine.reopen()
    assert engine.all_entries(engine.log) == held
    assert engine.log.flushed_index == flushed
    engine.workers.advance(ROUNDS_MS)
    assert is_small(engine, engine.log)
    assert is_idle(engine)


def test_next_file_that_nothing_is_in_goes(tmp_path):
    """The segment ends before its preallocated space does."""
    engine = settled(
        DiskHarness(replace(LARGE, segment_bytes=64 << 10), directory=str(tmp_path / "d")),
        SIZE,
    )
    log = engine.log
    following = Path(log.files.segment_path(log.placement.segment + 1))
    assert following.exists()
    engine.workers.advance(ROUNDS_MS)
    assert not following.exists()
    assert is_small(engine, log)
    engine.crash()


@pytest.mark.parametrize("is_placing", [True, False])
def test_room_of_a_life_before_goes_back(engine, is_placing):
    """A crash leaves it; also where the next run places nothing."""
    append(engine, 8, size=SIZE)
    settle_all(engine)
    held = engine.all_entries(engine.log)
    if not is_placing:
        engine.options = replace(LARGE, place_bytes_min=0)
    engine.reopen()
    assert not is_small(engine, engine.log)
    engine.workers.advance(ROUNDS_MS)
    assert is_small(engine, engine.log)
    assert is_idle(engine)
    assert engine.all_entries(engine.log) == held
    engine.close()
    engine.start()
    engine.workers.advance(ROUNDS_MS)
    assert is_small(engine, engine.log)


def test_cut_that_was_not_durable_is_made_again(sim):
    """A power cut brings back allocated space."""
    append(sim, 8, size=SIZE)
    settle_all(sim)
    sim.workers.advance(ROUNDS_MS)
    held = sim.all_entries(sim.log)
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held
    sim.workers.advance(ROUNDS_MS)
    assert is_small(sim, sim.log)


def test_start_of_many_logs_looks_at_some_at_a_time(sim, monkeypatch):
    """All logs have their turn."""
    monkeypatch.setattr(rooms, "LOOKS_MAX", 2)
    logs = [sim.log, *(sim.new_log() for _ in range(9))]
    settle_twice(sim, logs)
    sim.reopen()
    sim.workers.advance(ROUNDS_MS)
    assert all(is_small(sim, log) for log in sim.store.logs.values())
    assert is_idle(sim)


def test_log_whose_turn_others_need_gives_its_room_back(sim, monkeypatch):
    """A log releases its space at once when others need its place among `ROOMS_MAX`."""
    monkeypatch.setattr(rooms, "ROOMS_MAX", 2)
    logs = [sim.log, *(sim.new_log() for _ in range(5))]
    settle_twice(sim, logs)
    sim.workers.advance(400)
    assert sum(bool(log.placement.rooms) for log in logs) == 2
    assert all(is_small(sim, log) for log in logs if not log.placement.rooms)


def test_nothing_is_cut_while_a_payload_is_under_way(sim):
    """No file is truncated while a payload is under way.

    It may lie anywhere in the released space.
    """
    append(sim, 8, size=SIZE)
    block, payload = jobs(sim)
    log = sim.log
    sim.store._checkpoints.rooms.give_up_all()
    for _ in range(3):
        sim.store.checkpoint()
        sim.pump()
    assert not log.placement.rooms
    assert not is_small(sim, log)
    for job, done in (payload, block):
        done(job())
    sim.pump()
    held = sim.all_entries(log)
    sim.workers.advance(ROUNDS_MS)
    assert is_small(sim, log)
    assert is_idle(sim)
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held


def test_what_was_cut_off_goes_back_too(sim):
    """Large entries that a new leader replaces with a small one."""
    append(sim, 8, size=40_000)
    sim.submit()
    log = sim.log
    sim.workers.advance(ROUNDS_MS)
    assert is_small(sim, log)
    append(sim, 1, first=log.last_index - 7, term=2, size=20)
    settle_all(sim)
    sim.workers.advance(ROUNDS_MS)
    assert disk_bytes(sim, log) < 64 << 10
    assert is_small(sim, log)
    assert is_idle(sim)


def test_segments_of_which_all_was_cut_off_go_back_too(tmp_path):
    """Segments of truncated entries are removed before a flush.

    The entries that follow may be too few for one.
    """
    options = replace(LARGE, segment_bytes=64 << 10)
    engine = settled(DiskHarness(options, directory=str(tmp_path / "data")), SIZE)
    log = engine.log
    for _ in range(3):
        append(engine, 5, size=SIZE)
        settle_all(engine)
    first = log.last_index + 1
    append(engine, 8, size=SIZE)
    engine.submit()
    assert log.placement.begun
    append(engine, 1, first=first, term=2, size=20)
    engine.submit()
    held, flushed = engine.all_entries(log), log.flushed_index
    engine.workers.advance(ROUNDS_MS)
    assert log.flushed_index == flushed
    assert len(list(Path(log.files.directory).glob("*.log"))) == len(log.segments)
    assert is_small(engine, log)
    engine.reopen()
    assert engine.all_entries(engine.log) == held
    settle_all(engine)
    engine.crash()


@pytest.mark.parametrize("what", ["reset", "delete"])
def test_log_that_is_no_more_has_nothing_to_give_back(engine, what):
    """A deleted log's files are removed, and its pending releases are forgotten."""
    append(engine, 8, size=SIZE)
    block, payload = jobs(engine)
    log = engine.log
    if what == "reset":
        engine.store.reset_log(log, first_index=99, prev_term=1, next_offset=99)
    else:
        engine.store.delete_log(log.log_id)
    for job, done in (payload, block):
        done(job())
    engine.submit()
    engine.workers.advance(ROUNDS_MS)
    assert engine.fatal == []
    assert is_idle(engine)
    if what == "reset":
        append(engine, 4, size=SIZE)
        settle_all(engine)
        held = engine.all_entries(log)
        engine.workers.advance(ROUNDS_MS)
        engine.reopen()
        assert engine.all_entries(engine.log) == held


def test_refused_cut_is_tried_again_and_is_no_full_disk(sim, monkeypatch):
    """Nothing waits for it."""
    monkeypatch.setattr(rooms, "give_back", refuse)
    monkeypatch.setattr(scheduler, "give_back", refuse)
    sim.workers.advance(ROUNDS_MS)
    assert not sim.store.disk_full
    assert not is_small(sim, sim.log)
    monkeypatch.undo()
    sim.workers.advance(ROUNDS_MS)
    assert is_small(sim, sim.log)
    assert sim.fatal == []


def refuse(*_):
    raise OSError(errno.ENOSPC, "no room to free any")


def test_unreadable_end_is_left_alone(tmp_path, monkeypatch):
    """The file keeps its length, and the truncation is not retried for ever."""
    engine = settled(DiskHarness(LARGE, directory=str(tmp_path / "data")), SIZE)

    def unreadable(self, length):
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(RealFile, "truncate", unreadable)
    engine.workers.advance(ROUNDS_MS)
    monkeypatch.undo()
    assert engine.fatal == []
    assert is_idle(engine)
    engine.crash()


def test_failed_sync_of_names_is_the_end(engine, request):
    """A failed sync of a directory is fatal, as every other failed sync."""
    request.addfinalizer(lambda: failpoint.arm(""))
    failpoint.arm("room.cut:error")
    engine.workers.advance(ROUNDS_MS)
    assert len(engine.fatal) == 1


@pytest.mark.parametrize("at", [1, 2])
def test_room_that_was_refused_leaves_nothing(tmp_path, monkeypatch, at):
    """A refused preallocation leaves nothing.

    The system may have allocated a part of it when the disk was full, in this file or the next.
    """
    options = replace(LARGE, segment_bytes=64 << 10)
    engine = settled(DiskHarness(options, directory=str(tmp_path / "data")), SIZE)
    engine.workers.advance(ROUNDS_MS)
    log = engine.log
    allocate, calls = os.posix_fallocate, []

    def partly(fd, offset, length):
        calls.append(length)
        if len(calls) == at:
            allocate(fd, offset, length // 2)
            raise OSError(errno.ENOSPC, "full")
        allocate(fd, offset, length)

    append(engine, 4, size=SIZE)
    commit(engine)
    engine.submit()
    monkeypatch.setattr(os, "posix_fallocate", partly)
    engine.store.checkpoint()
    engine.workers.run_one(engine.workers.pool_jobs)
    monkeypatch.undo()
    assert len(calls) == at
    assert not engine.store.disk_full
    names = [path.name for path in Path(log.files.directory).glob("*.log")]
    assert len(names) == len(log.segments)
    if at == 1:
        assert is_small(engine, log)
    engine.crash()


def test_no_room_is_made_of_the_last_of_a_disk(sim):
    """Preallocation leaves space for the journal and the segments.

    Several times its own size remain, too.
    """
    kept = sim.store._checkpoints._space_kept
    sim.workers.advance(ROUNDS_MS)
    for room, is_made in ((kept, False), (kept + (3 << 20), False), (kept + (9 << 20), True)):
        sim.disk.room = room
        append(sim, 4, size=SIZE)
        settle_all(sim)
        assert bool(sim.log.placement.rooms) is is_made
        assert is_made or sim.disk.room > kept - (1 << 20)


def test_disk_that_others_fill_takes_the_room_back(sim):
    """Preallocated space is released before others fill the disk."""
    append(sim, 4, size=SIZE)
    settle_all(sim)
    assert sim.log.placement.rooms
    sim.disk.room = sim.store._checkpoints._space_kept - 1
    sim.workers.advance(200)
    append(sim, 4, size=SIZE)
    settle_all(sim)
    sim.workers.advance(200)
    assert not sim.log.placement.rooms
    assert is_small(sim, sim.log)
    assert not sim.store.disk_full


def test_nothing_is_placed_where_files_are_not_written_in_place(tmp_path):
    """Overwriting preallocated zeros needs other blocks there, which a full disk does not have."""
    sim = SimHarness(LARGE, disk=SimDisk(random.Random(7), DiskProfile()))
    sim.disk.writes_in_place = False
    sim.start()
    sim.new_log()
    for _ in range(4):
        append(sim, 4, size=SIZE)
        settle_all(sim)
    assert not sim.store.writes_in_place
    assert written(sim) == 0
    assert is_small(sim, sim.log)
    assert sim.store._recovered.identity.has_places is False
    engine = DiskHarness(LARGE, directory=str(tmp_path / "data"))
    engine.start()
    assert engine.store.writes_in_place
    assert has_places(engine)
    engine.crash()


def test_type_of_a_mount_is_what_the_system_says(tmp_path):
    """A file system writes in place or not, by the type of the mount that holds the directory.

    A missing path has none.
    """
    fs = RealFileSystem()
    assert fs.writes_in_place("/dev/shm")
    assert not fs.writes_in_place("/proc")
    assert not fs.writes_in_place(str(tmp_path / "missing"))


class QuietLives(CrowdedLives):
    """Histories at whose ends nothing more is appended."""

    def die(self):
        if self.rng.random() < 0.3:
            self.engine.disk.room = None
            self.rest()
        super().die()

    def rest(self):
        """Check that no log takes more of the disk than it needs."""
        engine = self.engine
        engine.pump()
        engine.workers.advance(40_000)
        assert engine.fatal == []
        for log in engine.store.logs.values():
            assert not log.placement.rooms
            if log.placement.segment:
                assert disk_bytes(engine, log) <= self.needed(log)

    def needed(self, log):
        """Return the bytes needed.

        The next flush to a segment that payloads have filled cuts it to length.
        """
        full = self.limits.bytes * len(log.placement.begun)
        held = [info for info in log.segments if info.number < log.placement.segment]
        sizes = [log.files.fs.open(log.files.segment_path(info.number)).size() for info in held]
        return sum(sizes) + full + log.placement.position + BLOCK


@pytest.mark.parametrize("seed", range(40))
def test_logs_at_rest_have_no_more_than_they_need(seed, monkeypatch):
    """Idle logs hold no more space than needed, after any operations and refusals."""
    if seed % 3:
        monkeypatch.setattr(rooms, "ROOMS_MAX", 1 + seed % 2)
    lives = live(QuietLives, seed, 120, monkeypatch)
    lives.rest()
    lives.settle()


FULL_LIVES = 12
COST = 2 << 20
"""Bytes that a disk may take less than without preallocation: files are laid out differently."""


def twins(seed):
    """Return two engines on disks that are about to be full; the first preallocates.

    Its disk has a little more space.
    """
    made = []
    for place_bytes_min in (400, 0):
        options = replace(LARGE, segment_bytes=1 << 20, place_bytes_min=place_bytes_min)
        engine = SimHarness(options, disk=SimDisk(random.Random(seed), DiskProfile()))
        engine.disk.returns_room = True
        engine.start()
        for _ in range(12):
            engine.new_log()
        engine.workers.advance(1000)
        engine.disk.room = 48 << 20
        made.append(engine)
    made[0].disk.room += COST
    return made


@pytest.mark.parametrize("seed", range(FULL_LIVES))
def test_disk_becomes_full_no_sooner_for_the_room_that_is_made(seed):
    """Preallocation does not fill a disk sooner.

    The same appends run on two disks, one without it, and as long as that one accepts appends, the
    other does, too.
    """
    rng = random.Random(seed)
    placing, other = engines = twins(seed)
    ids = sorted(placing.store.logs)
    while not other.store.disk_full:
        log_id, count, size = rng.choice(ids), rng.randint(1, 12), rng.choice((50, 5_000, 20_000))
        is_committed, wait_ms = rng.random() < 0.7, rng.choice((0, 0, 0, 100))
        for engine in engines:
            log = engine.store.logs[log_id]
            engine.store.append(log, entries_from(log, log.last_index + 1, count, 1, size))
            if is_committed:
                engine.store.set_hard_state(log, HardState(1, 0, log.last_index))
            engine.submit()
            engine.workers.advance(wait_ms)
            if engine.store.unflushed_bytes > 1 << 20:
                engine.checkpoint()
        if not other.store.disk_full:
            assert not placing.store.disk_full
    assert written(placing) > 1 << 20
