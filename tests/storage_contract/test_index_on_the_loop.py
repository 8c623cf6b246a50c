"""The loop reads single Idx where it must; damaged indexes are rebuilt in the pool."""

import errno
import random
from dataclasses import replace

import pytest

from segments.api import (
    CorruptRecord,
    HardState,
    NotInMemory,
    OffsetOutOfRange,
    ReadRefused,
    StoredEntry,
    StoreOptions,
)
from segments.io.inline_workers import InlineWorkers
from segments.log.index import IDX_BYTES, INDEX_HEADER_BYTES
from segments.store import DiskStore
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFile, SimFileSystem

OPTIONS = replace(
    StoreOptions(), journal_file_bytes=4 << 20, journal_first_file_bytes=256 << 10,
    segment_bytes=1 << 20, cache_bytes_max=64 << 10, checkpoint_bytes=1 << 30,
    scrub_bytes_per_second=0,
)  # fmt: skip


@pytest.fixture
def log_on_disk():
    """Return (store, its log of 800 entries, all in segments and few of them in memory)."""
    workers = InlineWorkers()
    fs = SimFileSystem(SimDisk(random.Random(1), DiskProfile()))
    store = DiskStore.open(fs, "data", workers, OPTIONS, random.Random(2))
    made = []
    store.create_log(9, 1, on_created=made.append)
    workers.pump()
    (log,) = made
    for first in range(1, 801, 50):
        entries = [
            StoredEntry(1, n, 0, bytes(2_000), n - 1, 1, n) for n in range(first, first + 50)
        ]
        store.append(log, entries)
        store.set_hard_state(log, HardState(1, 0, first + 49))
        store.submit()
        workers.pump()
        store.checkpoint()
        workers.pump()
    assert log.flushed_index == 800
    return store, workers, log


def test_trim_at_a_damaged_idx_reads_no_segment_and_succeeds_once_it_is_rebuilt(
    log_on_disk, monkeypatch
):
    """Reading a segment of a gibibyte would block the server for seconds.

    Nothing is staged, and the caller learns which entry to read, which rebuilds its Idx.
    """
    store, workers, log = log_on_disk
    file = log.files.fs.open(log.files.index_path(0))
    position = INDEX_HEADER_BYTES + IDX_BYTES * 600
    (flipped,) = file.pread(1, position)
    file.pwrite([bytes([flipped ^ 1])], position)
    read = []
    pread = SimFile.pread

    def counted(self, length, position):
        read.append(length)
        return pread(self, length, position)

    monkeypatch.setattr(SimFile, "pread", counted)
    before = log.first_index, log.log_start_offset
    with pytest.raises(CorruptRecord) as raised:
        store.trim_log(log, first_index=601)
    assert raised.value.position == 600
    assert sum(read) < 10_000
    assert (log.first_index, log.log_start_offset) == before
    found = []
    store.entries_cold(log, 600, 601, 1, found.append)
    workers.pump()
    assert [entry.index for entry in found[0]] == [600]
    store.trim_log(log, first_index=601)
    assert (log.first_index, log.log_start_offset) == (601, 600)


def test_trim_without_its_index_on_a_full_disk_ends_nobody(log_on_disk):
    """An index that cannot be rebuilt for want of space is damaged, also for that read."""
    store, workers, log = log_on_disk
    fatal = []
    store.on_fatal = fatal.append
    fs = log.files.fs
    fs.unlink(log.files.index_path(0))
    fs.disk.room = 0
    with pytest.raises(CorruptRecord):
        store.trim_log(log, first_index=601)
    found = []
    store.entries_cold(log, 600, 601, 1, found.append)
    workers.pump()
    assert isinstance(found[0], CorruptRecord)
    assert fatal == []


def damage_idx(log, index):
    file = log.files.fs.open(log.files.index_path(0))
    position = INDEX_HEADER_BYTES + IDX_BYTES * index
    (flipped,) = file.pread(1, position)
    file.pwrite([bytes([flipped ^ 1])], position)


def cold(store, workers, log, offset, end_index):
    """Read as a consumer does: what is not in memory comes from disk."""
    answers = []
    try:
        return log.read(offset, end_index, 1 << 20)
    except NotInMemory:
        store.read_cold(log, offset, end_index, 1 << 20, answers.append)
    workers.pump()
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("offset", [10, 299, 300])
def test_read_up_to_a_damaged_idx_is_answered_and_heals_it(log_on_disk, offset, has_file):
    """The last readable entry determines the reader's end.

    For a consumer of committed transactions it is the last stable one, which may stay the last for
    long.
    """
    store, workers, log = log_on_disk
    if has_file:
        damage_idx(log, 300)
    else:
        log.files.fs.unlink(log.files.index_path(0))
    slices = cold(store, workers, log, offset, 300)
    assert slices.first_offset == offset
    assert slices.end_offset == 300
    assert len(slices.buffers) == 300 - offset
    assert log.offset_after(300) == 300


@pytest.mark.parametrize("offset", [301, 790, 800, 801])
def test_read_behind_a_damaged_idx_is_out_of_range(log_on_disk, offset):
    store, workers, log = log_on_disk
    damage_idx(log, 300)
    with pytest.raises(OffsetOutOfRange):
        cold(store, workers, log, offset, 300)


def test_read_of_the_flushed_end_needs_no_idx(log_on_disk):
    """A consumer that has caught up polls repeatedly."""
    _, _, log = log_on_disk
    log.files.fs.unlink(log.files.index_path(0))
    assert log.offset_after(800) == 800
    assert log.read(800, 800, 1_000).buffers == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_look_up_without_a_descriptor_is_refused_and_ends_nobody(log_on_disk, monkeypatch, code):
    """Nothing is staged, and the read goes to the disk, as any other that is not in memory."""
    store, workers, log = log_on_disk
    fatal = []
    store.on_fatal = fatal.append

    def refused(fs, path, *, create=False):
        raise OSError(code, "none to spare")

    with monkeypatch.context() as patch:
        patch.setattr(SimFileSystem, "open", refused)
        with pytest.raises(ReadRefused):
            log.offset_after(300)
        with pytest.raises(ReadRefused):
            store.trim_log(log, first_index=301)
        with pytest.raises(NotInMemory):
            log.read(10, 300, 1_000)
        with pytest.raises(ReadRefused):
            cold(store, workers, log, 10, 300)
    assert log.first_index == 1
    store.trim_log(log, first_index=301)
    assert log.first_index == 301
    assert fatal == []
