"""Full disks on which one operation waits for another, and failed disks.

The simulated disk gives no space back when files are removed, as if others took it at once.
"""

import errno
import random
from dataclasses import replace

import pytest

from segments.api import HardState, StorageError, StoredEntry, WriteRefused
from segments.directory.identity import Identity, LogIdentity, encode, read_identity
from segments.directory.log_registry import RESERVE_PIECE_BYTES, identity_reserve, replace_identity
from tests.storage_contract.conftest import SMALL, SimHarness, put
from vdl.sim.disk import DiskProfile, SimDisk
from vdl.sim.filesystem import SimFileSystem

OPTIONS = replace(
    SMALL,
    journal_file_bytes=256 << 10,
    journal_first_file_bytes=64 << 10,
    segment_bytes=16 << 10,
    cache_bytes_max=1 << 20,
    checkpoint_bytes=1 << 30,
    checkpoint_entries=10**9,
)


@pytest.fixture
def engine():
    """Yield an engine on a disk that can be full."""
    made = SimHarness(OPTIONS)
    made.start()
    yield made
    made.crash()


def fill_segments(engine, log, writer):
    """Write many durable segments."""
    for _ in range(8):
        put(engine, log, writer, 20, size=1000)
        engine.checkpoint()
    engine.workers.advance(3000)
    assert len(log.segments) > 6


def segment_files(log):
    return [name for name in log.files.fs.list(log.files.directory) if name.endswith(".log")]


def use_up_identity_reserve(engine):
    """Let others take all the space."""
    reserve = identity_reserve(SimFileSystem(engine.disk), "data")
    assert reserve.free(8)
    engine.disk.room = 0


@pytest.mark.parametrize("change", ["create", "delete"])
def test_retention_makes_room_while_the_identity_waits_for_some(engine, writer, change):
    """Operations that free space must not wait for space that they do not need."""
    log, other = engine.new_log(), engine.new_log(group_id=10)
    fill_segments(engine, log, writer)
    put(engine, other, writer, 1)
    use_up_identity_reserve(engine)
    created = []
    if change == "create":
        engine.store.create_log(7, 1, on_created=created.append)
    else:
        engine.store.delete_log(other.log_id)
    engine.workers.advance(3000)
    assert engine.store.disk_full
    engine.store.trim_log(log, first_index=log.commit_index - 10)
    engine.submit()
    engine.workers.advance(3000)
    assert len(segment_files(log)) <= 2
    # A deletion that is not recorded durably has touched no file.
    assert read_identity(SimFileSystem(engine.disk), "data").logs.keys() == {1, 2}
    engine.disk.room = None
    engine.workers.advance(5000)
    assert not engine.store.disk_full
    assert bool(created) == (change == "create")
    assert engine.fatal == []
    listed = read_identity(SimFileSystem(engine.disk), "data").logs.keys()
    assert listed == ({1, 2, 3} if change == "create" else {1})


def test_files_of_a_deleted_log_wait_for_the_identity(engine, writer):
    """A start that found the log listed and its files gone would report it lost."""
    log, kept = engine.new_log(), engine.new_log(group_id=10)
    fill_segments(engine, log, writer)
    put(engine, kept, writer, 1)
    files = segment_files(log)
    use_up_identity_reserve(engine)
    engine.store.delete_log(log.log_id)
    for _ in range(5):
        put(engine, kept, writer, 1)
        engine.workers.advance(1000)
    assert segment_files(log) == files
    engine.reopen()
    assert [found.lost for found in engine.store.logs.values()] == [False, False]
    assert len(engine.all_entries(engine.store.logs[log.log_id])) == 160
    engine.disk.room = None
    engine.store.delete_log(log.log_id)
    engine.workers.advance(3000)
    assert not log.files.fs.exists(log.files.directory)


