"""A repair and a compaction of one log at the same time.

They run in threads that stall at any system call while the other proceeds.
"""

import random

import pytest

from segments.api import (
    Compaction,
    HardState,
    MetaBatch,
    StoredEntry,
    StoreOptions,
)
from tests.storage_contract.conftest import SimHarness
from tests.storage_contract.every_fifth import EveryFifth
from vdl.sim.filesystem import SimFile, SimFileSystem

COUNT, UPTO = 100, 80
CALLS = {
    SimFile: ("pread", "pwrite", "sync", "truncate", "size", "close"),
    SimFileSystem: ("open", "exists", "rename", "unlink", "list", "sync_directory"),
}


class Stall:
    """Call number `at` from `begin` on waits until `meanwhile` has ended."""

    def __init__(self, monkeypatch, meanwhile):
        self.left = 0
        self.meanwhile = meanwhile
        self.has_stalled = False
        for owner, names in CALLS.items():
            for name in names:
                monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def begin(self, at):
        self.left = at

    def _counted(self, real):
        def call(*arguments, **options):
            if self.left:
                self.left -= 1
                if not self.left:
                    self.has_stalled = True
                    self.meanwhile()
            return real(*arguments, **options)

        return call


def entry(index, *, is_empty=False):
    data = b"" if is_empty else bytes([index]) * 700
    return StoredEntry(1, index, 0, data, index - 1, 1, index)


def start():
    engine = SimHarness(StoreOptions(
        journal_file_bytes=4 << 20, journal_first_file_bytes=256 << 10, segment_bytes=16 << 10,
        cache_bytes_max=16 << 10, checkpoint_bytes=1 << 30, scrub_bytes_per_second=0,
        place_bytes_min=0,
    ))  # fmt: skip
    engine.start()
    log = engine.new_log()
    engine.store.append(log, [entry(n) for n in range(1, COUNT + 1)])
    engine.store.set_hard_state(log, HardState(1, 0, COUNT))
    engine.submit()
    engine.collect(MetaBatch(log.log_id, COUNT, [(b"a", b"b")]))
    engine.checkpoint()
    engine.workers.advance(1_000)
    return engine


class Both:
    """One run of both. Some of the copies are compacted, as the replicas that send them are."""

    def __init__(self, rng):
        self.rng = rng
        self.engine = start()
        self.compacted = []

    def compact(self):
        self.engine.store.compact(
            self.engine.log, Compaction(UPTO, 0), EveryFifth, pace=lambda count: 100,
            done=self.compacted.append,
        )  # fmt: skip

    def damage(self):
        """Flip a bit in an entry, and read it."""
        log, rng = self.engine.log, self.rng
        index = rng.randint(1, UPTO)
        idx = log.files.idx(index)
        path = log.files.segment_path(idx.segment)
        fs = SimFileSystem(self.engine.disk)
        if not fs.exists(path):
            return
        file = fs.open(path)
        at = idx.position + rng.randrange(idx.length)
        (byte,) = file.pread(1, at)
        file.pwrite([bytes([byte ^ 4])], at)
        answers = []
        self.engine.store.entries_cold(log, index, index + 1, 1, answers.append)
        self.engine.workers.advance(1)

    def repair(self):
        """Repair with each answer of the other replicas."""
        log, answers = self.engine.log, []
        for first, end in log.damaged:
            done = log.compaction.upto
            is_empty = done > 0 or self.rng.random() < 0.5
            copies = [
                entry(n, is_empty=is_empty and n % 5 > 0 and n <= UPTO) for n in range(first, end)
            ]
            upto = UPTO if is_empty else done
            self.engine.store.repair(log, copies, answers.append, compacted_upto=upto)
        return answers

    def check(self):
        """Check that in the end all is repaired and compacted."""
        engine = self.engine
        for _ in range(4):
            engine.workers.advance(30_000)
            self.repair()
        engine.workers.advance(30_000)
        assert self.compacted
        for _ in range(2):
            log = engine.log
            assert not log.lost
            assert log.damaged == ()
            for index, found in enumerate(engine.all_entries(log), 1):
                full, less = entry(index).data, b"" if index % 5 and index <= UPTO else None
                assert found[2] in (full, less)
                assert found[2] != full or less is None or not log.compaction.upto
            assert engine.fatal == []
            engine.reopen()


@pytest.mark.parametrize("seed", range(40))
def test_repair_stalls_while_a_compaction_goes_on(seed, monkeypatch):
    """A repair that stalls from any of its steps to any other is correct beside a compaction."""
    rng = random.Random(seed)
    both = Both(rng)
    stall = Stall(monkeypatch, lambda: both.engine.workers.advance(100 * rng.randint(1, 60)))
    both.compact()
    both.engine.workers.advance(100 * rng.randint(1, 30))
    both.damage()
    stall.begin(rng.randint(1, 60))
    both.repair()
    both.engine.workers.advance(50)
    stall.left = 0
    both.check()


@pytest.mark.parametrize("seed", range(40))
def test_compaction_stalls_while_a_repair_goes_on(seed, monkeypatch):
    rng = random.Random(1_000 + seed)
    both = Both(rng)

    def meanwhile():
        both.damage()
        both.repair()
        both.engine.workers.advance(rng.choice((1, 50)))

    stall = Stall(monkeypatch, meanwhile)
    both.compact()
    stall.begin(rng.randint(1, 250))
    both.engine.workers.advance(8_000)
    stall.left = 0
    both.check()
