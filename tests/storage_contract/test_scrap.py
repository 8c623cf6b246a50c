"""Leftovers of a flush that was not noted must never pass for live data."""

import errno
import random
from dataclasses import replace

import pytest

from segments.api import (
    Compacted,
    EntriesDamaged,
    HardState,
    SegmentLimits,
    StoredEntry,
    StoreOptions,
)
from segments.io.fs import RealFile, RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.log.segment_header import SegmentInfo, encode_segment_header
from segments.store import DiskStore
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFileSystem

OPTIONS = StoreOptions(
    journal_file_bytes=1 << 20,
    journal_first_file_bytes=256 << 10,
    segment_bytes=64 << 10,
    index_segment_entries=64,
    cache_bytes_max=1 << 20,
    checkpoint_bytes=1 << 30,
    checkpoint_entries=10**9,
    checkpoint_interval_ms=10**9,
    meta_map_bytes=1 << 20,
)
SMALL, LARGE = SegmentLimits(8 << 10), SegmentLimits(64 << 10)


class Engine:
    """A store with one log on a file system that outlives it."""

    def __init__(self, fs, directory, options=OPTIONS):
        self.fs, self.directory, self.options = fs, directory, options
        self.start()
        if not self.store.logs:
            self.store.create_log(9, 1, on_created=lambda log: None)
            self.workers.pump()

    def start(self):
        self.workers = InlineWorkers()
        self.store = DiskStore.open(
            self.fs, self.directory, self.workers, self.options, random.Random(1)
        )

    def restart(self):
        self.store.abandon()
        self.start()
        return self.log

    @property
    def log(self):
        (log,) = self.store.logs.values()
        return log

    def put(self, count):
        first = self.log.last_index + 1
        self.store.append(
            self.log,
            [
                StoredEntry(1, i, 0, i.to_bytes(2) * 100, i - 1, 1, i)
                for i in range(first, first + count)
            ],
        )
        self.store.set_hard_state(self.log, HardState(1, 7, first + count - 1))
        self.store.submit()
        self.workers.pump()

    def flush(self, limits):
        self.store.set_segment_limits(self.log, limits)
        self.store.checkpoint()
        self.workers.pump()
        self.workers.advance(1_500)

    def cut_flush(self, limits):
        """Run a flush whose files are written, and whose notes never reach the journal."""
        self.store.set_segment_limits(self.log, limits)
        self.store.checkpoint()
        while self.workers.pool_jobs:
            self.workers.run_one(self.workers.pool_jobs)

    def cold(self, ask, *arguments):
        found = []
        ask(self.log, *arguments, found.append)
        self.workers.pump()
        return found[0]

    def assert_whole(self):
        assert not self.log.lost
        assert not self.log.damaged
        index = self.log.first_index
        while index <= self.log.flushed_index:
            end = self.log.flushed_index + 1
            entries = self.cold(self.store.entries_cold, index, end, 1 << 20)
            assert isinstance(entries, list), entries
            for entry in entries:
                assert (entry.index, bytes(entry.data)) == (index, index.to_bytes(2) * 100)
                index += 1

    def segments(self):
        names = self.fs.list(f"{self.directory}/logs/00000001")
        return [int(name.partition(".")[0]) for name in names if name.endswith(".log")]


class FullFile(RealFile):
    """File that raises ENOSPC where `refuses(path, position)` is true."""

    __slots__ = ("path", "refuses")

    def pwrite(self, buffers, position, *, durable=False):
        if self.refuses(self.path, position):
            raise OSError(errno.ENOSPC, "full")
        return super().pwrite(buffers, position, durable=durable)


class FullFileSystem(RealFileSystem):
    """File system that is full at given places."""

    def __init__(self):
        self.refuses = lambda path, position: False

    def open(self, path, *, create=False):
        real = super().open(path, create=create)
        file = FullFile(real._fd)
        real._fd = -1
        file.path, file.refuses = path, self.refuses
        return file