def commit(engine, log, writer, count, **what):
    engine.store.append(log, writer(log).entries(count, term=7, **what))
    engine.store.set_hard_state(log, HardState(7, 3, log.last_index))
    engine.submit()


def vote(engine, log, terms):
    """Write many journal files on a full disk, each of which stands for those before it."""
    for term in terms:
        engine.store.set_hard_state(log, HardState(term, 3, log.commit_index))
        engine.submit()
        engine.workers.advance(100)


@pytest.mark.parametrize("holds", ["nothing", "files before"])
def test_deleted_log_that_the_identity_still_lists_is_found_whole(engine, writer, holds):
    """Votes go on while the identity waits for space; a start may come before it is written.

    Another log `holds` the older journal files, or the newest file stands for all.
    """
    doomed, other = engine.new_log(), engine.new_log(group_id=10)
    journal = engine.store._journal
    commit(engine, doomed, writer, 20, size=1000)
    if holds == "files before":
        engine.store.append(other, writer(other).entries(30, term=7, size=3000))
        engine.submit()
        while len(journal.chain.paths) < 3:
            commit(engine, doomed, writer, 5, size=3000)
    engine.checkpoint()
    engine.workers.advance(3000)
    assert doomed.flushed_index == doomed.last_index
    commit(engine, doomed, writer, 3)
    expected = doomed.last_index, doomed.hard_state, engine.all_entries(doomed)
    use_up_identity_reserve(engine)
    engine.store.delete_log(doomed.log_id)
    vote(engine, other, range(1000, 1150))
    assert engine.store.unflushed_bytes >= doomed.unflushed > 0
    engine.crash()
    engine.start()
    found = engine.store.logs[doomed.log_id]
    assert (found.last_index, found.hard_state, engine.all_entries(found)) == expected
    assert not found.lost
    engine.store.delete_log(found.log_id)
    engine.disk.room = None
    engine.workers.advance(5000)
    assert found.log_id not in engine.store._journal.logs
    assert found.tail.chunks == []
    assert engine.store.unflushed_bytes == engine.store.logs[other.log_id].unflushed
    assert not engine.store.disk_full
    engine.crash()
    engine.start()
    assert list(engine.store.logs) == [other.log_id]


def test_logs_that_are_given_up_keep_their_data_until_the_identity_says_so(engine, writer):
    """A start before that finds them as they were."""
    held, other = engine.new_log(), engine.new_log(group_id=10)
    engine.store.append(held, writer(held).entries(20, term=7, size=2000))
    engine.submit()
    for _ in range(8):
        commit(engine, other, writer, 20, size=3000)
    engine.workers.advance(100)
    use_up_identity_reserve(engine)
    done = []
    engine.store.give_up(lambda: done.append(True))
    vote(engine, held, range(100, 120))
    engine.store.checkpoint()
    engine.workers.advance(5000)
    assert held.lost
    assert not done
    engine.crash()
    engine.start()
    assert [(log.last_index, log.lost) for log in engine.store.logs.values()] == [
        (20, False),
        (160, False),
    ]
    engine.store.give_up(lambda: done.append(True))
    engine.disk.room = None
    engine.workers.advance(5000)
    assert done
    new = engine.new_log(group_id=11)
    for _ in range(8):
        put(engine, new, writer, 20, size=3000)
        engine.checkpoint()
        engine.workers.advance(1000)
    assert engine.store._journal.file_count <= 3
    engine.crash()
    engine.start()
    assert [log.lost for log in engine.store.logs.values()] == [True, True, False]


def test_log_being_created_while_all_are_given_up_is_lost_at_once(engine, monkeypatch):
    """The identity's next write says so, and the log takes part in nothing before a start."""
    made, done = [], []
    engine.store.create_log(9, 1, on_created=made.append)
    essential = engine.workers.essential

    def give_up_meanwhile(job, ended):
        monkeypatch.undo()
        engine.store.give_up(lambda: done.append(True))
        essential(job, ended)

    monkeypatch.setattr(engine.workers, "essential", give_up_meanwhile)
    engine.pump()
    assert done
    assert [log.lost for log in made] == [True]


