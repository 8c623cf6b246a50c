"""Entries that are not copied into the cache, beside small ones.

Some are larger than a segment, some than a journal file. They are read back unchanged, also after
crashes and power cuts.
"""

import random
from dataclasses import replace

import pytest

from segments.api import HardState, NotInMemory
from tests.storage_contract.conftest import PLACING, SMALL, DiskHarness, SimHarness, Writer

LARGE = 1_500
SIZES = (20, 400, LARGE - 1, LARGE, 3_000, 9_000, 90_000)
OPTIONS = {
    "journal": replace(SMALL, large_bytes_min=LARGE),
    "placed": replace(PLACING, large_bytes_min=LARGE, segment_bytes=16 << 10),
}


@pytest.fixture(params=OPTIONS)
def options(request):
    return OPTIONS[request.param]


def stage(engine, log, size, held, term=1):
    """Stage one entry of random bytes, a view of memory of its own, and add it to `held`."""
    (entry,) = Writer(log).entries(1, term=term)
    entry.data = memoryview(bytearray(random.Random(log.last_index).randbytes(size)))
    held[entry.index] = bytes(entry.data)
    engine.store.append(log, [entry])


def check(engine, log, held):
    """Check that the log equals `held`, read from memory or disk."""
    index = log.first_index
    while index <= log.last_index:
        for entry in engine.entries(log, index, log.last_index + 1, 2_000):
            assert bytes(entry.data) == held[index], index
            index += 1


def test_large_entry_is_sent_as_it_came_and_leaves_memory_when_a_segment_holds_it(options):
    """A large entry is not copied, is accounted separately, and takes earlier entries along."""
    engine = SimHarness(options)
    engine.start()
    log, held = engine.new_log(), {}
    for size in (20, 90_000, 30):
        stage(engine, log, size, held)
    assert engine.store.large_bytes == log.large_bytes == 90_048
    assert engine.store.unflushed_bytes < 1_000
    small, large, _ = log.entries(1, 4, 1 << 30)
    engine.store.set_hard_state(log, HardState(1, 2, 3))
    engine.submit()
    assert engine.store.flushable_bytes < 1_000
    engine.checkpoint()
    assert (engine.store.large_bytes, engine.store.unflushed_bytes) == (0, 0)
    assert log.large_bytes == 0
    with pytest.raises(NotInMemory):
        log.entries(2, 3, 1 << 30)
    assert (bytes(small.data), bytes(large.data)) == (held[1], held[2])
    check(engine, log, held)
    stage(engine, log, 2_000, held)
    engine.submit()
    check(engine, log, held)
    check(engine, engine.reopen(), held)


def test_large_entry_keeps_no_more_than_twice_its_memory(options):
    """A view of far more memory is copied."""
    engine = SimHarness(options)
    engine.start()
    log = engine.new_log()
    for times, is_copied in ((1, False), (2, False), (3, True)):
        (entry,) = Writer(log).entries(1)
        memory = bytearray(times * LARGE)
        entry.data = memoryview(memory)[:LARGE]
        engine.store.append(log, [entry])
        (kept,) = log.entries(log.last_index, log.last_index + 1, 1 << 20)
        assert (kept.data.obj is not memory) is is_copied


@pytest.mark.takes_turns(parts=3)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("backend", ["sim", "disk"])
def test_lives_of_a_log_with_large_entries(options, backend, seed, tmp_path):
    """Entries survive all operations, kills and power cuts in any order.

    The operations are appends, commits, truncations, checkpoints, trims and closes.
    """
    rng = random.Random(seed)
    if backend == "sim":
        engine = SimHarness(options)
    else:
        engine = DiskHarness(options, directory=str(tmp_path / "data"))
    engine.start()
    log, held, term = engine.new_log(), {}, 1
    for _ in range(120):
        log = engine.log
        step = rng.random()
        if step < 0.5:
            for _ in range(rng.randrange(1, 4)):
                stage(engine, log, rng.choice(SIZES), held, term)
            if rng.random() < 0.8:
                engine.submit()
        elif step < 0.7:
            commit = rng.randint(log.commit_index, log.last_index)
            engine.store.set_hard_state(log, HardState(term, 2, commit))
            engine.submit()
        elif step < 0.78 and log.commit_index < log.last_index:
            term += 1
            first = rng.randint(log.commit_index + 1, log.last_index)
            (entry,) = Writer(log).entries(1, term=term, first=first)
            entry.data = memoryview(rng.randbytes(rng.choice(SIZES)))
            held[first] = bytes(entry.data)
            engine.store.append(log, [entry])
            engine.submit()
        elif step < 0.9:
            engine.submit()
            engine.checkpoint()
        else:
            engine.submit()
            durable = log.last_index
            if backend == "sim" and rng.random() < 0.5:
                engine.power_cut()
                engine.start()
            elif rng.random() < 0.5:
                engine.close()
                engine.start()
            else:
                engine.reopen()
            log = engine.log
            assert (log.lost, log.last_index) == (False, durable)
        check(engine, log, held)
    assert engine.fatal == []
    engine.crash()


