"""Harnesses through which the storage contract drives every backend.

A `Harness` owns one data directory over several runs of a store. `crash` ends a run as kill -9
does: jobs that did not run have no effect. `power_cut` also discards what was not synced, where the
backend supports it. `reopen` starts the next run.
"""

import random
from dataclasses import dataclass, field, replace

import pytest

from segments.api import HardState, NotInMemory, StorageError, StoredEntry, StoreOptions
from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.memory import MemoryStore
from segments.meta.file import Meta
from segments.store import DiskStore
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFileSystem

META_MAP_BYTES = 64 << 20
BYTES = bytes(range(256))
SMALL = StoreOptions(
    journal_file_bytes=64 << 10,
    journal_first_file_bytes=16 << 10,
    segment_bytes=4 << 10,
    index_segment_entries=16,
    cache_bytes_max=24 << 10,
    checkpoint_bytes=32 << 10,
    checkpoint_entries=60,
    place_bytes_min=0,
    meta_map_bytes=1 << 20,
)

PLACING = replace(SMALL, place_bytes_min=400)
"""Options under which half of the appends are placed: written directly to their segments."""

ODD = replace(SMALL, journal_file_bytes=33_500, journal_first_file_bytes=19_700)
"""Options with files that are no whole number of pages, and smaller than many batches."""


@dataclass
class Harness:
    """One backend. `acknowledged` is the largest token that `on_durable` reported in this run."""

    options: StoreOptions = SMALL
    workers: InlineWorkers = field(default_factory=InlineWorkers)
    acknowledged: int = 0
    fatal: list = field(default_factory=list)
    lives: int = 0

    def start(self):
        self.workers = InlineWorkers()
        self.acknowledged = 0
        self.lives += 1
        self.store = self._open()
        self.store.on_durable = self._durable
        self.store.on_fatal = self.fatal.append
        return self.store

    def reopen(self):
        """Crash and start again; return the log with the lowest id, or None."""
        self.crash()
        self.start()
        return self.log

    @property
    def log(self):
        return self.store.logs[min(self.store.logs)] if self.store.logs else None

    def pump(self):
        self.workers.pump()

    def new_log(self, group_id=9, replica_number=1, **where):
        made = []
        self.store.create_log(group_id, replica_number, on_created=made.append, **where)
        self.pump()
        return made[0]

    def submit(self):
        """Write the staged records; their token is acknowledged on return."""
        token = self.store.submit()
        self.pump()
        assert self.acknowledged >= token, (self.acknowledged, token)
        return token

    def collect(self, *batches):
        """Have the next checkpoint store these items, once."""
        waiting = list(batches)

        def take(logs):
            taken, waiting[:] = list(waiting), []
            return taken

        self.store.collect_meta = take

    def checkpoint(self):
        done = []
        self.store.checkpoint(lambda: done.append(True))
        self.pump()
        self.workers.advance(200)
        assert done

    def close(self):
        done = []
        self.store.close(lambda: done.append(True))
        self.pump()
        assert done

    def read(self, log, offset, end_index, bytes_max):
        """Read from memory, or else from disk."""
        try:
            return log.read(offset, end_index, bytes_max)
        except NotInMemory:
            return self.cold(self.store.read_cold, log, offset, end_index, bytes_max)

    def entries(self, log, first, end, bytes_max=1 << 30):
        """Return up to one call's worth of entries of [first, end), from memory or disk."""
        try:
            return list(log.entries(first, end, bytes_max))
        except NotInMemory:
            return self.cold(self.store.entries_cold, log, first, end, bytes_max)

    def all_entries(self, log):
        """Return (term, kind, data, base offset, records, timestamp) of every entry, in order."""
        found, index = [], log.first_index
        while index <= log.last_index:
            part = self.entries(log, index, log.last_index + 1, 2000)
            assert part
            for entry in part:
                assert entry.index == index, (entry.index, index)
                found.append(
                    (
                        entry.term,
                        int(entry.kind),
                        bytes(entry.data),
                        entry.base_offset,
                        entry.records,
                        entry.timestamp,
                    )
                )
                index += 1
        return found

    def cold(self, ask, log, *arguments):
        answers = []
        ask(log, *arguments, answers.append)
        self.pump()
        if isinstance(answers[0], StorageError):
            raise answers[0]
        return answers[0]

    def _durable(self, token):
        assert token >= self.acknowledged
        self.acknowledged = token


@dataclass
class MemoryHarness(Harness):
    image: object = None

    def _open(self):
        return MemoryStore(self.workers, self.options, random.Random(self.lives), self.image)

    def crash(self):
        self.image = self.store.image

    def close(self):
        super().close()
        self.crash()


@dataclass
class DiskHarness(Harness):
    directory: str = ""
    server_id: int = 0

    def _open(self):
        return DiskStore.open(
            RealFileSystem(),
            self.directory,
            self.workers,
            self.options,
            random.Random(self.lives),
            server_id=self.server_id,
        )

    def crash(self):
        self.store.abandon()


@dataclass
class SimHarness(Harness):
    """Harness on the simulated disk, which supports power cuts."""

    disk: SimDisk = field(default_factory=lambda: SimDisk(random.Random(7), DiskProfile()))

    def _open(self):
        return DiskStore.open(
            SimFileSystem(self.disk), "data", self.workers, self.options, random.Random(self.lives)
        )

    def crash(self):
        self.disk.cut_jobs([])

    def power_cut(self):
        self.disk.cut_jobs([])
        self.disk.power_cut()


BACKENDS = ("memory", "disk", "sim")


def make(backend, tmp_path, options=SMALL):
    """Return a started harness."""
    if backend == "memory":
        harness = MemoryHarness(options)
    elif backend == "disk":
        harness = DiskHarness(options, directory=str(tmp_path / "data"))
    else:
        harness = SimHarness(options)
    harness.start()
    return harness


def put(engine, log, writer, count, **what):
    """Append and commit entries."""
    engine.store.append(log, writer(log).entries(count, **what))
    engine.store.set_hard_state(log, HardState(1, 2, log.last_index))
    return engine.submit()


@pytest.fixture(params=BACKENDS)
def harness(request, tmp_path):
    made = make(request.param, tmp_path)
    yield made
    assert made.fatal == []
    made.crash()


def counting(first, size):
    """Return `size` bytes that count up from `first`, modulo 256."""
    start = first & 0xFF
    return (BYTES * (2 + (size >> 8)))[start : start + size]


class Writer:
    """Generator of entries that continue a log, with dense indexes and offsets."""

    def __init__(self, log):
        self.log = log

    def entries(self, count, term=1, size=50, records=1, kind=0, first=0):
        """Return `count` entries that begin at `first`, by default behind the log's last entry."""
        first = first or self.log.last_index + 1
        offset = self.log.offset_after(first - 1)
        made = []
        for index in range(first, first + count):
            data = counting(index * 7 + term, size)
            made.append(StoredEntry(term, index, kind, data, offset, records, index * 10))
            offset += records
        return made


@pytest.fixture
def writer():
    return Writer


def state(term=1, vote=2, commit=0):
    return HardState(term, vote, commit)


@pytest.fixture
def hard_state():
    return state


@pytest.fixture
def make_harness():
    return make


@pytest.fixture
def placing_options():
    return PLACING


@pytest.fixture
def odd_options():
    return ODD


def meta_of_start(path, log_ids, applied):
    """Open the meta as a start does, which expects the state that the journal names."""
    meta = Meta(RealFileSystem(), str(path), META_MAP_BYTES)
    for log_id in log_ids:
        meta.expect(log_id, applied)
    meta.check(log_ids)
    return meta