def test_many_deleted_logs_go_in_several_removals(engine, writer):
    """There are more than one removal takes.

    Some are deleted before and some while the identity is written.
    """
    logs = [engine.new_log(group_id=n) for n in range(300)]
    for log in logs:
        put(engine, log, writer, 1, size=10)
    for log in logs[:150]:
        engine.store.delete_log(log.log_id)
    engine.pump()
    for log in logs[150:]:
        engine.store.delete_log(log.log_id)
    engine.workers.advance(3000)
    fs = SimFileSystem(engine.disk)
    assert (fs.list("data/logs"), fs.list("data/deleted")) == ([], [])
    assert not engine.store._deletions._unlisted
    assert not engine.store._deletions._waiting


def test_start_on_a_full_disk_that_finds_a_lost_log_opens_the_others(engine, writer):
    """The loss has to be recorded first, for which some space is reserved."""
    log = engine.new_log()
    for _ in range(8):
        put(engine, log, writer, 4, size=4000)
        engine.workers.advance(100)
    other = engine.new_log(group_id=10)
    put(engine, other, writer, 1)
    engine.workers.advance(3000)
    path = f"data/journal/{engine.store._journal.current_sequence:016x}.journal"
    engine.crash()
    fs = SimFileSystem(engine.disk)
    inode = fs.open(path)._inode
    inode.data[8192 + 904] ^= 1
    engine.disk.room = 0
    for _ in range(2):
        engine.start()
        assert [found.lost for found in engine.store.logs.values()] == [True, False]
        assert [known.lost for known in read_identity(fs, "data").logs.values()] == [True, False]
        # Votes of the other logs go on.
        other = engine.store.logs[2]
        engine.store.set_hard_state(
            other, HardState(other.hard_state.term + 1, 5, other.commit_index)
        )
        engine.submit()
        engine.crash()
    engine.disk.room = None
    engine.start()
    engine.new_log(group_id=11)
    assert identity_reserve(fs, "data").pieces() == 8


@pytest.mark.parametrize("logs", [1, 5000])
def test_identity_is_written_over_a_piece_or_in_the_room_of_some(logs):
    """A piece is overwritten, because others may take the space of a removed one.

    An identity that does not fit into a piece depends on that space.
    """
    disk = SimDisk(random.Random(7), DiskProfile())
    fs = SimFileSystem(disk)
    fs.make_directory("data")
    reserve = identity_reserve(fs, "data")
    reserve.fill()
    identity = Identity(bytes(16), b"", logs + 1)
    replace_identity(fs, "data", reserve, encode(identity))
    identity.logs = {n: LogIdentity(n, n, 1, 1, 0, 0) for n in range(1, logs + 1)}
    data = encode(identity)
    disk.room = 0
    if len(data) > RESERVE_PIECE_BYTES:
        with pytest.raises(OSError, match="no space") as raised:
            replace_identity(fs, "data", reserve, data)
        assert raised.value.errno == errno.ENOSPC
        assert read_identity(fs, "data").logs == {}
        assert reserve.pieces() == 0
        return
    replace_identity(fs, "data", reserve, data)
    disk.cut_jobs([])
    disk.power_cut()
    assert read_identity(fs, "data") == identity
    assert reserve.pieces() == 7
    disk.room = None
    replace_identity(fs, "data", reserve, data)
    assert reserve.pieces() == 8


