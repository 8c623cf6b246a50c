"""Data without readers does not fill the system's page cache.

On replicas that consumers do not read, data written to segments leaves the cache once it is synced.
"""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from segments.io import fs
from segments.io.fs import RealFile, uncache_steps
from tests.storage_contract.conftest import PLACING, SMALL, DiskHarness
from tests.storage_contract.test_placed import append, commit, settle_all, settled

STEP = 1_024
"""Step of this test in place of `UNCACHE_BYTES`."""


@pytest.fixture
def calls(monkeypatch):
    """Record what was synced and uncached of segments, in order: (call, start, length)."""
    made = []

    def is_segment(file):
        name = str(Path(f"/proc/self/fd/{file._fd}").readlink())
        return name.endswith(".log") and "/journal/" not in name

    def uncache(file, length=0, position=0):
        if is_segment(file):
            made.append(("uncached", position, length))

    def sync(file):
        real_sync(file)
        if is_segment(file):
            made.append(("synced", 0, 1 << 40))

    def pwrite(file, buffers, position, *, durable=False):
        written = real_pwrite(file, buffers, position, durable=durable)
        if durable and is_segment(file):
            made.append(("synced", position, written))
        return written

    real_sync, real_pwrite = RealFile.sync, RealFile.pwrite
    monkeypatch.setattr(fs, "UNCACHE_BYTES", STEP)
    monkeypatch.setattr(RealFile, "uncache", uncache)
    monkeypatch.setattr(RealFile, "sync", sync)
    monkeypatch.setattr(RealFile, "pwrite", pwrite)
    return made


def uncached(calls):
    return [call for call in calls if call[0] == "uncached"]


@pytest.mark.parametrize(
    ("start", "end", "range_"),
    [
        (0, STEP - 1, None),
        (0, STEP, (0, STEP)),
        (STEP - 1, STEP + 1, (0, STEP)),
        (STEP, 3 * STEP + 5, (STEP, 2 * STEP)),
        (STEP + 1, 2 * STEP - 1, None),
    ],
)
def test_whole_steps_leave_the_page_cache(monkeypatch, start, end, range_):
    """Each once, whichever write fills it; the page that is written to next stays."""

    class Noting:
        ranges = ()

        def uncache(self, length=0, position=0):
            self.ranges += ((position, length),)

    monkeypatch.setattr(fs, "UNCACHE_BYTES", STEP)
    file = Noting()
    uncache_steps(file, start, end)
    assert file.ranges == (() if range_ is None else (range_,))


def test_payload_that_nobody_reads_leaves_the_page_cache_once_durable(tmp_path, calls):
    engine = settled(DiskHarness(PLACING, directory=str(tmp_path / "data")))
    engine.store.expect_reads(engine.log, False)
    calls.clear()
    for _ in range(8):
        append(engine)
        commit(engine)
        engine.submit()
    gone = uncached(calls)
    assert gone
    for position, length in [call[1:] for call in gone]:
        assert position % STEP == length % STEP == 0
    for before, call in pairwise(calls):
        if call[0] == "uncached":
            assert before[0] == "synced"
            assert before[1] + before[2] >= call[1] + call[2]
    engine.close()


def test_payload_that_consumers_may_read_stays(tmp_path, calls):
    """That is the initial state, and applies again as soon as a consumer reads."""
    engine = settled(DiskHarness(PLACING, directory=str(tmp_path / "data")))
    for ask in (False, True):
        if ask:
            engine.store.expect_reads(engine.log, False)
            found = []
            start = engine.log.log_start_offset
            engine.store.read_cold(engine.log, start, engine.log.last_index, 100, found.append)
        for _ in range(8):
            append(engine)
            settle_all(engine)
        assert uncached(calls) == []
    engine.close()


@pytest.mark.parametrize("is_read", [False, True])
def test_flush_of_what_nobody_reads(tmp_path, calls, is_read):
    """Small appends go to segments by a checkpoint. A full segment is uncached as a whole."""
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    engine.start()
    engine.new_log()
    engine.store.expect_reads(engine.log, is_read)
    while engine.log.cursor.segment < 2 or engine.log.cursor.position < 2 * STEP:
        append(engine, size=200)
        settle_all(engine)
    gone = uncached(calls)
    assert bool(gone) is not is_read
    if not is_read:
        assert ("uncached", 0, 0) in gone
        assert any(length for _, _, length in gone)
    engine.close()


def test_hint_that_is_refused_is_no_failure(tmp_path, monkeypatch):
    """Unlike a failed sync, it does not end the server."""

    def refused(*_):
        raise OSError(22, "no")

    monkeypatch.setattr(os, "posix_fadvise", refused)
    monkeypatch.setattr(fs, "UNCACHE_BYTES", STEP)
    engine = settled(DiskHarness(PLACING, directory=str(tmp_path / "data")))
    engine.store.expect_reads(engine.log, False)
    for _ in range(8):
        append(engine)
        settle_all(engine)
    assert engine.fatal == []
    engine.close()


def test_scrubber_reads_from_the_medium(tmp_path, monkeypatch):
    """All pages to be checked leave the page cache right before they are read.

    It may hold data that the medium has lost for months.
    """
    harness = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    harness.start()
    log = harness.new_log()
    append(harness, 40, size=100)
    commit(harness)
    harness.submit()
    harness.checkpoint()
    assert log.flushed_index == 40
    calls = []
    real_pread = RealFile.pread

    def pread(file, length, position):
        name = str(Path(f"/proc/self/fd/{file._fd}").readlink())
        if name.endswith(".log"):
            calls.append(("read", position, length))
        return real_pread(file, length, position)

    def uncache(file, length=0, position=0):
        calls.append(("uncached", position, length))

    monkeypatch.setattr(RealFile, "pread", pread)
    monkeypatch.setattr(RealFile, "uncache", uncache)
    index = 1
    while index <= 40:
        index, _, bad = log.files.check(index, 41, 600)
        assert not bad
    assert len(calls) >= 8
    for before, read in zip(calls[::2], calls[1::2], strict=True):
        assert (before[0], read[0]) == ("uncached", "read")
        assert before[1] <= read[1]
        assert before[1] + before[2] >= read[1] + read[2]
        assert before[1] % 4096 == before[2] % 4096 == 0
    harness.crash()
