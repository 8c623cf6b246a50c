"""Random histories of a directory on a sometimes full disk, cut anywhere, also during a start.

Invariant: no boot ends before what its peers have received. A boot that did would have a healthy
directory replaced.
"""

import errno
import random
from dataclasses import replace

import pytest

from segments.api import HardState, StoredEntry
from segments.boots import GOES_ON, JournalMark, is_behind
from segments.io.inline_workers import InlineWorkers
from segments.recovery import start
from segments.store import DiskStore
from tests.storage_contract.conftest import SMALL
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFileSystem

SEEDS = (51, 265, 285, 333, *range(24))
"""Seeds.

In the first ones a start without space for its note dies, with a journal that ends before that of
the previous boot.
"""


class BootLives:
    """One directory, its runs, and the marks that peers hold of them."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.disk = SimDisk(random.Random(seed), DiskProfile())
        self.disk.returns_room = rng.random() < 0.5
        self.options = replace(SMALL, place_bytes_min=rng.choice((0, 400)))
        self.marks = {}
        self.workers = InlineWorkers()
        self.store = None

    def open(self):
        self.workers = InlineWorkers()
        seeded = random.Random(self.rng.getrandbits(64))
        fs = SimFileSystem(self.disk)
        return DiskStore.open(fs, "data", self.workers, self.options, seeded)

    def live(self):
        if self.rng.random() < 0.35:
            self.cut(self.open)
            return
        try:
            self.store = self.open()
        except OSError:  # for want of space
            self.disk.room = None
            self.end()
            return
        fatal = []
        self.store.on_fatal = fatal.append
        boots = self.store.boots
        assert not [mark for mark in self.marks.values() if is_behind(boots, mark)], boots
        assert not any(log.lost for log in self.store.logs.values())
        self.hear()
        for _ in range(self.rng.randint(0, 6)):
            self.rng.choice((self.create, self.delete, self.append, self.vote, self.fill))()
            self.work()
        assert fatal == []
        jobs = [queue[0][0] for queue in self.queues() if queue]
        if jobs and self.rng.random() < 0.5:
            self.cut(self.rng.choice(jobs))
        self.end()

    def cut(self, job):
        """Die at a random point within the job."""
        _, steps, _ = self.disk.run_job(job)
        self.disk.cut_job(steps, reached=self.rng.randint(0, len(steps)))
        self.end()

    def end(self):
        self.disk.cut_jobs([])
        if self.rng.random() < 0.5:
            self.disk.power_cut()
        self.fill()

    def hear(self):
        """Record marks as peers do, if they are allowed to."""
        boot = self.store.boots[-1] if self.store.boots else None
        if boot is not None and boot.end_lsn == GOES_ON:
            mark = JournalMark(boot.number, boot.boot_id, self.store.durable_lsn)
            self.marks[boot.number] = mark

    def queues(self):
        return self.workers.journal_jobs, self.workers.payload_jobs, self.workers.pool_jobs

    def work(self):
        """Run all pending jobs and some time, or only some jobs."""
        if self.rng.random() < 0.6:
            self.workers.advance(self.rng.choice((0, 50, 500, 2500)))
        for queue in self.queues():
            if queue and self.rng.random() < 0.6:
                self.workers.run_one(queue)
        self.hear()

    # --- what changes a directory ---------------------------------------------------------------
    def create(self):
        """Create many logs, so that a journal file's header takes several pages, or a few."""
        for _ in range(self.rng.choice((1, 60))):
            self.store.create_log(9, 1, on_created=lambda log: None)

    def delete(self):
        for log_id in list(self.store.logs)[self.rng.choice((0, 1)) :]:
            self.store.delete_log(log_id)

    def append(self):
        for log in list(self.store.logs.values())[:3]:
            first, offset = log.last_index + 1, log.offset_after(log.last_index)
            term, size = max(1, log.hard_state.term), self.rng.choice((10, 300))
            entries = [
                StoredEntry(term, first + n, 0, bytes(size), offset + n, 1, 0) for n in range(4)
            ]
            self.store.append(log, entries)
            self.store.set_hard_state(log, HardState(term, 0, first + self.rng.randint(-1, 3)))
        self.store.submit()

    def vote(self):
        for log in self.store.logs.values():
            term = log.hard_state.term + 1
            self.store.set_hard_state(log, HardState(term, 2, log.commit_index))
        self.store.submit()

    def fill(self):
        self.disk.room = self.rng.choice((0, 0, 0, 20_000, 200_000, None, None, None))


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["in-place", "elsewhere"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_boot_ends_before_what_peers_have_heard(seed, is_elsewhere, monkeypatch):
    """No start ends before its peers' marks, also if the disk cannot overwrite files."""
    lives = BootLives(seed)
    overwrite = start.overwrite_identity

    def over(*arguments):
        if is_elsewhere and lives.disk.room is not None:
            raise OSError(errno.ENOSPC, "no room to write elsewhere")
        return overwrite(*arguments)

    monkeypatch.setattr(start, "overwrite_identity", over)
    for _ in range(10):
        lives.live()
