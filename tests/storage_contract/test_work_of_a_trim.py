"""Work of a trim, counted in calls: proportional to what it removes, not to the log's files."""

from dataclasses import replace

import pytest

from segments.api import HardState, StoredEntry
from segments.checkpoint.flusher import Pulse
from segments.checkpoint.trimming import RemoveBelow
from segments.log.log import DiskLog
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo
from segments.log.tail_cache import TailCache
from tests.storage_contract.conftest import SMALL, SimHarness
from vdl.sim.filesystem import SimFileSystem

OPTIONS = replace(SMALL, segment_bytes=600, checkpoint_bytes=1 << 30, checkpoint_entries=1 << 30)
ENTRIES = 600


@pytest.fixture
def engine():
    """Yield a log of some 300 segments and 38 index files."""
    made = SimHarness(OPTIONS)
    made.start()
    log = made.new_log()
    for first in range(1, ENTRIES + 1, 20):
        made.store.append(
            log, [StoredEntry(1, n, 0, bytes(200), n - 1, 1, n) for n in range(first, first + 20)]
        )
        made.store.set_hard_state(log, HardState(1, 0, first + 19))
        made.submit()
        made.checkpoint()
    assert len(log.segments) >= 200
    return made


def names(engine):
    directory = engine.disk.root.entries["data"].entries["logs"].entries
    return sorted(directory[f"{engine.log.log_id:08x}"].entries)


def trim(engine, first_index):
    engine.store.trim_log(engine.log, first_index=first_index)
    engine.submit()
    for _ in range(4):
        engine.workers.advance(300)


def indexes(engine):
    return [int(name[:10]) for name in names(engine) if name.endswith(".index")]


def test_trim_looks_at_no_file_that_stays(engine, monkeypatch):
    """No names are listed."""
    calls = []

    def count(what):
        call = getattr(SimFileSystem, what)

        def counted(self, path, **options):
            calls.append((what, path))
            return call(self, path, **options)

        monkeypatch.setattr(SimFileSystem, what, counted)

    for what in ("list", "exists", "unlink", "is_directory"):
        count(what)
    for first_index in (41, 101):
        before, calls[:] = names(engine), []
        trim(engine, first_index)
        gone = set(before) - set(names(engine))
        assert gone
        about_logs = [path for _, path in calls if "/logs/" in path]
        assert not [path for what, path in calls if what == "list" and "/logs/" in path]
        assert {path.rpartition("/")[2] for path in about_logs} <= gone
        assert len(about_logs) <= 3 * len(gone)
        assert indexes(engine)[0] == first_index // OPTIONS.index_segment_entries


def test_index_files_that_a_crash_left_behind_a_trim_go_at_the_next_start(engine, monkeypatch):
    """The next trim does not look for them."""
    unlink = SimFileSystem.unlink

    def no_index(self, path):
        if not path.endswith(".index"):
            unlink(self, path)

    monkeypatch.setattr(SimFileSystem, "unlink", no_index)
    trim(engine, 301)
    monkeypatch.undo()
    engine.reopen()
    assert engine.log.first_index == 301
    assert indexes(engine)[0] == 301 // OPTIONS.index_segment_entries
    found = engine.cold(engine.store.entries_cold, engine.log, 301, 601, 1 << 20)
    assert [entry.index for entry in found] == list(range(301, 301 + len(found)))


@pytest.mark.parametrize("segments", [200, 20_000])
@pytest.mark.parametrize("count", [1, 40])
def test_trim_asks_for_what_goes_however_many_segments_stay(segments, count):
    asked = []

    class Asked:
        def __getattr__(self, what):
            def call(path):
                asked.append((what, path))
                return what == "exists"

            return call

    files = LogFiles(Asked(), "log", 1, 9, 16)
    log = DiskLog(
        files, 1, TailCache(1 << 20), first_index=1, prev_term=0, next_offset=0,
    )  # fmt: skip
    log.recovered([SegmentInfo(n + 1, 10 * n + 1, 10 * n) for n in range(segments)])
    first_index = 10 * count + 1
    gone = log.drop_segments(first_index)
    assert [segment.number for segment in gone] == list(range(1, count + 1))
    remove = RemoveBelow(files, gone, first_index, Pulse())
    while remove():
        pass
    paths = {path for what, path in asked if what == "unlink"}
    assert len(paths) == count + first_index // 16
    assert {path for _, path in asked} == {*paths, "log"}
    assert len(asked) <= 3 * len(paths) + 1
