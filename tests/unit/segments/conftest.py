"""A small disk engine to damage."""

import random

import pytest

from segments.api import HardState, StoredEntry, StoreOptions
from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.store import DiskStore

OPTIONS = StoreOptions(
    journal_file_bytes=256 << 10,
    journal_first_file_bytes=256 << 10,
    segment_bytes=8 << 10,
    index_segment_entries=64,
    cache_bytes_max=16 << 10,
    checkpoint_bytes=1 << 30,
    meta_map_bytes=1 << 20,
)


class Bench:
    """One data directory and its store."""

    def __init__(self, path):
        self.path = path
        self.directory = str(path)
        self.open()

    def open(self):
        self.workers = InlineWorkers()
        self.store = DiskStore.open(
            RealFileSystem(), self.directory, self.workers, OPTIONS, random.Random(3)
        )
        return self.store

    def create(self, count=1):
        made = []
        for group_id in range(9, 9 + count):
            self.store.create_log(group_id, 1, on_created=made.append)
        self.workers.pump()
        return made

    def append(self, log, count=1, *, size=100, term=1, commit=True):
        """Append `count` entries in one block each."""
        for _ in range(count):
            index = log.last_index + 1
            data = bytes([index & 0xFF]) * size
            entry = StoredEntry(term, index, 0, data, log.next_offset, 1, index)
            self.store.append(log, [entry])
            if commit:
                self.store.set_hard_state(log, HardState(term, 1, index))
            self.store.submit()
            self.workers.pump()

    def checkpoint(self):
        self.store.checkpoint()
        self.workers.advance(200)

    def idle(self):
        self.workers.advance(500)

    def reopen(self):
        self.store.abandon()
        return self.open()

    def journals(self):
        """Return the journal files that were written to, oldest first."""
        files = sorted((self.path / "journal").glob("*.journal"))
        return [file for file in files if file.read_bytes()[:8] == b"VDLJRNL2"]

    def blocks(self, file):
        """Return the positions of the blocks in a journal file."""
        data = file.read_bytes()
        salt = data[24:32]
        return [
            at
            for at in range(0, len(data), 4096)
            if data[at : at + 4] == b"VDLB" and data[at + 8 : at + 16] == salt
        ]


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path / "data")
    yield made
    made.store.abandon()
