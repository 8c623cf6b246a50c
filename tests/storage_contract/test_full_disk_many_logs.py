"""Voting on a full disk with more logs than a small reserve piece covers."""

import random
from dataclasses import replace

import pytest

from segments.api import HardState, StoredEntry
from segments.journal.files import piece_bytes_for
from tests.storage_contract.test_full_disk_lives import LARGE, Engine, settle

OPTIONS = replace(LARGE, journal_file_bytes=4 << 20)


def create(engine, count, first_group=10):
    made = []
    for n in range(count):
        engine.store.create_log(first_group + n, 1, on_created=made.append)
    engine.pump()
    engine.workers.advance(3_000)
    return made


def vote(engine, log):
    hard = log.hard_state
    engine.store.set_hard_state(log, HardState(hard.term + 1, 1, hard.commit))


@pytest.mark.parametrize("count", [300, 700])
def test_votes_are_taken_however_many_there_are_and_however_many_logs(count):
    """All logs can vote on a full disk: one after the other, all at once, and over restarts."""
    engine = Engine(OPTIONS)
    engine.start()
    logs = create(engine, count)
    assert len(logs) == count
    for log in logs[:3]:
        engine.store.append(log, [StoredEntry(1, 1, 0, bytes(300), 0, 1, 1)])
    engine.submit()
    engine.workers.advance(5_000)
    assert not engine.store.disk_full
    settle(engine.disk, engine.disk.root)
    engine.disk.room = 0
    rng = random.Random(count)
    for life in range(3):
        logs = list(engine.store.logs.values())
        for _ in range(150):
            vote(engine, rng.choice(logs))
            engine.submit()
            assert engine.is_done
        for log in logs:
            vote(engine, log)
        engine.submit()
        engine.workers.advance(5_000)
        assert engine.is_done
        assert engine.fatal == []
        said = {log.log_id: log.hard_state for log in logs}
        engine.crash()
        engine.start()
        assert {log.log_id: log.hard_state for log in engine.store.logs.values()} == said, life
    engine.disk.room = None
    engine.workers.advance(5_000)
    assert not engine.store.disk_full


def test_logs_that_the_reserve_does_not_cover_wait_for_room():
    """Existing logs keep voting."""
    engine = Engine(OPTIONS)
    engine.start()
    create(engine, 250)
    settle(engine.disk, engine.disk.root)
    piece_bytes = piece_bytes_for(250, OPTIONS.journal_file_bytes)
    assert piece_bytes_for(300, OPTIONS.journal_file_bytes) > piece_bytes
    engine.disk.room = 200 << 10  # for the identity, and for two or three larger pieces
    made = create(engine, 50, first_group=1_000)
    assert len(engine.store.logs) == 256
    assert len(made) == 6
    for log in list(engine.store.logs.values()) * 3:
        vote(engine, log)
        engine.submit()
        assert engine.is_done
    engine.disk.room = None
    engine.workers.advance(5_000)
    assert len(made) == 50
    assert not engine.store.disk_full
