"""Readers whose windows name entries that are now trimmed, or whose segments are emptied."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from segments.api import HardState, Slices, StorageError, StoredEntry
from segments.io.inline_workers import InlineWorkers
from segments.log.log import DiskLog
from segments.store import DiskStore
from tests.storage_contract.test_scrap import OPTIONS
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFileSystem

SMALL = replace(OPTIONS, index_segment_entries=1 << 16, cache_bytes_max=16 << 10, place_bytes_min=0)


class Filled:
    """A log of which only the newest entry is in memory."""

    def __init__(self, segment_bytes: int) -> None:
        self.workers = InlineWorkers()
        self.fs = SimFileSystem(SimDisk(random.Random(1), DiskProfile()))
        options = replace(SMALL, segment_bytes=segment_bytes)
        self.store = DiskStore.open(self.fs, "data", self.workers, options, random.Random(2))
        made: list[DiskLog] = []
        self.store.create_log(9, 1, on_created=made.append)
        self.workers.pump()
        (self.log,) = made

    def append(self, sizes: list[int], *, records: int = 1) -> None:
        first = self.log.last + 1
        entries = [
            StoredEntry(1, first + n, 0, bytes(size), self.log.offset + n * records, records, 5)
            for n, size in enumerate(sizes)
        ]
        self.store.append(self.log, entries)
        self.store.set_hard_state(self.log, HardState(1, 0, self.log.last))
        self.store.submit()
        self.workers.pump()

    def flush(self) -> None:
        self.store.checkpoint()
        self.workers.pump()
        self.workers.advance(300)

    def trim(self, first: int) -> None:
        self.store.trim_log(self.log, first_index=first)
        self.store.submit()
        self.workers.pump()
        self.workers.advance(300)

    def read(self, offset: int, bytes_max: int) -> Slices | StorageError:
        found: list[Slices | StorageError] = []
        self.store.read_cold(self.log, offset, self.log.last, bytes_max, found.append)
        self.workers.pump()
        (one,) = found
        return one


@pytest.fixture
def filled() -> Filled:
    """Return 32 entries in the first segment, the last of which is a command."""
    made = Filled(64 << 10)
    made.append([2_000] * 31)
    made.append([1_500], records=0)
    made.append([2_000] * 200)
    made.flush()
    assert made.log.segments[1].first_index == 33
    return made


def test_reader_that_stands_where_the_log_begins_reads_on(filled: Filled) -> None:
    """A reader continues at the log's start, though its window names a trimmed entry.

    That is the next entry, a command, whose segment is gone.
    """
    one = filled.read(0, 31 * 2_000)
    assert isinstance(one, Slices)
    assert one.end_offset == 31
    filled.trim(33)
    assert filled.log.log_start_offset == 31
    assert not filled.fs.exists(filled.log.files.segment_path(1))
    one = filled.read(31, 4_000)
    assert isinstance(one, Slices)
    assert (one.first_offset, one.end_offset) == (31, 33)


def test_read_that_was_under_way_when_the_log_was_trimmed_begins_again(filled: Filled) -> None:
    """The entry that it began with is gone; the requested one is there."""
    filled.read(0, 31 * 2_000)
    found: list[Slices | StorageError] = []
    filled.store.read_cold(filled.log, 31, filled.log.last, 4_000, found.append)
    filled.store.trim_log(filled.log, first_index=33)
    filled.fs.unlink(filled.log.files.segment_path(1))  # as soon as no reader needs it
    filled.workers.pump()
    (one,) = found
    assert isinstance(one, Slices)
    assert (one.first_offset, one.end_offset) == (31, 33)


def test_small_read_gets_past_emptied_entries_in_large_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step opens the files anew."""
    made = Filled(64 << 20)
    for _ in range(40):
        made.append([0] * 500)
    made.append([1_000] * 100)
    made.flush()
    opened: list[str] = []
    really = SimFileSystem.open

    def noted(fs: SimFileSystem, path: str, *, create: bool = False) -> object:
        opened.append(path)
        return really(fs, path, create=create)

    monkeypatch.setattr(SimFileSystem, "open", noted)
    one = made.read(0, 1)
    assert isinstance(one, Slices)
    assert one.bytes == 1_000
    assert len(opened) < 100