@pytest.mark.parametrize(("size", "room", "is_taken"), [
    (40_000, 0, True), (90_000, 150_000, False), (90_000, 300_000, True),
])  # fmt: skip
def test_disk_has_room_for_a_large_entry_in_the_next_file_or_beside_what_others_need(
    size, room, is_taken
):
    """An entry without space when it is written holds up votes, so its owner checks first."""
    options = replace(SMALL, large_bytes_min=LARGE, journal_file_bytes=64 << 10)
    engine = SimHarness(options)
    engine.start()
    log, other = engine.new_log(), engine.new_log(group_id=10)
    engine.disk.room = room
    assert engine.store.has_room_for(size) is is_taken
    if is_taken:
        stage(engine, log, size, {})
        engine.submit()
    engine.store.set_hard_state(other, HardState(7, 2, 0))
    engine.submit()
    assert not engine.fatal


def test_full_disk_has_room_for_no_large_entry():
    """A refused request is not repeated."""
    engine = SimHarness(replace(SMALL, large_bytes_min=LARGE, journal_file_bytes=64 << 10))
    engine.start()
    log = engine.new_log()
    engine.disk.room = 0
    while engine.store.accepts_appends:
        stage(engine, log, 20_000, {})
        engine.store.submit()
        engine.workers.advance(100)
    engine.disk.room = 1 << 30
    assert not engine.store.has_room_for(2_000)


def checkpoints_while_others_append(size):
    """Count the checkpoints that begin beside an uncommitted entry of `size` bytes.

    Meanwhile 100 small appends go to another log. Return (count, engine, the entry's log).
    """
    engine = SimHarness(
        replace(
            SMALL, large_bytes_min=LARGE, segment_bytes=1 << 20, journal_file_bytes=1 << 20,
            cache_bytes_max=64_000, checkpoint_entries=1_000_000,
        )
    )  # fmt: skip
    engine.start()
    log, other = engine.new_log(), engine.new_log(group_id=10)
    if size:
        stage(engine, log, size, {})
        engine.submit()
    before = engine.store._checkpoints.count
    for _ in range(100):
        engine.store.append(other, Writer(other).entries(1, size=30))
        engine.store.set_hard_state(other, HardState(1, 2, other.last_index))
        engine.submit()
        engine.workers.advance(5)
    return engine.store._checkpoints.count - before, engine, log


def test_large_entry_has_a_checkpoint_begin_when_it_is_committed_and_not_before():
    """While it is uncommitted, no checkpoint could flush it."""
    without, *_ = checkpoints_while_others_append(0)
    count, engine, log = checkpoints_while_others_append(100_000)
    assert count <= without + 1
    assert engine.store.large_bytes > 100_000
    engine.store.set_hard_state(log, HardState(1, 2, 1))
    engine.submit()
    engine.workers.advance(100)
    assert engine.store.large_bytes == 0


def test_entry_that_is_larger_than_a_segment_wishes_for_no_room():
    """There would be none, and others could use it."""
    engine = SimHarness(OPTIONS["placed"])
    engine.start()
    log = engine.new_log()
    for size, is_wanted in ((16 << 10, False), (15 << 10, True)):
        stage(engine, log, size, {})
        assert log.placement.is_wanted is is_wanted


def test_store_says_how_many_bytes_it_is_writing(options):
    """A disk may take long to write them, which is no hang."""
    engine = SimHarness(options)
    engine.start()
    log = engine.new_log()
    assert engine.store.writing_bytes == 0
    stage(engine, log, 9_000, {})
    engine.store.submit()
    assert engine.store.writing_bytes > 9_000
    engine.workers.advance(100)
    assert engine.store.writing_bytes == 0
