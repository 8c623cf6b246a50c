"""Damage in files beside segments that a start reads.

A running store finds it and rewrites the data from memory: the next start finds all of it.
"""

import copy
import errno
from dataclasses import replace

import pytest

from segments.api import HardState, MetaBatch, StoredEntry, StoreOptions
from segments.checkpoint import scheduler as scheduler_module
from segments.checkpoint.scheduler import CheckpointScheduler
from segments.directory import log_registry
from segments.directory.format_note import FORM_CLEARS, FORM_VOTES, is_format_whole, read_form
from segments.directory.identity import read_identity
from segments.format.block import BLOCK_HEADER_BYTES, PAGE_BYTES, decode_file_header
from segments.io.fs import LmdbFile
from segments.journal.writer import Journal
from segments.log.scrubber import PARTS_MS
from segments.recovery.journal_blocks import read_block
from segments.recovery.parts import FormatLook, JournalLook
from tests.storage_contract.conftest import SMALL, DiskHarness, SimHarness
from vdl.sim.filesystem import SimFile, SimFileSystem

OPTIONS = StoreOptions(
    journal_file_bytes=128 << 10, journal_first_file_bytes=64 << 10, segment_bytes=64 << 10,
    cache_bytes_max=1 << 20, checkpoint_bytes=1 << 30, scrub_bytes_per_second=4 << 20,
    place_bytes_min=0,
)  # fmt: skip


def fill(engine):
    """Create three logs with segments, small tails, uncommitted entries and an installed state."""
    store = engine.store
    for group in (9, 10, 11):
        engine.new_log(group_id=group)
    logs = list(store.logs.values())
    for first in range(1, 301, 25):
        for log in logs[:2]:
            store.append(
                log,
                [StoredEntry(1, n, 0, bytes([n & 255]) * 700, n - 1, 1, n)
                 for n in range(first, first + 25)],
            )  # fmt: skip
            commit = first + 20 if log is logs[0] else 5
            store.set_hard_state(log, HardState(2, log.log_id, commit))
        engine.submit()
        if first == 101:
            engine.checkpoint()
    store.set_hard_state(logs[2], HardState(2, 1, 0))
    store.reset_log(logs[2], first_index=40, prev_term=2, next_offset=900, state=b"s" * 3_000)
    engine.submit()
    engine.workers.advance(300)


def told(engine):
    """Return all that a start has to find."""
    return [
        (log.log_id, log.lost, log.hard_state, log.first_index, log.next_offset,
         log.installed_state, engine.all_entries(log))
        for log in engine.store.logs.values()
    ]  # fmt: skip


@pytest.fixture(params=[0, 4_000], ids=["journaled", "placed"])
def engine(request):
    """Yield an engine whose entries are in the journal, or in segments.

    In the second case the journal has their checksums.
    """
    made = SimHarness(replace(OPTIONS, place_bytes_min=request.param))
    made.start()
    fill(made)
    yield made
    assert made.fatal == []
    made.crash()


def file_of(engine, path):
    return SimFileSystem(engine.disk).open(path)


def flip(file, position):
    (byte,) = file.pread(1, position)
    file.pwrite([bytes([byte ^ 1])], position)


def scrub(engine):
    """Run a scrub round and its consequences."""
    engine.workers.advance(60_000)
    return engine.store.stats()["scrub_parts_damaged"]


def place_of(file, what):
    """Return a position of that kind of record within the file, in the block with most records."""
    header = decode_file_header(file.pread(PAGE_BYTES, 0))
    blocks, position = [], header.bytes
    while (found := read_block(file, header, position, file.size())[0]) is not None:
        blocks.append(found)
        position += found.padded
    block = max(blocks, key=lambda one: len(one.table))
    table = block.position + BLOCK_HEADER_BYTES
    return {
        "header": 70, "parity": PAGE_BYTES + 3, "block": block.position + 20, "table": table + 8,
        "frame": table + len(block.table) + 60,
    }[what]  # fmt: skip