def test_segments_of_a_flush_that_met_a_full_disk_do_not_come_back(tmp_path):
    """Leftover segments of a refused flush are not used again.

    Their entries are flushed to the previous segment later; if the leftovers counted, a trim would
    delete what replaced them.
    """
    fs = FullFileSystem()
    engine = Engine(fs, str(tmp_path / "data"))
    engine.put(120)
    fs.refuses = lambda path, position: path.endswith("0000000003.log") and position >= 64
    engine.flush(SMALL)
    assert engine.store.disk_full
    assert engine.segments() == [1, 2, 3]
    fs.refuses = lambda path, position: False
    engine.flush(LARGE)
    assert engine.segments() == [1]
    engine.restart()
    engine.put(400)
    engine.flush(LARGE)
    engine.store.trim_log(engine.log, first_index=80)
    engine.store.submit()
    engine.workers.advance(1_500)
    assert engine.segments() == [1, 2]
    engine.assert_whole()
    engine.restart()
    engine.assert_whole()


@pytest.mark.parametrize(("first", "then"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_idx_of_a_cut_flush_do_not_come_back_with_a_power_cut(first, then):
    """Leftover Idx, which pass their checks, do not return after a power cut.

    They name wrong positions.
    """
    for seed in range(20):
        disk = SimDisk(random.Random(seed), DiskProfile())
        engine = Engine(SimFileSystem(disk), "data")
        engine.put(100)
        engine.flush(LARGE)
        engine.put(100)
        engine.cut_flush(first)
        for number in (1, 2, 3):  # the kernel wrote them back
            engine.fs.open(f"data/logs/00000001/{number:010d}.index").sync()
        engine.restart()
        engine.flush(then)
        engine.put(1)
        engine.store.abandon()
        disk.power_cut()
        engine.start()
        engine.assert_whole()


def test_segment_cut_short_before_the_scrap_of_a_flush_is_scrap_itself(tmp_path):
    """Neither a segment whose header never arrived nor leftovers behind it hold live data."""
    engine = Engine(RealFileSystem(), str(tmp_path / "data"))
    engine.put(100)
    engine.flush(SMALL)
    last = engine.segments()[-1]
    engine.put(50)
    folder = tmp_path / "data/logs/00000001"
    header = encode_segment_header(SegmentInfo(last + 2, 130, 129), 1, 9)
    (folder / f"{last + 1:010d}.log").write_bytes(bytes(64))
    (folder / f"{last + 2:010d}.log").write_bytes(header)
    engine.restart()
    engine.assert_whole()
    assert engine.segments()[-1] == last
    engine.flush(SMALL)
    engine.restart()
    engine.assert_whole()


def test_missing_segment_is_damage_and_not_the_start_of_the_log(tmp_path):
    """A missing segment is damage.

    A reader must not get the error for entries deleted by intent.
    """
    engine = Engine(RealFileSystem(), str(tmp_path / "data"))
    engine.put(200)
    engine.flush(SMALL)
    engine.store.trim_log(engine.log, first_index=60)
    engine.store.submit()
    engine.workers.advance(1_500)
    second = engine.log.segments[1]
    (tmp_path / f"data/logs/00000001/{second.number:010d}.log").unlink()
    found = engine.cold(engine.store.entries_cold, second.first_index, 200, 1 << 20)
    assert isinstance(found, EntriesDamaged)
    assert engine.log.damaged
    ask = []
    engine.store.entries_cold(engine.log, 60, 61, 1 << 20, ask.append)
    engine.store.trim_log(engine.log, first_index=150)  # before the read reaches the disk
    engine.store.submit()
    (tmp_path / f"data/logs/00000001/{engine.log.segments[0].number:010d}.log").unlink(
        missing_ok=True
    )
    engine.workers.advance(1_500)
    assert isinstance(ask[0], Compacted | list)


def test_time_is_found_though_a_flush_ends_during_the_search(tmp_path):
    """Data to be searched in memory may be on disk only by the time the disk search returns."""
    for cache_bytes in (64 << 10, 0):
        options = replace(OPTIONS, cache_bytes_max=cache_bytes)
        engine = Engine(RealFileSystem(), str(tmp_path / f"{cache_bytes}"), options)
        engine.put(100)
        engine.flush(LARGE)
        engine.put(400)
        found = []
        engine.store.index_of_timestamp(engine.log, 150, 500, found.append)
        search = engine.workers.pool_jobs.popleft()
        engine.flush(LARGE)
        assert not engine.log.tail.first or engine.log.tail.first > 150
        engine.workers.pool_jobs.append(search)
        engine.workers.pump()
        assert found == [150]