@pytest.mark.parametrize("damage", ["segment", "segment and Idx"])
def test_what_makes_room_does_not_wait_for_a_repair(engine, writer, damage):
    """The copy for a segment's lost end needs space, and waits in the same queue."""
    log, other = engine.new_log(), engine.new_log(group_id=10)
    fill_segments(engine, other, writer)
    fill_segments(engine, log, writer)
    good = []
    engine.store.entries_cold(log, 1, log.flushed_index + 1, 1 << 30, good.extend)
    engine.pump()
    segment, following = log.segments[1:3]
    cut_short(log.files.fs, log.files.segment_path(segment.number))
    if damage != "segment":
        number = segment.first_index // log.files.index_entries
        cut_short(log.files.fs, log.files.index_path(number))
    last = following.first_index - 1
    engine.store.entries_cold(log, last, last + 1, 1, lambda found: None)
    engine.pump()
    ((first, end),) = log.damaged
    engine.disk.returns_room = True
    engine.disk.room = 0
    done = []
    engine.store.repair(log, [e for e in good if first <= e.index < end], done.append)
    engine.workers.advance(3_000)
    assert [type(answer) for answer in done] == [WriteRefused]
    engine.store.trim_log(other, first_index=other.commit_index - 10)
    engine.submit()
    engine.workers.advance(30_000)
    assert len(segment_files(other)) <= 2
    assert not engine.store.disk_full
    engine.store.repair(log, [e for e in good if first <= e.index < end], done.append)
    engine.workers.advance(1_000)
    assert done[1:] == [None]


def cut_short(fs, path):
    """Remove the file's second half, as a failing medium does."""
    file = fs.open(path)
    file.truncate(file.size() // 2)
    file.sync()
    file.close()


def test_nothing_is_acknowledged_after_a_failed_job_of_the_pool(engine, writer):
    """The owner is notified that the disk failed.

    If it continues all the same, no request is answered.
    """
    log = engine.new_log()
    token = put(engine, log, writer, 20, size=2000)
    engine.disk.fail_syncs = 1
    engine.store.checkpoint()
    engine.pump()
    assert len(engine.fatal) == 1
    created = []
    engine.store.create_log(11, 1, on_created=created.append)
    engine.store.append(log, writer(log).entries(3))
    engine.store.submit()
    engine.workers.advance(5000)
    assert (engine.acknowledged, engine.store.durable_token, created) == (token, token, [])
    assert len(engine.fatal) == 1


def test_block_under_way_when_a_job_fails_is_not_acknowledged(engine, writer):
    """The block may well be durable, but its requests must not be acknowledged."""
    log = engine.new_log()
    token = put(engine, log, writer, 20, size=2000)
    engine.disk.fail_syncs = 1
    engine.store.checkpoint()
    engine.store.append(log, writer(log).entries(3))
    engine.store.submit()
    while engine.workers.pool_jobs:
        engine.workers.run_one(engine.workers.pool_jobs)
    assert len(engine.fatal) == 1
    engine.workers.advance(5000)
    assert (engine.acknowledged, engine.store.durable_token) == (token, token)
    answers = []
    engine.store.read_cold(log, 0, log.commit_index, 100, answers.append)
    engine.pump()
    assert not isinstance(answers[0], StorageError)


def test_last_block_is_proved_although_a_full_disk_refused_the_proof(make_harness, tmp_path):
    """An empty block extends a file without space, and a full disk refuses it.

    It is retried, or a bit flip in the last block would pass for a tear.
    """
    harness = make_harness("sim", tmp_path)
    log = harness.new_log()
    journal = harness.store._journal
    harness.workers.advance(1000)
    entry = StoredEntry(1, 1, 0, b"acknowledged" * 100, 0, 1, 1)
    harness.store.append(log, [entry])
    harness.submit()
    assert journal._unproved
    journal._current.capacity = journal._current.position  # the file is full
    harness.disk.truncate(journal._current.file._inode, journal._current.position)
    harness.disk.room = 0
    harness.workers.advance(1000)
    blocks = journal.stats.blocks
    harness.disk.room = None
    harness.workers.advance(1000)
    assert journal.stats.blocks > blocks
    assert not journal._unproved
    assert harness.fatal == []
    harness.crash()
