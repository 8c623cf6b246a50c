"""A directory that is opened with all changes in memory."""

import random
from contextlib import contextmanager

import pytest

from segments.io.inline_workers import InlineWorkers
from segments.io.scratch_fs import ScratchFileSystem
from segments.store import DiskStore
from tests.storage_contract.damage import flip_bit
from tests.unit.segments.conftest import OPTIONS


def contents(path):
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@contextmanager
def opened(bench):
    """Open the directory in memory, and close it. The disk has the same bytes as before."""
    before = contents(bench.path)
    workers = InlineWorkers()
    store = DiskStore.open(ScratchFileSystem(), bench.directory, workers, OPTIONS, random.Random(4))
    try:
        yield store, workers
    finally:
        store.close(lambda: None)
        workers.advance(1_000)
        store.abandon()
        assert contents(bench.path) == before


def test_a_start_in_memory_finds_what_a_start_finds(bench):
    """The same logs, entries and states, as of a crash."""
    first, _ = bench.create(2)
    bench.append(first, 40, size=300)
    bench.checkpoint()
    bench.append(first, 3, commit=False)
    bench.store.abandon()
    with opened(bench) as (store, _):
        found = {log.group_id: (log.last_index, log.commit_index) for log in store.logs.values()}
    bench.open()
    assert found == {9: (43, 40), 10: (0, 0)}
    assert found == {
        log.group_id: (log.last_index, log.commit_index) for log in bench.store.logs.values()
    }


def test_changes_are_seen_and_dropped(bench):
    """Appends, checkpoints, new and deleted logs: all in memory."""
    (log,) = bench.create(1)
    bench.append(log, 40, size=300)
    bench.store.abandon()
    with opened(bench) as (store, workers):
        bench.store, bench.workers = store, workers
        (log,) = store.logs.values()
        bench.append(log, 40, size=300)
        bench.checkpoint()
        bench.create(1)
        store.delete_log(log.log_id)
        bench.idle()
        assert [log.group_id for log in store.logs.values()] == [9]
        assert log.last_index == 80
    bench.open()
    (log,) = bench.store.logs.values()
    assert log.last_index == 40


def test_damaged_index_is_rebuilt_in_memory(bench):
    """A start repairs it, so it does not stop this one."""
    (log,) = bench.create(1)
    bench.append(log, 40, size=300)
    bench.checkpoint()
    bench.store.abandon()
    for file in (bench.path / "logs/00000001").glob("*.index"):
        flip_bit(file, file.stat().st_size - 20)
    with opened(bench) as (store, _):
        (log,) = store.logs.values()
        assert log.last_index == 40
        assert not log.lost


@pytest.mark.parametrize("name", ["there", "new"])
def test_names_change_in_memory_only(tmp_path, name):
    """Renamed files keep their contents, also while they are open; removed ones are gone."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/there").write_bytes(b"old")
    fs, folder = ScratchFileSystem(), str(tmp_path / "folder")
    path = f"{folder}/{name}"
    file = fs.open(path, create=name == "new")
    fs.rename(path, f"{folder}/renamed")
    file.pwrite([b"abc"], 1)
    assert fs.open(f"{folder}/renamed").pread(9, 1) == b"abc"
    assert not fs.exists(path)
    fs.rename(folder, str(tmp_path / "moved"))
    assert fs.list(str(tmp_path)) == ["moved"]
    assert fs.open(f"{tmp_path}/moved/renamed").size() == 4
    assert "renamed" in fs.list(f"{tmp_path}/moved")
    fs.remove_tree(f"{tmp_path}/moved")
    assert fs.list(str(tmp_path)) == []
    with pytest.raises(FileNotFoundError):
        fs.open(f"{tmp_path}/moved/renamed")
    assert (tmp_path / "folder/there").read_bytes() == b"old"
