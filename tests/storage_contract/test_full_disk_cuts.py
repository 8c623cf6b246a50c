"""A disk that fills up and is freed again, under an engine that dies within its jobs and starts.

Each run ends by a kill or a power cut, and the engine is then found in the model's state.
"""

import random
from dataclasses import replace

import pytest

from segments.api import HardState
from segments.directory.log_registry import identity_reserve
from segments.io.fs import is_disk_full
from segments.io.inline_workers import InlineWorkers
from segments.io.reserve import RESERVE_PIECES
from segments.journal.allocation import Allocation, Room
from segments.store import DiskStore
from tests.storage_contract.conftest import ODD
from tests.storage_contract.steps import LOGS, draw
from tests.storage_contract.test_failpoints import seen
from tests.storage_contract.test_failpoints import settle as settle_model
from tests.storage_contract.test_full_disk_lives import (
    SIZES,
    Engine,
    Model,
    finish,
    make,
    restart,
    settle,
)
from vdl.sim.filesystem import SimFileSystem

CASES = {**SIZES, "odd": ODD}
FOUND = (("odd", 8), ("odd", 21), ("as a piece", 23), ("as a piece", 53))
"""Seeds that found bugs, with the options under which they did.

Entries left votes no file; interrupted starts used up the reserve; a file was given to a reserve
that did not exist yet.
"""


class DiedError(Exception):
    """Raised when the process is gone; the effects of its last job are partly done."""


class MortalWorkers(InlineWorkers):
    """Workers that die in the job that is `jobs_left` jobs away; 0: never."""

    def __init__(self, disk, rng):
        super().__init__()
        self.disk = disk
        self.rng = rng
        self.jobs_left = 0

    def run_one(self, jobs):
        self.jobs_left -= 1
        if self.jobs_left:
            super().run_one(jobs)
            return
        _, steps, _ = self.disk.run_job(jobs[0][0])
        cut(self.disk, steps, self.rng)
        raise DiedError


class MortalEngine(Engine):
    """Engine that may die in any job. `deleted` are the logs deleted in this life."""

    def start(self):
        self.deleted = set()
        self.acknowledged = 0
        self.lives += 1
        self.workers = MortalWorkers(self.disk, self.rng)
        self.store = self._open()
        self.store.on_durable = self._durable
        self.store.on_fatal = self.fatal.append
        return self.store


def cut(disk, steps, rng):
    """End a process between two steps or within one, and sometimes the machine."""
    writes = [n for n, step in enumerate(steps) if step.is_durable_write]
    reached = rng.choice(writes) if writes and rng.random() < 0.5 else rng.randint(0, len(steps))
    disk.cut_job(steps, reached=reached)
    if rng.random() < 0.6:
        disk.power_cut()


def start(engine, rng):
    """Make some starts that are interrupted, and one that is not."""
    disk = engine.disk
    while rng.random() < 0.4:
        luck = random.Random(rng.getrandbits(64))
        opened, steps, _ = disk.run_job(
            lambda luck=luck: DiskStore.open(
                SimFileSystem(disk), "data", InlineWorkers(), engine.options, luck
            )
        )
        assert not isinstance(opened, Exception) or is_disk_full(opened), opened
        cut(disk, steps, rng)
    restart(engine)
    assert not any(log.lost for log in engine.store.logs.values())


def live(engine, model, rng, steps):
    """Execute up to `steps` steps, and die in one of them."""
    engine.workers.jobs_left = rng.randint(1, 3 * steps)
    for _ in range(steps):
        if rng.random() < 0.02 and engine.store._journal.allocation.room is Room.WHOLE:
            engine.disk.room = rng.choice((0, 0, 70_000, 200_000, None))
            if engine.disk.room == 0 and rng.random() < 0.5:
                identity_reserve(SimFileSystem(engine.disk), "data").free(RESERVE_PIECES)
        is_full = engine.store.disk_full or engine.disk.room is not None
        logs = {n: log for n, log in model.store.logs.items() if n not in engine.deleted}
        if is_full and len(logs) > 1 and rng.random() < 0.05:
            engine.deleted.add(max(logs))
            try:
                engine.store.delete_log(max(logs))
                engine.pump()
            except DiedError:
                return None, True
            continue
        step = draw(rng, logs, 1 if is_full else LOGS)
        if step.kind == "reset" and step.size > engine.options.journal_file_bytes // 2:
            # An entry that no file takes makes a file longer: its block cannot be refused before.
            step = replace(step, size=1_000)
        if is_full:
            if step.kind in {"create", "renew", "checkpoint"}:
                continue
            cost = (step.count or 1) * (step.size + 100) + 4096
            is_essential = rng.random() < 0.3
            room = engine.store.entry_room(is_essential=is_essential)
            if step.kind != "hard" and cost > room:
                continue
            if step.kind == "trim" and engine.store.logs[step.log_id].installed_state:
                continue
        engine.token = 1 << 60
        try:
            engine.do(step)
        except DiedError:
            return step, engine.is_done
        assert engine.is_done or engine.token == 1 << 60, step
        model.do(step)
        if rng.random() < 0.05:
            try:
                engine.workers.advance(rng.choice((10, 1_500)))
            except DiedError:
                return None, True
    return None, True


def settle_deleted(model, found, deleted):
    """Delete the logs in the model whose deletion was durable; the others must be whole."""
    for log_id in deleted - found.keys():
        model.store.delete_log(log_id)
    model.pump()
    model.reopen()


@pytest.mark.parametrize(
    ("size", "seed"),
    [*((size, seed) for size in CASES for seed in range(3)), *FOUND],
)
def test_engine_cut_in_its_jobs_and_starts_is_found_where_the_model_is(size, seed):
    """Every acknowledged step is there.

    The one under way is there as a whole, not at all, or as a prefix if it has many entries. A log
    whose deletion the full disk did not take is there as it was.
    """
    rng = random.Random(f"{size} {seed}")
    engine, model = MortalEngine(CASES[size]), Model(CASES[size])
    engine.rng = rng
    engine.disk.rng = random.Random(f"disk {seed}")
    start(engine, rng)
    model.start()
    for _ in range(12):
        step, is_done = live(engine, model, rng, rng.choice((5, 40, 120)))
        deleted = engine.deleted
        engine.disk.locks.clear()
        if step is None:
            engine.crash()
        start(engine, rng)
        settle_deleted(model, seen(engine), deleted)
        if step is not None:
            if is_done:
                model.do(step)
                model.reopen()
            else:
                settle_model(model, seen(engine), step)
        assert seen(engine) == seen(model), step
        if rng.random() < 0.5:
            settle(engine.disk, engine.disk.root)
    engine.workers.jobs_left = 0
    finish(engine, model)


@pytest.mark.parametrize("size", SIZES)
def test_starts_that_die_behind_their_first_block_do_not_use_up_the_reserve(size, monkeypatch):
    """Each leaves a file that nothing proves.

    The next start counts on it, and none is given back.
    """
    engine, model = make(SIZES[size], 40, random.Random(size))

    def die(*_):
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(Allocation, "take_back", die)
        for _ in range(3 * RESERVE_PIECES):
            engine.crash()
            with pytest.raises(DiedError):
                engine.start()
    engine.crash()
    restart(engine)
    model.reopen()
    assert seen(engine) == seen(model)
    for n in range(100):
        engine.store.set_hard_state(engine.log, HardState(1_000 + n, 1, engine.log.commit_index))
        engine.submit()
        assert engine.is_done
