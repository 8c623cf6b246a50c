"""Repairs of entries that turn out to be readable, and of damage to a file that does not count.

Neither ends a server.
"""

import pytest

from segments.api import (
    Compaction,
    CorruptRecord,
    HardState,
    MetaBatch,
    StoredEntry,
    StoreOptions,
)
from segments.format.frame import frame_of
from segments.io import failpoint
from tests.storage_contract.conftest import SimHarness
from tests.storage_contract.every_fifth import EveryFifth
from vdl.sim.filesystem import SimFileSystem

COUNT = 400
BYTES = 1_000


def entry(index, *, is_empty=False):
    data = b"" if is_empty else bytes([index & 0xFF]) * BYTES
    return StoredEntry(1, index, 0, data, index - 1, 1, index)


def write(engine, entries):
    """Append, commit and flush."""
    log = engine.log
    engine.store.append(log, entries)
    engine.store.set_hard_state(log, HardState(1, 0, log.last_index))
    engine.submit()
    engine.collect(MetaBatch(log.log_id, log.last_index, [(b"a", b"b")]))
    engine.checkpoint()
    engine.workers.advance(1_000)


@pytest.fixture
def engine():
    engine = SimHarness(StoreOptions(
        journal_file_bytes=4 << 20, journal_first_file_bytes=256 << 10, segment_bytes=64 << 10,
        cache_bytes_max=64 << 10, checkpoint_bytes=1 << 30, scrub_bytes_per_second=0,
        place_bytes_min=0,
    ))  # fmt: skip
    engine.start()
    engine.new_log()
    for first in range(1, COUNT + 1, 50):
        write(engine, [entry(n) for n in range(first, first + 50)])
    yield engine
    failpoint.arm("")
    assert engine.fatal == []
    engine.crash()


def unreadable(engine, path, page):
    """Make one page of a file unreadable; return a callable that makes it readable again."""
    key = SimFileSystem(engine.disk).open(path)._inode, page
    engine.disk.bad_pages.add(key)
    return lambda: engine.disk.bad_pages.discard(key)


def flip(engine, path, position):
    file = SimFileSystem(engine.disk).open(path)
    (byte,) = file.pread(1, position)
    file.pwrite([bytes([byte ^ 1])], position)


def repair(engine, log, copies, upto=0):
    answers = []
    engine.store.repair(log, copies, answers.append, compacted_upto=upto)
    engine.workers.advance(20_000)
    (answer,) = answers
    return answer


def find_damage(engine, log, first, end):
    with pytest.raises(CorruptRecord):
        engine.cold(engine.store.entries_cold, log, first, end, 1 << 20)
    (found,) = log.damaged
    return found


@pytest.mark.parametrize("is_compacted", [False, True])
def test_entry_that_can_be_read_after_all_is_kept(engine, is_compacted):
    """The medium failed to return a page for a moment; the copies hold less of them, or as much."""
    log = engine.log
    before = engine.all_entries(log)
    heal = unreadable(engine, log.files.segment_path(1), 3)
    first, end = find_damage(engine, log, 12, 15)
    heal()
    copies = [entry(n, is_empty=is_compacted) for n in range(first, end)]
    assert repair(engine, log, copies, upto=COUNT if is_compacted else 0) is None
    assert log.damaged == ()
    assert engine.all_entries(log) == before


def test_entry_that_can_be_read_while_it_is_repaired_refuses_the_copy(engine):
    """An entry that becomes readable again is kept, although the bytes read are not those written.

    The next attempt finds it good.
    """
    log = engine.log
    before = engine.all_entries(log)
    heal = unreadable(engine, log.files.segment_path(1), 3)
    first, end = find_damage(engine, log, 12, 15)
    failpoint.watch("compact.begun", heal)
    copies = [entry(n, is_empty=True) for n in range(first, end)]
    assert isinstance(repair(engine, log, copies, upto=COUNT), CorruptRecord)
    assert log.damaged == ((first, end),)
    assert repair(engine, log, copies, upto=COUNT) is None
    assert log.damaged == ()
    assert engine.all_entries(log) == before