@pytest.mark.parametrize("what", ["header", "parity", "block", "table", "frame", "sector", "name"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_damaged_journal_file_goes_and_nothing_with_it(engine, which, what):
    """The oldest file, one in the middle, and the one being written."""
    files = engine.store._journal.counted_files()
    assert len(files) >= 3
    sequence, path, _ = files[which]
    before = told(engine)
    file = file_of(engine, path)
    if what == "name":  # removed from outside
        SimFileSystem(engine.disk).unlink(path)
    elif what == "sector":
        engine.disk.bad_pages.add((file._inode, 2))
    else:
        flip(file, place_of(file, what))
    assert scrub(engine) >= 1
    assert sequence not in [n for n, _, _ in engine.store._journal.counted_files()]
    names = SimFileSystem(engine.disk).list("data/journal")
    inodes = [file_of(engine, f"data/journal/{name}")._inode for name in names]
    assert not any(inode is file._inode for inode in inodes), "a place that was bad is used again"
    assert told(engine) == before
    engine.power_cut()
    engine.start()
    assert told(engine) == before


def test_whole_directory_is_left_alone(engine):
    engine.workers.advance(60_000)
    files = engine.store._journal.counted_files()
    blocks = engine.store.stats()["journal_blocks"]
    assert scrub(engine) == 0
    assert engine.store._journal.counted_files() == files
    assert engine.store.stats()["journal_blocks"] == blocks


def test_parts_are_looked_at_once_an_hour(engine):
    """Each part is examined once an hour, also after the first time."""
    engine.workers.advance(60_000)
    file = file_of(engine, "data/identity")
    flip(file, 20)
    assert scrub(engine) == 0
    engine.store._scrubber._now_ns = lambda: PARTS_MS * 1_000_000
    assert scrub(engine) == 1
    assert scrub(engine) == 1


def test_file_that_is_let_go_while_it_is_looked_at_is_no_damage(engine):
    """Damage in a file released during its examination is not reported: the file is reused."""
    sequence, path, end_lsn = engine.store._journal.counted_files()[0]
    look = JournalLook(SimFileSystem(engine.disk), sequence, path, end_lsn, engine.store)
    engine.store._journal.chain.release(sequence + 1)
    flip(file_of(engine, path), 70)
    look.step()
    assert look.is_damaged
    assert not look.tell()


def test_damaged_journal_file_goes_while_entries_come(engine):
    """More of the journal is damaged than one file."""
    store, log = engine.store, engine.log
    files = engine.store._journal.counted_files()[-2:]
    for _, path, _ in files:
        file = file_of(engine, path)
        flip(file, place_of(file, "block"))
    damaged = [sequence for sequence, _, _ in files]
    for _ in range(120):
        index = log.last_index + 1
        store.append(log, [StoredEntry(2, index, 0, b"x" * 500, index - 1, 1, index)])
        store.set_hard_state(log, HardState(2, log.log_id, index))
        engine.submit()
        engine.workers.advance(300)
    assert engine.store.stats()["scrub_parts_damaged"] >= 1
    assert not set(damaged) & {n for n, _, _ in engine.store._journal.counted_files()}
    before = told(engine)
    engine.power_cut()
    engine.start()
    assert told(engine) == before


def test_damaged_journal_file_of_a_full_disk_goes_when_there_is_room(engine):
    sequence, path, _ = engine.store._journal.counted_files()[-1]
    file = file_of(engine, path)
    flip(file, place_of(file, "block"))
    before = told(engine)
    engine.disk.room = 0
    scrub(engine)
    assert told(engine) == before
    engine.disk.room = None
    scrub(engine)
    assert sequence not in [n for n, _, _ in engine.store._journal.counted_files()]
    engine.power_cut()
    engine.start()
    assert told(engine) == before


def test_journal_file_of_a_full_disk_takes_more_while_it_waits_to_go(engine):
    """A damaged file of a full disk still takes votes.

    Otherwise each would need a reserve piece, and it may be the last file with space.
    """
    store, log = engine.store, engine.log
    engine.disk.room = 0
    while not store._journal.is_full:
        index = log.last_index + 1
        store.append(log, [StoredEntry(2, index, 0, b"x" * 9_000, index - 1, 1, index)])
        engine.submit()
        engine.workers.advance(300)
    sequence, path, _ = store._journal.counted_files()[-1]
    pieces = store._journal.allocation.pieces_left
    file = file_of(engine, path)
    flip(file, place_of(file, "header"))
    assert scrub(engine) >= 1
    for term in range(3, 9):
        store.set_hard_state(log, HardState(term, 1, log.commit_index))
        engine.submit()
        engine.workers.advance(300)
    assert store._journal.is_full
    assert (store._journal.current_sequence, store._journal.allocation.pieces_left) == (
        sequence, pieces,
    )  # fmt: skip
    before = told(engine)
    engine.disk.room = None
    scrub(engine)
    assert sequence not in [n for n, _, _ in store._journal.counted_files()]
    engine.power_cut()
    engine.start()
    assert told(engine) == before


@pytest.mark.parametrize("half", [0, 1, 2])
def test_damaged_identity_is_written_anew(engine, half):
    """One half of it, or both: a start needs one."""
    file = file_of(engine, "data/identity")
    for at in ((0,), (1,), (0, 1))[half]:
        flip(file, at * file.size() // 2 + 20)
    assert scrub(engine) == 1
    found = read_identity(SimFileSystem(engine.disk), "data")
    assert not found.is_half_damaged
    assert found.directory_id == engine.store.directory_id
    engine.reopen()
    assert len(engine.store.logs) == 3


@pytest.mark.parametrize("copies", [(0,), (1,), (0, 1)])
def test_damaged_format_is_written_anew(engine, copies):
    fs = SimFileSystem(engine.disk)
    for at in copies:
        flip(file_of(engine, "data/format"), at * PAGE_BYTES + 12)
    assert not is_format_whole(fs, "data", FORM_CLEARS)
    assert scrub(engine) == 1
    assert is_format_whole(fs, "data", FORM_CLEARS)


def test_directory_whose_votes_moved_keeps_that_form(engine):
    """Over a look of the scrubber, a damaged copy and a start. A full disk postpones it."""
    fs = SimFileSystem(engine.disk)
    engine.workers.advance(8_000)
    engine.disk.room = 0
    assert not engine.store.note_moved_votes()
    assert read_form(fs, "data") == FORM_CLEARS
    engine.disk.room = None
    assert engine.store.note_moved_votes()
    assert is_format_whole(fs, "data", FORM_VOTES)
    flip(file_of(engine, "data/format"), 12)
    assert scrub(engine) == 1
    engine.reopen()
    assert is_format_whole(fs, "data", FORM_VOTES)


def test_votes_that_move_while_the_format_is_examined_keep_their_form(engine):
    """The look began with the older form."""
    fs = SimFileSystem(engine.disk)
    parts = engine.store._parts
    engine.workers.advance(8_000)
    parts.begin()
    while not isinstance(parts.next(), FormatLook):
        parts.next().step()
        parts.stepped()
    assert engine.store.note_moved_votes()
    for at in (0, 1):
        flip(file_of(engine, "data/format"), at * PAGE_BYTES + 12)
    parts.next().step()
    parts.stepped()
    assert is_format_whole(fs, "data", FORM_VOTES)


def test_damage_for_which_a_full_disk_has_no_room_holds_up_nothing_else(engine):
    """Segments are scrubbed and the other parts examined; once there is space it is repaired."""
    engine.workers.advance(8_000)
    flip(file_of(engine, "data/format"), 12)
    engine.disk.room = 0
    engine.workers.advance(30_000)
    passes = engine.store.stats()["scrub_passes"]
    path = engine.store._journal.counted_files()[0][1]
    file = file_of(engine, path)
    flip(file, place_of(file, "header"))
    now_ns = engine.store._scrubber._now_ns
    engine.store._scrubber._now_ns = lambda: now_ns() + PARTS_MS * 1_000_000
    engine.workers.advance(120_000)
    assert engine.store.stats()["scrub_passes"] > passes + 2
    assert engine.store.stats()["scrub_parts_damaged"] >= 1
    fs = SimFileSystem(engine.disk)
    assert not is_format_whole(fs, "data", FORM_CLEARS)
    engine.disk.room = None
    engine.workers.advance(60_000)
    assert is_format_whole(fs, "data", FORM_CLEARS)


def test_meta_with_a_page_that_cannot_be_read_is_written_anew(tmp_path, monkeypatch):
    """The meta is rewritten before an access through the map to a bad page ends the process.

    It keeps its readable contents.
    """
    engine = DiskHarness(OPTIONS, directory=str(tmp_path / "data"))
    engine.start()
    fill(engine)
    log = engine.log
    engine.collect(MetaBatch(log.log_id, log.commit_index, [(b"key", b"value")]))
    engine.checkpoint()
    real = LmdbFile.read_medium

    def refused(self, length, position):
        if not engine.store.stats()["meta_salvaged"]:
            raise OSError(errno.EIO, "input/output error")
        return real(self, length, position)

    monkeypatch.setattr(LmdbFile, "read_medium", refused)
    assert scrub(engine) == 1
    assert engine.store.stats()["meta_salvaged"] == 1
    assert engine.store.load_meta(log)[1] == [(b"key", b"value")]
    log = engine.reopen()
    assert engine.store.load_meta(log)[1] == [(b"key", b"value")]
    engine.crash()
    assert engine.fatal == []


@pytest.mark.parametrize("waiting", [1, 8], ids=["stands for all", "stands for some"])
def test_round_that_begins_while_a_file_takes_the_place_of_others(monkeypatch, waiting):
    """A round on a full disk reads a file that replaces others.

    It is there and complete, though its block is still being written.
    """
    engine = SimHarness(replace(SMALL, cache_bytes_max=1 << 20))
    engine.start()
    store, log = engine.store, engine.new_log(9)
    told_of, real = [], Journal._hand_over

    def hand_over(journal, write):
        if journal.chain.replaced and write.file.sequence not in journal.chain.paths:
            looks = [JournalLook(store._fs, *f, store) for f in journal.counted_files()]
            for look in looks:
                while not (look.is_done or look.is_damaged):
                    look.step()
            told_of.append([look.is_damaged for look in looks])
        return real(journal, write)

    monkeypatch.setattr(Journal, "_hand_over", hand_over)
    for index in range(1, waiting + 1):  # uncommitted: the files stay needed
        store.append(log, [StoredEntry(1, index, 0, b"x" * 9_000, index - 1, 1, index)])
        engine.submit()
    engine.disk.room = 0
    for term in range(2, 62):
        store.set_hard_state(log, HardState(term, 1, 0))
        engine.submit()
        engine.workers.advance(20)
    assert told_of
    assert not any(any(damaged) for damaged in told_of)
    assert waiting == 1 or any(told_of)
    assert engine.fatal == []
    engine.crash()


@pytest.mark.parametrize("what", ["journal", "identity", "format"])
def test_file_that_cannot_be_opened_is_damaged(engine, monkeypatch, what):
    """The medium may refuse the inode as well as a page."""
    sequence, path, _ = engine.store._journal.counted_files()[0]
    path = path if what == "journal" else f"data/{what}"
    before, refused = told(engine), []
    real = SimFileSystem.open

    def open_(fs, name, *, create=False):
        if name == path and not create and not refused.count(name):
            refused.append(name)
            raise OSError(errno.EIO, "input/output error")
        return real(fs, name, create=create)

    monkeypatch.setattr(SimFileSystem, "open", open_)
    assert scrub(engine) == 1
    assert refused
    assert engine.fatal == []
    assert told(engine) == before
    if what == "journal":
        assert sequence not in [n for n, _, _ in engine.store._journal.counted_files()]
    engine.power_cut()
    engine.start()
    assert told(engine) == before


def test_journal_is_read_from_the_medium(monkeypatch):
    """The journal is read from the medium, also all of a block longer than a step.

    The page cache may hold data that the medium has lost.
    """
    engine = SimHarness(
        replace(OPTIONS, journal_file_bytes=8 << 20, journal_first_file_bytes=8 << 20,
                cache_bytes_max=32 << 20)
    )  # fmt: skip
    engine.start()
    log = engine.new_log()
    engine.store.append(
        log, [StoredEntry(1, n, 0, b"x" * 500_000, n - 1, 1, n) for n in range(1, 9)]
    )
    engine.submit()
    engine.workers.advance(300)
    calls, real = [], SimFile.pread

    def pread(file, length, position):
        calls.append(("read", position, position + length))
        return real(file, length, position)

    def uncache(file, length=0, position=0):
        calls.append(("uncached", position, position + length if length else file.size()))

    monkeypatch.setattr(SimFile, "pread", pread)
    monkeypatch.setattr(SimFile, "uncache", uncache)
    look = JournalLook(
        SimFileSystem(engine.disk), *engine.store._journal.counted_files()[-1], engine.store
    )
    while not look.is_done:
        calls.clear()
        look.step()
        assert not look.is_damaged
        ranges = [(start, end) for what, start, end in calls if what == "uncached"]
        for start, end in [(start, end) for what, start, end in calls if what == "read"]:
            assert any(first <= start and end <= last for first, last in ranges)
    assert max(end - start for _, start, end in calls) > 4_000_000
    engine.crash()


def test_cluster_that_is_adopted_while_the_identity_is_written_anew_stays(engine, monkeypatch):
    """The thread writes what was encoded before, and nothing else may use its file meanwhile."""
    store, real, writing, found = engine.store, log_registry.write_identity, [], []

    def durable():
        disk = copy.deepcopy(engine.disk)
        disk.power_cut()
        found.append(read_identity(SimFileSystem(disk), "data").cluster_record)

    def write_identity(*args, **how):
        assert not writing, "two write the next identity at a time"
        writing.append(True)
        if not store.cluster_record():
            store.adopt_cluster(b"the birth record", durable)
        real(*args, **how)
        writing.clear()

    monkeypatch.setattr(log_registry, "write_identity", write_identity)
    store.identity_damaged()
    engine.workers.advance(1_000)
    assert engine.fatal == []
    assert found == [b"the birth record"]
    engine.power_cut()
    engine.start()
    assert engine.store.cluster_record() == b"the birth record"


def test_what_a_damaged_file_is_needed_for_is_staged_a_piece_at_a_time(monkeypatch):
    """The newest file may be needed for everything that is not in segments.

    That is never staged at once.
    """
    engine = SimHarness(
        replace(OPTIONS, journal_file_bytes=4 << 20, journal_first_file_bytes=4 << 20)
    )
    engine.start()
    for group in range(9, 19):
        log = engine.new_log(group_id=group)
        engine.store.append(
            log, [StoredEntry(1, n, 0, b"x" * 10_000, n - 1, 1, n) for n in range(1, 6)]
        )
        engine.store.set_hard_state(log, HardState(1, 2, 0))
        engine.submit()
    engine.workers.advance(300)
    sequence, path, _ = engine.store._journal.counted_files()[-1]
    before = told(engine)
    staged, real = [], CheckpointScheduler._stage_anew

    def stage_anew(scheduler):
        had = scheduler._queue.batch.bytes
        real(scheduler)
        staged.append(scheduler._queue.batch.bytes - had)

    monkeypatch.setattr(scheduler_module, "RESTAGED_BYTES", 80_000)
    monkeypatch.setattr(CheckpointScheduler, "_stage_anew", stage_anew)
    file = file_of(engine, path)
    flip(file, place_of(file, "header"))
    assert scrub(engine) == 1
    assert sequence not in [n for n, _, _ in engine.store._journal.counted_files()]
    assert 500_000 <= sum(staged) <= 1_000_000
    assert max(staged) <= 80_000 + 51_000
    engine.power_cut()
    engine.start()
    assert told(engine) == before
    assert engine.fatal == []
    engine.crash()
