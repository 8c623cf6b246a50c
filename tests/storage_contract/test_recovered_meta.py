"""Checkpoints that the disk damaged, or that are no longer needed: guarantees to a log."""

import pytest

from segments.api import CorruptRecord, MetaBatch
from segments.io import failpoint
from segments.io.removals import Removals
from segments.recovery import opening as recovery
from tests.storage_contract.conftest import SimHarness, put

ITEMS = [(b"k%d" % n, b"value") for n in range(10)]


@pytest.fixture(autouse=True)
def disarmed():
    """Disarm all failpoints after each test."""
    yield
    failpoint.arm("")


@pytest.fixture
def engine():
    """Yield an engine on the simulated disk, whose meta can be damaged item by item."""
    made = SimHarness()
    made.start()
    yield made
    made.crash()


def checkpoint_state(engine, log, *, clear=True):
    """Store the state as of the commit index."""
    engine.collect(MetaBatch(log.log_id, log.commit_index, ITEMS, clear=clear))
    engine.checkpoint()
    assert engine.store.load_meta(log) == (log.commit_index, ITEMS)


def meta_items(engine):
    """Return the stored items as they lie on the disk, and as they can be read."""
    store = engine.store._meta._file._store
    return store.items, store.durable


def damage_meta(engine, log, key):
    """Flip a bit of the log's value for `key`."""
    for items in meta_items(engine):
        name = log.log_id.to_bytes(4, "big") + key
        items[name] = items[name][:-1] + bytes([items[name][-1] ^ 1])


def trim_as_an_owner_does(engine, log):
    """Trim everything behind the checkpoint, as an owner does."""
    engine.store.trim_log(log, first_index=log.applied_index + 1)
    engine.submit() if log.applied_index else engine.pump()
    engine.workers.advance(500)


@pytest.mark.parametrize("key", [b"kk3", b"a"])
def test_checkpoint_found_damaged_at_a_start_covers_nothing(engine, writer, key):
    """A checkpoint found damaged at a start covers nothing.

    An owner that trimmed behind it, and died before the state was stored again, would have neither.
    """
    log = engine.new_log()
    put(engine, log, writer, 50)
    checkpoint_state(engine, log)
    damage_meta(engine, log, key)
    log = engine.reopen()
    assert (log.applied_index, log.is_meta_lost, log.lost) == (0, True, False)
    with pytest.raises(CorruptRecord):
        engine.store.load_meta(log)
    trim_as_an_owner_does(engine, log)
    log = engine.reopen()
    assert (log.first_index, log.applied_index, log.lost) == (1, 0, False)
    assert len(engine.all_entries(log)) == 50


def test_first_whole_state_after_a_damaged_one_counts(engine, writer):
    """A batch that is incomplete is dropped, one with `clear` restores the state.

    Then trims go on.
    """
    log = engine.new_log()
    put(engine, log, writer, 50)
    checkpoint_state(engine, log)
    damage_meta(engine, log, b"kk3")
    log = engine.reopen()
    engine.collect(MetaBatch(log.log_id, 50, [(b"k1", b"new")]))
    engine.checkpoint()
    assert (log.applied_index, log.is_meta_lost) == (0, True)
    checkpoint_state(engine, log)
    assert (log.applied_index, log.is_meta_lost) == (50, False)
    trim_as_an_owner_does(engine, log)
    log = engine.reopen()
    assert (log.first_index, log.applied_index, log.is_meta_lost) == (51, 50, False)
    assert engine.store.load_meta(log) == (50, ITEMS)


def test_damage_in_one_log_leaves_the_others_their_checkpoints(engine, writer):
    """Damage discards the checkpoint of its log only."""
    bad, good = engine.new_log(), engine.new_log(group_id=10)
    for log in (bad, good):
        put(engine, log, writer, 20)
        checkpoint_state(engine, log)
    damage_meta(engine, bad, b"kk3")
    engine.reopen()
    seen = [(log.applied_index, log.is_meta_lost) for log in engine.store.logs.values()]
    assert seen == [(0, True), (20, False)]
    assert engine.store.load_meta(engine.store.logs[good.log_id]) == (20, ITEMS)


