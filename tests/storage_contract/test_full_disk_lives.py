"""A disk that stays full: votes remain possible, across any number of crashes.

The engine runs on the simulated disk, which gives no space back when files are removed, and is
compared with the model after each crash and power cut.
"""

import random

import pytest

from segments.api import HardState, StoreOptions
from segments.checkpoint.scheduler import JOURNAL_FILES_MIN
from segments.log.index import IndexDamaged
from tests.storage_contract.conftest import SMALL, MemoryHarness, SimHarness
from tests.storage_contract.steps import OPTIONS, Step, draw
from tests.storage_contract.test_failpoints import Doing, seen
from vdl.sim.disk import Directory, Inode

pytestmark = pytest.mark.takes_turns(parts=3)

LARGE = StoreOptions(
    journal_file_bytes=512 << 10,
    journal_first_file_bytes=128 << 10,
    segment_bytes=64 << 10,
    index_segment_entries=64,
    cache_bytes_max=1 << 20,
    checkpoint_bytes=256 << 10,
    idle_block_ms=2,
    meta_map_bytes=1 << 22,
)
SIZES = {"small": SMALL, "as a piece": OPTIONS, "large": LARGE}


class Model(Doing, MemoryHarness):
    """Expected state."""


class Engine(Doing, SimHarness):
    """Disk engine on a disk that can be full."""

    def submit(self):
        self.token = self.store.submit()
        self.workers.advance(5)

    def checkpoint(self):
        self.store.checkpoint()
        self.workers.advance(200)

    @property
    def is_done(self):
        """True if the last submitted block may be acknowledged."""
        return self.acknowledged >= self.token


def make(options, steps, rng):
    """Return an engine and its model after some steps, with no space left."""
    engine, model = Engine(options), Model(options)
    engine.start()
    model.start()
    for _ in range(steps):
        both(engine, model, draw(rng, model.store.logs))
    engine.workers.advance(2_000)
    assert not engine.store.disk_full
    settle(engine.disk, engine.disk.root)
    engine.disk.room = 0
    return engine, model


def settle(disk, directory):
    """Sync everything: an index that a power cut takes needs space to be rebuilt."""
    for node in directory.entries.values():
        if isinstance(node, Directory):
            settle(disk, node)
        elif isinstance(node, Inode):
            disk.sync(node)
    disk.sync_directory(directory)


def both(engine, model, step):
    engine.do(step)
    model.do(step)


def end(engine, model, rng):
    """Crash or cut the power, and restart both."""
    if rng.random() < 0.5:
        engine.power_cut()
    engine.crash()
    restart(engine)
    model.reopen()
    assert seen(engine) == seen(model)


def restart(engine):
    """Restart, with space for indexes that a power cut took. A start needs no other space."""
    try:
        engine.start()
    except OSError as refused:
        causes = [refused]
        while causes[-1].__context__ is not None:
            causes.append(causes[-1].__context__)
        if not any(isinstance(cause, IndexDamaged) for cause in causes):
            raise
        engine.crash()
        engine.disk.room = 64 << 10
        engine.start()
        engine.disk.room = 0


def finish(engine, model):
    """Free the disk again: everything goes on by itself."""
    engine.disk.room = None
    engine.workers.advance(5_000)
    assert not engine.store.disk_full
    assert engine.fatal == []
    assert seen(engine) == seen(model)
    rng = random.Random(1)
    for _ in range(30):
        both(engine, model, draw(rng, model.store.logs))
        engine.workers.advance(2_000)
    engine.crash()
    engine.start()
    model.reopen()
    assert seen(engine) == seen(model)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("steps", [3, 40, 90])
def test_votes_are_taken_however_many_there_are(size, steps):
    """Many times the number that the reserve has space for, over many runs."""
    rng = random.Random(f"{size} {steps}")
    engine, model = make(SIZES[size], steps, rng)
    for life in range(12):
        for _ in range(120):
            log = model.store.logs[rng.choice(sorted(model.store.logs))]
            hard = log.hard_state
            term = max(hard.term, log.term(log.last_index)) + 1
            vote = Step("hard", log.log_id, 0, rng.randint(0, 3), hard.commit, term)
            both(engine, model, vote)
            assert engine.is_done
        assert engine.fatal == []
        if life % 4 != 3:
            end(engine, model, rng)
    finish(engine, model)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(12))
