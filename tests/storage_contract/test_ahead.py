"""Large entries that are written to their places before the blocks that refer to them.

Blocks of other logs go on meanwhile. The entry counts when its own block is durable, and that block
is written only when the payload is.
"""

from dataclasses import replace

import pytest

from segments.api import HardState, StoredEntry
from segments.io.fs import SyncFailed
from tests.storage_contract.conftest import SMALL, SimHarness, Writer
from tests.storage_contract.test_placed_lives import Lives

LARGE = 1_000
OPTIONS = replace(
    SMALL, place_bytes_min=400, large_bytes_min=LARGE, segment_bytes=64 << 10,
    cache_bytes_max=64 << 10,
)  # fmt: skip


@pytest.fixture
def engine():
    """A store with a log that has room for payloads, and another log."""
    made = SimHarness(OPTIONS)
    made.start()
    log = made.new_log()
    made.new_log(group_id=10)
    made.store.append(log, Writer(log).entries(1, size=20_000))
    settle(made)
    assert log.placement.rooms
    return made


def settle(engine):
    for log in engine.store.logs.values():
        engine.store.set_hard_state(log, HardState(1, 0, log.last_index))
    engine.submit()
    engine.checkpoint()
    engine.submit()


def begin(engine, size=20_000):
    """Begin to write the next entry ahead; return it and the list that tells when it is staged."""
    (entry,) = Writer(engine.log).entries(1, size=size)
    staged = []
    assert engine.store.append_ahead(engine.log, entry, lambda: staged.append(True))
    return entry, staged


def append_other(engine):
    """Append to the other log; return True if that is acknowledged without a payload's step."""
    other = engine.store.logs[max(engine.store.logs)]
    engine.store.append(other, Writer(other).entries(1))
    token = engine.store.submit()
    while engine.workers.journal_jobs:
        engine.workers.run_one(engine.workers.journal_jobs)
    return engine.acknowledged >= token


def test_blocks_of_other_logs_go_on_beside_a_large_entry(engine):
    """Each step of a payload is a job of its own, and none of them holds a block up."""
    entry, staged = begin(engine)
    steps = 0
    while engine.workers.payload_jobs:
        assert append_other(engine)
        assert engine.log.last_index == entry.index - 1
        engine.workers.run_one(engine.workers.payload_jobs)
        steps += 1
    assert steps > 4
    assert staged == [True]
    assert engine.log.last_index == entry.index
    engine.submit()
    settle(engine)
    engine.power_cut()
    engine.start()
    assert engine.all_entries(engine.log)[-1][2] == bytes(entry.data)


def test_entry_is_staged_when_its_payload_is_durable(engine):
    """After a power cut behind its block it is there, as after any acknowledged one."""
    small = Writer(engine.log).entries(2)
    engine.store.append(engine.log, small)  # goes along
    entry, staged = begin(engine)
    while not staged:
        engine.workers.run_one(engine.workers.payload_jobs)
    engine.store.submit()
    while engine.workers.journal_jobs:
        engine.workers.run_one(engine.workers.journal_jobs)
    assert not engine.workers.payload_jobs
    engine.power_cut()
    engine.start()
    assert engine.log.last_index == entry.index
    assert engine.all_entries(engine.log)[-1][2] == bytes(entry.data)


def test_flush_waits_for_the_payload(engine):
    """It would write to the same file. Earlier entries are flushed with it afterwards."""
    log = engine.log
    engine.store.append(log, Writer(log).entries(3, size=100))
    flushed = log.flushed_index
    entry, _ = begin(engine)
    engine.store.set_hard_state(log, HardState(1, 0, entry.index - 1))
    engine.store.submit()
    while engine.workers.journal_jobs:
        engine.workers.run_one(engine.workers.journal_jobs)
    engine.store.checkpoint()
    while engine.workers.pool_jobs:
        engine.workers.run_one(engine.workers.pool_jobs)
    assert log.flushed_index == flushed
    engine.pump()
    settle(engine)
    assert log.flushed_index == entry.index


def test_memory_of_an_entry_counts_as_soon_as_it_is_written(engine):
    """It is given back if the log is reset or deleted meanwhile, and nothing is staged then."""
    log, store = engine.log, engine.store
    assert (store.large_bytes, log.large_bytes, store.unflushed_bytes) == (0, 0, 0)
    _, staged = begin(engine)
    assert store.large_bytes == log.large_bytes == 20_048
    assert store.unflushed_bytes == 0
    store.reset_log(log, first_index=9, prev_term=1, next_offset=9)
    assert (store.large_bytes, log.large_bytes, store.unflushed_bytes) == (0, 0, 0)
    engine.pump()
    engine.submit()
    assert (staged, log.last_index) == ([], 8)
    store.append(log, Writer(log).entries(1, size=20_000))
    settle(engine)
    _, staged = begin(engine)
    store.delete_log(log.log_id)
    engine.pump()
    assert (staged, store.large_bytes, store.unflushed_bytes) == ([], 0, 0)
    assert append_other(engine)