@pytest.mark.parametrize("is_full", [False, True])
def test_checkpoint_found_damaged_in_life_covers_nothing(engine, writer, is_full):
    """A checkpoint found damaged by a running store covers nothing.

    This holds also when the transaction that found it is then refused for want of space.
    """
    bad, good = engine.new_log(), engine.new_log(group_id=10)
    for log in (bad, good):
        put(engine, log, writer, 20)
        checkpoint_state(engine, log)
    damage_meta(engine, bad, b"a")
    if is_full:
        failpoint.arm("meta.before_commit:enospc@1")
    engine.collect(*(MetaBatch(log.log_id, 20, [(b"k1", b"new")]) for log in (bad, good)))
    engine.store.checkpoint()
    engine.pump()
    assert engine.store.disk_full == is_full
    assert (bad.applied_index, bad.is_meta_lost) == (0, True)
    assert (good.applied_index, good.is_meta_lost) == (20, False)
    engine.workers.advance(3000)
    assert (bad.applied_index, bad.is_meta_lost) == (0, True)
    assert dict(engine.store.load_meta(good)[1])[b"k1"] == b"new"
    checkpoint_state(engine, bad)
    assert (bad.applied_index, bad.is_meta_lost) == (20, False)


def test_state_that_a_damaged_checkpoint_covered_is_installed_again(engine, writer):
    """The installed state is restored as long as the journal has it.

    The log begins behind it, so nothing else can replace it.
    """
    log = engine.new_log()
    engine.store.reset_log(log, first_index=500, prev_term=1, next_offset=900, state=b"snapshot")
    engine.submit()
    engine.workers.advance(500)
    engine.collect(MetaBatch(log.log_id, 499, ITEMS, clear=True))
    engine.checkpoint()
    assert log.installed_state == b""
    damage_meta(engine, log, b"kk3")
    for _ in range(2):
        log = engine.reopen()
        assert (log.first_index, log.applied_index, log.lost) == (500, 0, False)
        assert log.installed_state == b"snapshot"
    put(engine, log, writer, 3)
    checkpoint_state(engine, log)
    assert log.installed_state == b""
    log = engine.reopen()
    assert (log.installed_state, log.applied_index, log.last_index) == (b"", 502, 502)


def die_while_deleting(engine, doomed, monkeypatch):
    """Die with the log removed from the identity and everything else of it still there.

    Return the prefix of its items.
    """
    with monkeypatch.context() as patch:
        patch.setattr(Removals, "_run", lambda removals, removal, job: None)
        engine.store.delete_log(doomed.log_id)
        engine.workers.advance(50)
    engine.crash()
    return doomed.log_id.to_bytes(4, "big")


def test_meta_of_a_log_that_was_deleted_before_a_crash_is_forgotten_at_the_next_start(
    engine, writer, monkeypatch
):
    """The identity lists it as removed; the process died before it deleted the rest."""
    doomed, kept = engine.new_log(), engine.new_log(group_id=10)
    for log in (doomed, kept):
        put(engine, log, writer, 5)
        checkpoint_state(engine, log)
    prefix = die_while_deleting(engine, doomed, monkeypatch)
    assert any(key.startswith(prefix) for key in meta_items(engine)[0])
    engine.start()
    for items in meta_items(engine):
        assert not any(key.startswith(prefix) for key in items)
    assert engine.store.load_meta(engine.log) == (5, ITEMS)


def test_meta_of_a_deleted_log_may_stay_as_long_as_the_disk_is_full(engine, writer, monkeypatch):
    """A start whose only purpose for space is cleaning up does not fail."""
    doomed, _ = engine.new_log(), engine.new_log(group_id=10)
    put(engine, doomed, writer, 5)
    checkpoint_state(engine, doomed)
    prefix = die_while_deleting(engine, doomed, monkeypatch)
    engine.disk.room = 0
    engine.start()
    assert list(engine.store.logs) == [2]
    assert any(key.startswith(prefix) for key in meta_items(engine)[0])
    engine.disk.room = None
    engine.reopen()
    assert not any(key.startswith(prefix) for key in meta_items(engine)[0])


def test_log_that_cannot_be_read_back_leaves_nothing_counted(engine, writer, monkeypatch):
    """Entries staged before the damage was found belong to no tail."""
    log = engine.new_log()
    for _ in range(3):
        put(engine, log, writer, 2)
    engine.crash()
    real, calls = recovery.JournalReader.entries, []

    def entries(reader, group_id, refs, length):
        calls.append(refs)
        if len(calls) == 3:
            raise CorruptRecord("frame", 0)
        return real(reader, group_id, refs, length)

    monkeypatch.setattr(recovery.JournalReader, "entries", entries)
    engine.start()
    assert engine.log.lost
    stats = engine.store.stats()
    assert (stats["cache_bytes"], stats["unflushed_bytes"]) == (0, 0)
