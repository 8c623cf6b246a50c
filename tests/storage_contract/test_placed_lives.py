"""Random histories of logs whose large appends are placed, cut short at any step of any job.

A start finds the state behind some batch, not before the last acknowledged one: every entry of it,
from memory and from segments. Truncations are also drawn where segments begin.
"""

import random
from dataclasses import replace

import pytest

from segments.api import HardState, SegmentLimits, StoredEntry
from tests.storage_contract.conftest import SMALL, SimHarness
from vdl.sim.disk import DiskProfile, SimDisk

SEEDS = 60


class Lives:
    """Two logs, the staged states, and the runs of their store."""

    logs = 2

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        options = replace(
            SMALL,
            place_bytes_min=rng.choice((200, 400, 900)),
            segment_bytes=rng.choice((2048, 4096, 9000)),
            cache_bytes_max=rng.choice((8 << 10, 24 << 10)),
            index_segment_entries=rng.choice((4, 16, 64)),
        )
        options = replace(options, **self.drawn_options())
        self.limits = SegmentLimits(options.segment_bytes, rng.choice((-1, -1, 40)))
        self.engine = SimHarness(options, disk=SimDisk(random.Random(seed), DiskProfile()))
        self.engine.start()
        self.ids = [self.engine.new_log().log_id for _ in range(self.logs)]
        self.staged = {log_id: {} for log_id in self.ids}
        self.term = 1
        self.count = 0
        self.begin()

    def drawn_options(self):
        return {}

    def begin(self):
        """Start a run. `states` holds (token of the batch, staged state behind that step)."""
        self.states = [(0, self.copy())]
        for log_id in self.ids:
            self.engine.store.set_segment_limits(self.engine.store.logs[log_id], self.limits)

    def copy(self):
        return {log_id: dict(entries) for log_id, entries in self.staged.items()}

    def run(self, steps_max):
        """Execute several runs, one after the other."""
        for _ in range(self.rng.randint(3, 8)):
            for _ in range(self.rng.randint(10, steps_max)):
                self.step()
            self.die()

    def step(self):
        """Operate on one of the logs, or run one job."""
        rng, engine = self.rng, self.engine
        log = engine.store.logs[rng.choice(self.ids)]
        what = rng.choices(
            ("large", "small", "replace", "commit", "submit", "jobs", "flush", "wait", "roll"),
            (16, 10, 10, 12, 8, 16, 10, 5, 1),
        )[0]
        uncommitted = range(log.commit_index + 1, log.last_index + 1)
        if what == "large":
            self.append(log, log.last_index + 1, rng.randint(2, 8), 300)
        elif what == "small":
            size = rng.choice((2, 20, 100, 300))
            self.append(log, log.last_index + 1, rng.randint(1, 3), size)
        elif what == "replace" and uncommitted:
            begins = [info.first_index for info in log.placement.begun]
            firsts = [first for first in begins if first in uncommitted] or uncommitted
            self.term += 1
            self.append(log, rng.choice(firsts), rng.randint(1, 6), rng.choice((2, 20, 300)))
        elif what == "commit" and uncommitted:
            self.commit(log, rng.choice((log.last_index, rng.choice(uncommitted))))
        elif what == "submit":
            engine.store.submit()
        elif what == "jobs":
            for _ in range(rng.randint(1, 4)):
                if queues := self.queues():
                    engine.workers.run_one(rng.choice(queues))
        elif what == "flush":
            engine.store.checkpoint()
            if rng.random() < 0.5:
                engine.pump()
        elif what == "wait":
            engine.workers.advance(rng.choice((0, 60, 300, 3000)))
        elif what == "roll":
            engine.store._roll_above(log, rng.randint(0, log.commit_index))
        assert engine.fatal == []

    def append(self, log, first, count, size):
        for index in range(first, log.last_index + 1):
            del self.staged[log.log_id][index]
        entries, offset = [], log.offset_after(first - 1)
        for n in range(count):
            self.count += 1
            length = size + self.rng.randint(-30, 30) if size > 40 else size
            data = (self.count.to_bytes(8, "big") * (length // 8 + 1))[:length]
            timestamp = first + n + self.rng.randint(0, 50)
            entries.append(StoredEntry(self.term, first + n, 0, data, offset + n, 1, timestamp))
            self.staged[log.log_id][first + n] = self.term, data
        token = self.engine.store._queue.batch.token
        self.engine.store.append(log, entries)
        self.states.append((token, self.copy()))

    def commit(self, log, index):
        term = max(self.term, log.hard_state.term)
        self.engine.store.set_hard_state(log, HardState(term, 0, index))

    def queues(self):
        workers = self.engine.workers
        return [q for q in (workers.journal_jobs, workers.payload_jobs, workers.pool_jobs) if q]

    def die(self):
        """End the process: each thread's job got to some step, or had not begun."""
        engine = self.engine
        acknowledged = engine.acknowledged
        begun = [queue.popleft()[0] for queue in self.queues() if self.rng.random() < 0.8]
        engine.disk.cut_jobs([engine.disk.run_job(job)[1] for job in begun])
        if self.rng.random() < 0.7:
            engine.disk.power_cut()
        engine.start()
        durable = max(n for n, (token, _) in enumerate(self.states) if token <= acknowledged)
        assert not any(log.lost for log in engine.store.logs.values())
        found = {log_id: self.read(log_id) for log_id in self.ids}
        states = [state for _, state in self.states[durable:]]
        assert found in states or self.is_part_of_a_batch(found, states)
        self.staged = found
        self.term += 1
        self.begin()

    def is_part_of_a_batch(self, found, states):
        """Return False: no batch is larger than a file, so it is there completely or not at all."""
        return False

    def read(self, log_id):
        log = self.engine.store.logs[log_id]
        entries = [entry[0:3:2] for entry in self.engine.all_entries(log)]
        return dict(enumerate(entries, log.first_index))

    def read_segments(self, log_id):
        log, found = self.engine.store.logs[log_id], {}
        while (first := log.first_index + len(found)) <= log.last_index:
            where = log, first, log.last_index + 1, 2000
            for entry in self.engine.cold(self.engine.store.entries_cold, *where):
                found[entry.index] = entry.term, bytes(entry.data)
        return found

    def settle(self):
        """Check that all of it is committed and in contiguous segments."""
        engine = self.engine
        for log in engine.store.logs.values():
            if log.last_index > log.commit_index:
                self.commit(log, log.last_index)
        engine.submit()
        engine.checkpoint()
        engine.submit()
        for log_id, log in engine.store.logs.items():
            assert log.flushed_index == log.last_index
            assert self.read_segments(log_id) == self.staged[log_id]
            for before, after in zip(log.segments, log.segments[1:], strict=False):
                assert log.files.idx(after.first_index - 1).segment == before.number
                assert log.files.idx(after.first_index).segment == after.number


@pytest.mark.parametrize("seed", range(SEEDS))
def test_start_finds_what_was_acknowledged_and_nothing_else(seed):
    """A start finds exactly what was acknowledged, despite placement, cuts, flushes and rolls."""
    lives = Lives(seed)
    lives.run(80)
    lives.settle()
    lives.engine.power_cut()
    lives.engine.start()
    lives.settle()
