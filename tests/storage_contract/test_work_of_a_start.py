"""Work of a start after a power cut, counted in bytes and calls.

It reads of each log what was not known to be durable, and not its newest segment as a whole.
"""

import random
from dataclasses import replace

import pytest

from segments.api import HardState, StoredEntry, StoreOptions
from segments.checkpoint.flusher import INDEX_SYNC_BYTES, INDEX_SYNC_ENTRIES
from tests.storage_contract.conftest import SimHarness
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFile, SimMeta

OPTIONS = replace(
    StoreOptions(), journal_file_bytes=4 << 20, journal_first_file_bytes=256 << 10,
    segment_bytes=32 << 20, cache_bytes_max=8 << 20, checkpoint_bytes=1 << 30,
    scrub_bytes_per_second=0, place_bytes_min=0,
)  # fmt: skip


class Forgetful(random.Random):
    """File system of which a power cut keeps nothing unsynced."""

    def random(self):
        return 0.0


class Reads:
    """Bytes read, by kind of file."""

    def __init__(self, monkeypatch, disk):
        self.kinds = {}
        self.bytes = {"log": 0, "index": 0}
        self.disk = disk
        pread = SimFile.pread

        def counted(file, length, position):
            data = pread(file, length, position)
            kind = self.kinds.get(id(file._inode))
            if kind is not None:
                self.bytes[kind] += len(data)
            return data

        monkeypatch.setattr(SimFile, "pread", counted)

    def watch(self):
        """Begin to count, for the files of existing logs."""
        self.bytes = {"log": 0, "index": 0}
        for log in self.disk.root.entries["data"].entries["logs"].entries.values():
            for name, node in log.entries.items():
                self.kinds[id(node)] = name.rpartition(".")[2]


def fill(engine, log, size, count, at_once, timestamp=None):
    """Append, commit and flush `count` entries, `at_once` at a time."""
    while count:
        first = log.last_index + 1
        entries = [
            StoredEntry(1, n, 0, bytes(size), n - 1, 1, timestamp or n)
            for n in range(first, first + min(count, at_once))
        ]
        engine.store.append(log, entries)
        engine.store.set_hard_state(log, HardState(1, 0, entries[-1].index))
        engine.submit()
        engine.checkpoint()
        count -= len(entries)
    assert log.flushed_index == log.last_index


@pytest.fixture
def engine():
    made = SimHarness(OPTIONS, disk=SimDisk(random.Random(7), DiskProfile()))
    made.start()
    return made


@pytest.mark.parametrize(
    ("size", "count", "at_once"), [(20_000, 600, 10), (100, 24_000, 2_000), (2_000, 6_000, 100)]
)
def test_start_after_a_power_cut_reads_what_was_not_synced(
    engine, monkeypatch, size, count, at_once
):
    """A start reads what was not synced, independent of the size of the newest segment."""
    log = engine.new_log()
    fill(engine, log, size, count, at_once)
    engine.disk.rng = Forgetful(1)
    engine.power_cut()
    engine.crash()
    reads = Reads(monkeypatch, engine.disk)
    reads.watch()
    engine.start()
    bound = min(INDEX_SYNC_BYTES, INDEX_SYNC_ENTRIES * (size + 48))
    assert reads.bytes["log"] <= bound + (1 << 20) + 2 * (size + 48)  # by steps of a mebibyte
    assert reads.bytes["index"] <= 200_000
    assert not engine.log.lost
    assert engine.log.flushed_index == count
    found = engine.cold(engine.store.entries_cold, engine.log, 1, count + 1, 1 << 30)
    assert [entry.index for entry in found] == list(range(1, len(found) + 1))


def test_start_asks_for_the_logs_that_there_are_and_not_for_all_that_ever_were(engine, monkeypatch):
    """Ids are never reused.

    A server that creates and deletes topics for years has used millions.
    """
    engine.new_log()
    engine.store._registry._identity.next_log_id = 3_000_000
    engine.new_log(group_id=10)
    engine.checkpoint()
    engine.crash()
    asked, read = [], []
    get_all, pread = SimMeta.get_all, SimFile.pread

    def get(meta, keys):
        asked.extend(keys)
        return get_all(meta, keys)

    def counted(file, length, position):
        data = pread(file, length, position)
        read.append(len(data))
        return data

    monkeypatch.setattr(SimMeta, "get_all", get)
    monkeypatch.setattr(SimFile, "pread", counted)
    engine.start()
    assert sorted(engine.store.logs) == [1, 3_000_000]
    assert len(asked) <= 10
    assert sum(read) <= OPTIONS.journal_file_bytes + (2 << 20)  # a spare one is read once
    assert not any(log.lost for log in engine.store.logs.values())