def test_only_what_cannot_be_read_of_a_range_is_written(engine):
    """A frame whose Idx are damaged, too, includes good ones up to the segment's end."""
    log = engine.log
    before = engine.all_entries(log)
    files = log.files
    flip(engine, files.segment_path(1), files.idx(20).position + 4)
    flip(engine, files.segment_path(1), files.idx(20).position + 7)
    SimFileSystem(engine.disk).unlink(files.index_path(0))
    first, end = find_damage(engine, log, 20, 21)
    assert end > 25
    assert repair(engine, log, [entry(n) for n in range(first, end)]) is None
    assert log.damaged == ()
    assert engine.all_entries(log) == before


def damage_without_index(engine, log, index):
    """Damage a frame's length in two bits, with no Idx that gives it.

    The frames behind it cannot be found.
    """
    files = log.files
    position = files.idx(index).position
    flip(engine, files.segment_path(1), position + 4)
    flip(engine, files.segment_path(1), position + 7)
    SimFileSystem(engine.disk).unlink(files.index_path(0))
    return find_damage(engine, log, index, index + 1)


def test_smaller_copies_of_a_part_of_a_range_without_index_are_enough(engine):
    """The other replicas are compacted, and send as much as one answer takes.

    The end of the copies is found by the known fields of the next entry.
    """
    log = engine.log
    before = engine.all_entries(log)
    first, end = damage_without_index(engine, log, 20)
    assert end > 25
    copies = [entry(n, is_empty=n != 21) for n in range(first, 23)]
    assert repair(engine, log, copies, upto=COUNT) is None
    assert log.damaged == ()
    for _ in range(2):
        after = engine.all_entries(log)
        assert [found[2] for found in after[19:22]] == [copy.data for copy in copies]
        assert after[:19] + after[22:] == before[:19] + before[22:]
        engine.reopen()
        log = engine.log
        SimFileSystem(engine.disk).unlink(log.files.index_path(0))


def test_frame_that_a_client_has_sent_is_not_taken_for_the_next_one(engine):
    """A client's data that looks like the next frame is not taken for it.

    There are two candidates then, and copies of both are needed.
    """
    log = engine.log
    write(engine, [entry(n) for n in range(COUNT + 1, COUNT + 20)])
    index = log.last_index + 1
    decoy = frame_of(entry(index + 1, is_empty=True), log.group_id)
    sent = entry(index)
    sent.data = bytes(100) + decoy + bytes(100)
    others = [entry(n) for n in range(index + 1, index + 100)]
    write(engine, [sent, *others])
    segment = next(found for found in reversed(log.segments) if found.first_index <= index)
    end = log.segments[log.segments.index(segment) + 1].first_index
    before = engine.all_entries(log)
    path, position = log.files.segment_path(segment.number), log.files.idx(index).position
    flip(engine, path, position + 4)
    flip(engine, path, position + 7)
    SimFileSystem(engine.disk).unlink(log.files.index_path(0))
    assert find_damage(engine, log, index, index + 1) == (index, end)
    copy = entry(index, is_empty=True)
    assert isinstance(repair(engine, log, [copy], upto=index), CorruptRecord)
    assert log.damaged == ((index, end),)
    assert repair(engine, log, [copy, others[0]], upto=index) is None
    assert log.damaged == ()
    after = engine.all_entries(log)
    assert after[index - 1][2] == b""
    assert after[: index - 1] + after[index:] == before[: index - 1] + before[index:]


def test_damage_in_a_segment_written_anew_is_no_damage_of_the_log(engine):
    """The file does not count yet: the compaction is abandoned, and the old segment is intact."""
    log = engine.log
    before = engine.all_entries(log)
    done = []

    def damage():
        failpoint.unwatch("compact.named")
        names = engine.store._fs.list(log.files.directory)
        (name,) = [name for name in names if name.endswith(".01.log")]
        flip(engine, f"{log.files.directory}/{name}", 1_500)

    failpoint.watch("compact.named", damage)
    engine.store.compact(
        log, Compaction(300, 0), EveryFifth, pace=lambda count: 0, done=done.append
    )
    engine.workers.advance(500)
    assert done == [False]
    assert log.damaged == ()
    assert engine.all_entries(log) == before
    engine.reopen()
    assert engine.all_entries(engine.log) == before