def test_full_disk_keeps_what_it_took_and_goes_on_voting(size, seed):
    """A full disk takes entries, truncations, resets and trims while they fit, and then votes."""
    rng = random.Random(f"{size} {seed}")
    engine, model = make(SIZES[size], rng.randint(5, 80), rng)
    taken = 0
    for _ in range(rng.randint(2, 6)):
        for _ in range(rng.randint(1, 150)):
            step = draw(rng, model.store.logs)
            if step.kind in {"create", "renew", "checkpoint"}:
                engine.workers.advance(300)
                continue
            if step.kind == "trim" and engine.store.logs[step.log_id].installed_state:
                continue
            cost = (step.count or 1) * (step.size + 100) + 4096
            is_essential = rng.random() < 0.3
            if step.kind == "hard" or cost <= engine.store.entry_room(is_essential=is_essential):
                both(engine, model, step)
                assert engine.is_done, step
                taken += step.kind == "append"
        engine.workers.advance(rng.choice((0, 1_500)))
        end(engine, model, rng)
    assert taken
    log = model.store.logs[min(model.store.logs)]
    for n in range(200):
        hard = log.hard_state
        term = max(hard.term, log.term(log.last_index)) + 1
        both(engine, model, Step("hard", log.log_id, 0, n % 3, hard.commit, term))
        assert engine.is_done
    finish(engine, model)


@pytest.mark.parametrize("life", ["crash", "none"])
def test_entry_larger_than_a_piece_of_the_reserve_does_not_hold_up_votes(life, writer):
    """The entry was being written when the disk filled up.

    The file made for it is as large as the entry.
    """
    engine, _ = make(LARGE, 3, random.Random(1))
    log = engine.log
    while engine.store.accepts_appends:
        engine.store.append(log, writer(log).entries(3, term=max(1, log.hard_state.term), size=900))
        engine.submit()
        assert engine.is_done
    engine.store.append(log, writer(log).entries(1, term=log.hard_state.term or 1, size=150_000))
    engine.submit()
    engine.workers.advance(2_000)
    assert engine.is_done
    for n in range(100):
        engine.store.set_hard_state(log, HardState(1_000 + n, 1, log.commit_index))
        engine.submit()
        assert engine.is_done
    if life == "crash":
        last = log.last_index
        engine.crash()
        engine.start()
        assert engine.log.last_index == last
        assert engine.log.hard_state.term == 1_099
    assert engine.fatal == []


def test_checkpoint_on_a_full_disk_does_not_hold_up_votes(writer):
    """A checkpoint on a full disk does not rewrite tails that only the oldest journal file has:
    they would need more than the reserve holds, and votes wait behind them.
    """
    engine, _ = make(LARGE, 3, random.Random(1))
    engine.disk.room = None
    log = engine.log
    journal = engine.store._journal
    for group_id in (10, 11, 12):
        # Uncommitted, and too much to be carried over: three files have to stay.
        other = engine.new_log(group_id)
        first = journal.current_sequence
        engine.store.append(other, writer(other).entries(12, size=6_000))
        engine.submit()
        while journal.current_sequence == first and group_id < 12:
            engine.store.append(log, writer(log).entries(5, term=1_000, size=6_000))
            engine.store.set_hard_state(log, HardState(1_000, 1, log.last_index))
            engine.submit()
            engine.checkpoint()
    engine.workers.advance(2_000)
    engine.disk.room = 0
    for n in range(300):
        engine.store.set_hard_state(log, HardState(1_001 + n, 1, log.commit_index))
        engine.submit()
        assert engine.is_done
        if n % 20 == 0:
            engine.checkpoint()
    assert journal.file_count > JOURNAL_FILES_MIN
    assert engine.fatal == []