def test_nothing_is_written_ahead_without_room_or_in_place_of_another(engine):
    """The caller then appends as usual."""
    log, store = engine.log, engine.store
    other = store.logs[max(store.logs)]
    (entry,) = Writer(other).entries(1, size=2_000)
    assert not store.append_ahead(other, entry, lambda: None)
    store.append(log, Writer(log).entries(2))
    (entry,) = Writer(log).entries(1, size=2_000, first=log.last_index, term=2)
    assert not store.append_ahead(log, entry, lambda: None)
    assert log.last_index == entry.index


def test_room_is_made_for_an_entry_that_has_none(engine):
    """A log that received nothing large for a while has given its room back."""
    log, store = engine.log, engine.store
    store.append(log, Writer(log).entries(2, size=100))
    store._checkpoints.rooms.give_up_all()
    assert not log.placement.rooms
    entry, staged = begin(engine)
    assert store.large_bytes == 20_000
    engine.workers.advance(500)
    assert log.placement.rooms
    assert (staged, store.large_bytes) == ([True], log.large_bytes)
    assert engine.store.stats()["payload_bytes"] > 20_000
    engine.submit()
    settle(engine)
    store._checkpoints.rooms.give_up_all()
    engine.disk.room = 10_000
    last, staged = begin(engine)
    engine.workers.advance(500)
    assert staged == [True]
    engine.disk.room = 1 << 30
    engine.workers.advance(2_000)
    settle(engine)
    engine.power_cut()
    engine.start()
    found = engine.all_entries(engine.log)
    assert [data for _, _, data, *_ in found[-2:]] == [bytes(entry.data), bytes(last.data)]


def test_refused_step_is_repeated_and_a_failed_sync_ends_the_store(engine, monkeypatch):
    """Blocks go on while memory or descriptors are short. A failed sync proves nothing any more."""
    _, staged = begin(engine)
    file = engine.log.placement.ahead.payloads[0].file
    pwrite, refusals = type(file).pwrite, [OSError(12, "no memory")]

    def refuse(*arguments, **options):
        if refusals:
            raise refusals.pop()
        return pwrite(*arguments, **options)

    monkeypatch.setattr(type(file), "pwrite", refuse)
    engine.workers.run_one(engine.workers.payload_jobs)
    assert engine.store.disk_full
    assert append_other(engine)
    engine.workers.advance(1_000)
    assert not engine.store.disk_full
    assert staged == [True]
    engine.submit()
    settle(engine)
    _, staged = begin(engine)

    def fail(_):
        raise SyncFailed(OSError(5, "no disk"))

    monkeypatch.setattr(type(file), "sync", fail)
    engine.pump()
    assert staged == []
    assert len(engine.fatal) == 1
    engine.fatal.clear()


def test_store_closes_beside_a_payload(engine):
    """The entry was never acknowledged: it is not there afterwards."""
    entry, staged = begin(engine)
    engine.close()
    engine.start()
    assert staged == []
    assert engine.log.last_index == entry.index - 1
    settle(engine)


class AheadLives(Lives):
    """Logs to which large entries are written ahead, at any time between other operations."""

    def drawn_options(self):
        return {
            "large_bytes_min": LARGE, "segment_bytes": self.rng.choice((9_000, 20_000)),
            "cache_bytes_max": 64 << 10,
        }  # fmt: skip

    def begin(self):
        self.held = set()
        super().begin()

    def step(self):
        checkpoints = self.engine.store._checkpoints
        if self.rng.random() < 0.03 and not checkpoints.is_running:
            checkpoints.rooms.give_up_all()
        super().step()

    def append(self, log, first, count, size):
        """Append; or, as nothing else may be appended until it is staged, write one ahead."""
        if log.log_id in self.held:
            return
        if size < 300 or self.rng.random() < 0.4:
            super().append(log, first, count, size)
            return
        index, store = log.last_index + 1, self.engine.store
        self.count += 1
        data = self.count.to_bytes(8, "big") * self.rng.randint(LARGE // 8, 1_000)
        offset = log.offset_after(log.last_index)
        entry = StoredEntry(self.term, index, 0, data, offset, 1, index)

        def staged():
            self.held.discard(log.log_id)
            self.staged[log.log_id][index] = entry.term, data
            self.states.append((store._queue.batch.token, self.copy()))

        if store.append_ahead(log, entry, staged):
            self.held.add(log.log_id)
            self.ahead += 1

    ahead = 0


def test_lives_of_logs_with_entries_written_ahead():
    """A start finds exactly what was acknowledged, with payloads cut anywhere."""
    ahead = 0
    for seed in range(40):
        lives = AheadLives(seed)
        lives.run(80)
        while lives.engine.workers.payload_jobs:
            lives.engine.pump()
        lives.settle()
        lives.engine.power_cut()
        lives.engine.start()
        lives.settle()
        ahead += lives.ahead
    assert ahead > 200
