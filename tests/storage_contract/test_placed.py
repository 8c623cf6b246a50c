"""Placed appends: large ones written directly to their segments, described by journal blocks.

Covers what counts when only a part of both is on the disk, and what damage means.
"""

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from segments.api import EntriesDamaged, HardState, StoredEntry
from segments.checkpoint import rooms, scheduler
from segments.directory.identity import read_identity
from segments.format.block import BLOCK_HEADER_BYTES, ENTRY, PLACE, PLACED, RECORD_BYTES
from segments.io.fs import RealFile
from segments.journal.allocation import Room
from segments.journal.files import JournalFiles
from segments.log.segment_header import SEGMENT_HEADER_BYTES
from segments.recovery import start
from segments.recovery.replayed_log import ReplayedLog
from segments.tool import Directory, verify
from tests.storage_contract.conftest import PLACING, SMALL, DiskHarness, SimHarness
from vdl.sim.damage import _blocks, _files, _records
from vdl.sim.disk import SimDisk
from vdl.sim.filesystem import SimFileSystem


def entries_from(log, first, count, term, size):
    offset = log.offset_after(first - 1)
    return [
        StoredEntry(term, n, 0, bytes([n & 0xFF, term]) * (size // 2), offset + n - first, 1, n)
        for n in range(first, first + count)
    ]


def append(engine, count=4, *, first=0, term=1, size=300):
    log = engine.log
    engine.store.append(log, entries_from(log, first or log.last_index + 1, count, term, size))


def commit(engine, index=0):
    log = engine.log
    term = max(log.hard_state.term, log.term(log.last_index))
    engine.store.set_hard_state(log, HardState(term, 0, index or log.last_index))


def settle_all(engine):
    """Commit, flush and note everything."""
    commit(engine)
    engine.submit()
    engine.checkpoint()
    engine.submit()


def settled(engine, size=300):
    """Return an engine whose log has preallocated space for payloads."""
    engine.start()
    engine.new_log()
    for _ in range(2):
        append(engine, size=size)
        settle_all(engine)
    assert engine.log.placement.rooms
    return engine


def harness(kind, tmp_path, options):
    """Return a harness on a real disk or a simulated one."""
    if kind == "disk":
        return DiskHarness(options, directory=str(tmp_path / "data"))
    return SimHarness(options)


@pytest.fixture(params=["disk", "sim"])
def engine(request, tmp_path):
    made = settled(harness(request.param, tmp_path, PLACING))
    yield made
    made.crash()


@pytest.fixture
def sim():
    return settled(SimHarness(PLACING))


def written(engine):
    return engine.store.stats()["payload_bytes"]


def jobs(engine):
    """Return (the block's job, the payload's) of what is submitted now."""
    engine.store.submit()
    workers = engine.workers
    return workers.journal_jobs.popleft(), workers.payload_jobs.popleft()


def proved(engine):
    """Follow the last block with one that proves it."""
    engine.workers.advance(200)


def spoil(engine, index):
    """Flip a bit in the payload of a placed entry, while nothing runs."""
    log = engine.log
    segment, position = log.placement.place_of(index, log.cursor, log.tail)
    path = log.files.segment_path(segment)
    engine.crash()
    file = engine.store._fs.open(path)
    byte = file.pread(1, position + 60)[0]
    file.pwrite([bytes([byte ^ 4])], position + 60, durable=True)
    file.close()


def test_large_append_is_in_its_segment_and_not_in_the_journal(engine):
    """A large append is written once, to its segment.

    A checkpoint writes only its Idx; it is read as any entry.
    """
    log = engine.log
    before = engine.all_entries(log)
    journal_bytes, flushed = engine.store.stats()["journal_bytes"], log.flushed_index
    append(engine, 8, size=400)
    engine.submit()
    assert written(engine) >= 8 * 400
    assert engine.store.stats()["journal_bytes"] - journal_bytes == 4096
    assert (log.flushed_index, log.placement.durable) == (flushed, log.last_index)
    held = engine.all_entries(log)
    engine.reopen()
    assert engine.all_entries(engine.log) == held
    assert len(held) == len(before) + 8
    commit(engine)
    engine.submit()
    engine.checkpoint()
    assert engine.log.flushed_index == engine.log.last_index
    engine.submit()
    engine.reopen()
    assert engine.all_entries(engine.log) == held


def test_small_append_before_a_large_one_goes_along(engine):
    """Frames in a segment are contiguous; the small one is in the journal, too."""
    append(engine, 1, size=20)
    append(engine, 6, size=400)
    engine.submit()
    assert engine.log.placement.durable == engine.log.last_index
    held = engine.all_entries(engine.log)
    engine.reopen()
    assert engine.all_entries(engine.log) == held
    commit(engine)
    engine.submit()
    engine.checkpoint()
    engine.submit()
    engine.reopen()
    assert engine.all_entries(engine.log) == held


def test_what_a_start_counts_as_flushed_needs_no_journal_file_any_more(sim, monkeypatch):
    """The file that described it is removed, and the oldest one left is from before that start."""
    monkeypatch.setattr(scheduler.CheckpointScheduler, "begin_if_pressed", lambda _: None)
    other = sim.new_log()
    append(sim, 8)
    commit(sim)
    sim.submit()
    last, told = sim.log.last_index, sim.store._journal.current_sequence
    assert sim.log.flushed_index < last
    while sim.store._journal.current_sequence == told:
        sim.store.append(other, entries_from(other, other.last_index + 1, 10, 1, 300))
        sim.submit()
    sim.store.append(other, entries_from(other, other.last_index + 1, 10, 1, 300))
    sim.submit()
    proved(sim)
    assert sim.log.flushed_index < last
    spoil(sim, last)
    sim.start()
    other = sim.store.logs[other.log_id]
    assert sim.log.flushed_index == last
    sim.store.set_hard_state(other, HardState(1, 0, other.runs[0].last))
    sim.submit()
    sim.checkpoint()
    proved(sim)
    assert told < min(sim.store._journal.chain.paths) < sim.store._journal.current_sequence
    sim.power_cut()
    sim.start()
    assert not sim.log.lost
    assert sim.log.flushed_index == last


@pytest.mark.parametrize("which", [0, 1])
def test_block_and_payload_count_only_together(sim, which):
    """One without the other counts for nothing: no token, and after a power cut no entry."""
    held, durable = sim.all_entries(sim.log), sim.store.durable_token
    append(sim, 8)
    both = jobs(sim)
    job, done = both[which]
    done(job())
    sim.pump()
    assert sim.store.durable_token == durable
    sim.power_cut()
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.log) == held
    append(sim, 8, term=2)
    sim.submit()
    held = sim.all_entries(sim.log)
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held


def test_failed_payload_is_the_end(engine):
    """A failed sync is reported once, and nothing is acknowledged."""
    durable = engine.store.durable_token
    append(engine, 8)
    block, payload = jobs(engine)
    block[1](block[0]())
    payload[1](OSError(5, "sync"))
    engine.workers.advance(1000)
    assert len(engine.fatal) == 1
    assert engine.store.durable_token == durable


def two_logs(harness, **where):
    """Return (an engine whose log has preallocated space, another log that has)."""
    engine = settled(harness(replace(PLACING, segment_bytes=64 << 10), **where))
    other = engine.new_log()
    for _ in range(2):
        for log in (engine.log, other):
            engine.store.append(log, entries_from(log, log.last_index + 1, 4, 1, 300))
            engine.store.set_hard_state(log, HardState(1, 0, log.last_index))
        engine.submit()
        engine.checkpoint()
        engine.submit()
    return engine, other


def append_to_both(engine, other):
    """Append one payload to each log in the block, and a second one to the first."""
    append(engine, 4)
    engine.store.append(other, entries_from(other, other.last_index + 1, 4, 1, 300))
    append(engine, 2)
    assert len(engine.store._queue.batch.payloads) == 3


def test_payloads_of_a_block_are_all_on_their_way_before_a_sync_waits(tmp_path, monkeypatch):
    """Writing the files sequentially would cost a wait for each; each file is synced once."""
    engine, other = two_logs(DiskHarness, directory=str(tmp_path / "data"))
    append_to_both(engine, other)
    (block, done), payload = jobs(engine)
    done(block())
    calls = []

    def watch(name):
        real = getattr(RealFile, name)

        def watched(file, *args, **more):
            calls.append((name, file))
            return real(file, *args, **more)

        monkeypatch.setattr(RealFile, name, watched)

    for name in ("pwrite", "begin_write_back", "sync"):
        watch(name)
    engine.workers.payload_jobs.append(payload)
    engine.workers.run_one(engine.workers.payload_jobs)
    monkeypatch.undo()
    first = next(n for n, (name, _) in enumerate(calls) if name == "sync")
    begun = [file for name, file in calls[:first] if name == "begin_write_back"]
    assert [name for name, _ in calls[first:]] == ["sync"] * 2
    assert {file for _, file in calls[first:]} == set(begun)
    assert len(begun) == 3
    engine.pump()
    held = [engine.all_entries(log) for log in engine.store.logs.values()]
    engine.reopen()
    assert [engine.all_entries(log) for log in engine.store.logs.values()] == held
    engine.crash()


@pytest.mark.parametrize("nth", range(2))
def test_failed_sync_of_one_payload_among_several_is_the_end(nth, monkeypatch):
    """A failed sync of any of several payloads is reported once and never retried.

    Nothing is acknowledged.
    """
    sim, other = two_logs(SimHarness)
    append_to_both(sim, other)
    held, durable = sim.all_entries(sim.log)[:-6], sim.store.durable_token
    block, payload = jobs(sim)
    block[1](block[0]())
    synced = []

    def sync(disk, inode, real=SimDisk.sync):
        synced.append(inode)
        disk.fail_syncs = int(len(synced) == nth + 1)
        real(disk, inode)

    monkeypatch.setattr(SimDisk, "sync", sync)
    sim.workers.payload_jobs.append(payload)
    sim.pump()
    sim.workers.advance(1000)
    assert len(synced) == nth + 1
    assert len(sim.fatal) == 1
    assert sim.store.durable_token == durable
    monkeypatch.undo()
    sim.power_cut()
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.log)[: len(held)] == held


def test_payloads_of_several_logs_are_on_the_disk_when_acknowledged():
    """Each of them survives a power cut."""
    sim, other = two_logs(SimHarness)
    append_to_both(sim, other)
    sim.submit()
    held = [sim.all_entries(log) for log in sim.store.logs.values()]
    sim.power_cut()
    sim.start()
    assert [sim.all_entries(log) for log in sim.store.logs.values()] == held


def test_payload_that_nothing_proves_is_written_again_at_a_start(sim):
    """A start rewrites an unproved payload, which it may have read from the page cache only."""
    append(sim, 8)
    held = sim.all_entries(sim.log)
    block, payload = jobs(sim)
    block[0]()
    sim.disk.run_job(payload[0])  # nothing of it reached the platter
    sim.crash()
    sim.start()
    assert sim.all_entries(sim.log) == held
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held


def test_damaged_payload_of_the_last_block_is_the_end_of_the_log(engine):
    """Nothing proves the block: it is indistinguishable from a tear."""
    held = engine.all_entries(engine.log)
    append(engine, 8)
    for job, _ in jobs(engine):
        job()
    spoil(engine, engine.log.last_index)
    engine.start()
    assert not engine.log.lost
    assert engine.all_entries(engine.log) == held


def test_damaged_payload_behind_the_mark_loses_what_was_not_committed(engine):
    """A damaged uncommitted payload loses the log, as a damaged frame of a journal block does.

    It may have been acknowledged.
    """
    append(engine, 8)
    engine.submit()
    proved(engine)
    spoil(engine, engine.log.last_index - 1)
    engine.start()
    assert engine.log.lost


def test_damaged_payload_that_was_committed_is_a_hole(engine):
    """Other replicas have it: this one stays, reports what it cannot read, and takes a copy."""
    log = engine.log
    append(engine, 8)
    engine.submit()
    commit(engine, log.last_index - 1)
    engine.submit()
    proved(engine)
    held = engine.all_entries(log)
    damaged = log.last_index - 1
    copies = [
        StoredEntry(1, damaged, 0, bytes(entry.data), entry.base_offset, 1, entry.timestamp)
        for entry in log.entries(damaged, damaged + 1, 1 << 20)
    ]
    spoil(engine, damaged)
    for _ in range(2):  # it is found as long as the journal has the entry
        engine.start()
        log = engine.log
        assert not log.lost
        assert (log.flushed_index, log.last_index) == (damaged, damaged + 1)
        with pytest.raises(EntriesDamaged):
            engine.entries(log, damaged, damaged + 1)
        engine.crash()
    engine.start()
    with pytest.raises(EntriesDamaged):
        engine.entries(engine.log, damaged, damaged + 1)
    done = []
    engine.store.repair(engine.log, copies, done.append)
    engine.workers.advance(500)
    assert done == [None]
    assert engine.all_entries(engine.log) == held


def test_place_is_not_written_again_before_the_cut_is_durable(sim):
    """A crash before that finds the old frames where the journal says they are."""
    append(sim, 8)
    sim.submit()
    proved(sim)
    held = sim.all_entries(sim.log)
    first = sim.log.last_index - 3
    append(sim, 8, first=first, term=2)
    assert not sim.store._queue.batch.payloads
    commit(sim)
    sim.store.checkpoint()
    sim.workers.pool_jobs.clear()  # nothing was written to the segment yet
    assert all(plan.writes_frames is False for plan in sim.store._checkpoints._plans([sim.log]))
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held
    append(sim, 8, first=first, term=2)
    sim.submit()
    append(sim, 8, term=2)
    commit(sim)
    sim.submit()
    held = sim.all_entries(sim.log)
    sim.checkpoint()
    sim.submit()
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held


def test_frames_that_their_own_block_cuts_off_need_not_be_there(sim):
    """A start does not require frames that their own block truncates.

    Once the block is durable, files of the reset log are removed, while the block is still the
    last.
    """
    append(sim, 8)
    assert sim.store._queue.batch.payloads
    log = sim.log
    sim.store.reset_log(log, first_index=log.last_index + 5, prev_term=1, next_offset=99)
    sim.submit()
    sim.power_cut()
    sim.start()
    assert not sim.log.lost
    assert (sim.log.first_index, sim.log.next_offset) == (log.first_index, 99)


def test_reset_while_a_payload_is_under_way(sim):
    """A payload under way during a reset goes to the old file, and does not affect the log."""
    append(sim, 8)
    block, payload = jobs(sim)
    log = sim.log
    sim.store.reset_log(log, first_index=log.last_index + 5, prev_term=1, next_offset=99)
    for job, done in (payload, block):
        done(job())
    sim.submit()
    assert (log.placement.index, log.placement.durable) == (log.last_index,) * 2
    append(sim, 8)
    sim.submit()
    held = sim.all_entries(sim.log)
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held


def test_log_deleted_while_a_payload_is_under_way(engine):
    """Nothing fails, and a start misses nothing."""
    append(engine, 8)
    block, payload = jobs(engine)
    engine.store.delete_log(engine.log.log_id)
    for job, done in (payload, block):
        done(job())
    engine.pump()
    assert engine.fatal == []
    engine.reopen()
    assert not engine.store.logs


def test_commit_ahead_of_the_payload_flushes_nothing(sim):
    """The other replicas have committed entries that are not durable here.

    Segments hold none of them yet.
    """
    append(sim, 8)
    commit(sim)
    block, payload = jobs(sim)
    flushed = sim.log.flushed_index
    sim.store.checkpoint()
    sim.pump()
    assert sim.log.flushed_index == flushed
    for job, done in (payload, block):
        done(job())
    sim.pump()
    sim.checkpoint()
    assert sim.log.flushed_index == sim.log.last_index


def committed_ahead(sim):
    """Return (jobs of a block whose entries are committed, bytes of these).

    Nothing else is unflushed.
    """
    settle_all(sim)
    append(sim, 8)
    commit(sim)
    return jobs(sim), sim.store.unflushed_bytes


def test_what_is_committed_ahead_of_its_payload_is_soon_flushed(sim):
    """Committed entries, and no more, count as flushable while their payload is under way."""
    both, size = committed_ahead(sim)
    assert sim.store.flushable_bytes == size > 0
    for job, done in both:
        done(job())
    assert sim.store.flushable_bytes == size
    settle_all(sim)
    assert sim.store.flushable_bytes == 0


def test_what_is_committed_ahead_of_a_cut_is_soon_flushed(sim):
    """The record of the truncation is being written: a flush follows it."""
    append(sim, 8)
    sim.submit()
    first = sim.log.last_index - 3
    append(sim, 8, first=first, term=2)
    commit(sim)
    assert sim.log.placement.rewind_token
    assert sim.store.flushable_bytes == sim.store.unflushed_bytes > 0


def test_payload_of_what_was_committed_has_a_checkpoint_follow(sim):
    """Nothing could be flushed before, and no append follows."""
    both, _ = committed_ahead(sim)
    sim.workers.advance(60_000)
    assert sim.log.flushed_index < sim.log.commit_index
    for job, done in both:
        done(job())
    sim.workers.advance(60_000)
    assert sim.log.flushed_index == sim.log.commit_index


def test_trimmed_ahead_of_a_payload_under_way(sim):
    """The durable entries here are below the log's first entry: the flush waits for the payload."""
    log = sim.log
    append(sim, 2)
    sim.submit()
    append(sim, 4)
    commit(sim)
    sim.store.trim_log(log, first_index=log.last_index - 1)
    block, payload = jobs(sim)
    flushed = log.flushed_index
    sim.store.checkpoint()
    sim.pump()
    assert log.flushed_index == flushed
    for job, done in (payload, block):
        done(job())
    sim.pump()
    settle_all(sim)
    assert log.flushed_index == log.last_index
    held = sim.all_entries(log)
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held


def test_several_segments_in_one_append(engine):
    """The payload begins the next segment; entries in both are found, read and flushed."""
    append(engine, 7, size=500)
    engine.submit()
    assert engine.log.placement.begun
    held = engine.all_entries(engine.log)
    engine.reopen()
    assert engine.all_entries(engine.log) == held
    commit(engine)
    engine.submit()
    engine.checkpoint()
    engine.submit()
    assert engine.log.segments[-1].first_index > 8
    engine.reopen()
    assert engine.all_entries(engine.log) == held


def begun(sim):
    """Begin a segment with a payload; return the index of its first entry, which is uncommitted."""
    append(sim, 7, size=500)
    sim.submit()
    first = sim.log.placement.begun[-1].first_index
    assert first <= sim.log.last_index
    return first


def test_segment_of_which_all_was_cut_off_is_not_the_log_s(sim):
    """A smaller entry goes to the previous segment.

    The file begun with the replaced entry is gone, and no start takes it for a segment of the log.
    """
    first = begun(sim)
    append(sim, 1, first=first, term=2, size=2)
    settle_all(sim)
    held = sim.all_entries(sim.log)
    for _ in range(2):
        segments = [(info.number, info.first_index) for info in sim.log.segments]
        assert sim.log.files.idx(first).segment == segments[-1][0]
        assert all(index != first for _, index in segments)
        sim.power_cut()
        sim.start()
        assert not sim.log.lost
        assert sim.all_entries(sim.log) == held
        assert [(info.number, info.first_index) for info in sim.log.segments] == segments


def test_place_behind_a_cut_where_a_segment_began(sim):
    """Entries after a truncation at a segment's first entry lie where its Idx says."""
    first = begun(sim)
    append(sim, 1, first=first, term=2, size=2)  # the truncation
    append(sim, 1, term=2, size=2)
    sim.store.append(sim.log, entries_from(sim.log, first, 1, 3, 2))
    sim.store.set_hard_state(sim.log, HardState(3, 0, first - 2))
    sim.submit()
    sim.checkpoint()
    sim.submit()
    for _ in range(3):
        append(sim, 4, term=3)
        sim.store.set_hard_state(sim.log, HardState(3, 0, sim.log.commit_index + 1))
        sim.submit()
        sim.checkpoint()
        sim.submit()
    settle_all(sim)
    held = sim.all_entries(sim.log)
    sim.power_cut()
    sim.start()
    log = sim.log
    assert not log.lost
    assert sim.all_entries(log) == held
    assert [
        entry.index
        for entry in sim.cold(sim.store.entries_cold, log, 1, log.last_index + 1, 1 << 20)
    ] == list(range(1, log.last_index + 1))


def stood_for(sim):
    """Return (the log, another with an entry) whose newest journal file replaces others.

    It repeats their records, and nothing proves it. The entries before the payload are in a file
    that is kept, and the block that described their place is in one that is not.
    """
    full, other = sim.new_log(), sim.new_log()
    log = sim.log
    sim.store.append(full, entries_from(full, 1, 40, 1, 1400))
    sim.submit()
    for _ in range(5):
        append(sim, 1)
        sim.submit()
    gap = log.last_index
    kept = log.runs[-1].sequence
    vote = partial(sim.store.set_hard_state, full)
    while sim.store._journal.current_sequence == kept:
        vote(HardState(full.hard_state.term + 1, 0, 0))
        sim.submit()
    append(sim, 2)
    sim.store.append(other, entries_from(other, 1, 1, 1, 20))
    sim.submit()
    assert log.placement.begun
    assert log.placement.begun[0].first_index <= gap
    assert [run.sequence > kept for run in log.runs] == [False, True]
    sim.disk.room = 0
    sim.store._allocation.room = Room.FULL
    while not sim.store._journal.chain.replaced:
        vote(HardState(full.hard_state.term + 1, 0, 0))
        sim.submit()
    assert kept not in sim.store._journal.chain.replaced
    return log, other


def test_file_that_stands_for_others_says_where_a_segment_began(sim):
    """A start finds all of it, wherever the blocks that described it first went."""
    log, _ = stood_for(sim)
    proved(sim)
    assert not sim.store._journal.chain.replaced
    held = sim.all_entries(log)
    sim.power_cut()
    sim.disk.room = None
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.log) == held


def test_damaged_payload_costs_nothing_that_a_file_stands_for(sim):
    """The new file's first block counts as torn.

    The replaced files count instead, and prove that the payload had been durable: only its log is
    lost.
    """
    log, other = stood_for(sim)
    held = sim.all_entries(other)
    sim.disk.room = None
    spoil(sim, log.last_index)
    sim.start()
    assert sim.log.lost
    assert not sim.store.logs[other.log_id].lost
    assert sim.all_entries(sim.store.logs[other.log_id]) == held


def damaged_first_frame(sim, sequence=0):
    """Damage the first frame of that journal file, or of the newest that replaces others.

    Return the frame's log.
    """
    files = [found for found in _files(sim.disk) if found[1].replaced]
    inode, header = [found for found in files if sequence in (0, found[1].sequence)][-1]
    block = _blocks(inode, header)[0]
    at = header.bytes + BLOCK_HEADER_BYTES + len(block.table)
    inode.durable[at + 10] ^= 1
    inode.data[at + 10] ^= 1
    return next(n for n, kind, *_ in _records(block) if kind == ENTRY)


@pytest.mark.parametrize("proof", ["block", "file"])
@pytest.mark.parametrize("damage", ["frame", "payload"])
def test_damage_where_others_are_stood_for_costs_one_log(sim, proof, damage):
    """The replaced files are gone, so the file counts.

    A later block, or the file that continues it, says that all of its first block had been durable.
    """
    log, other = stood_for(sim)
    full = sim.store.logs[2]
    sim.disk.room = None
    if proof == "file":
        sim.store.append(full, entries_from(full, full.last_index + 1, 40, 1, 1400))
        sim.submit()
        assert len(_blocks(*_files(sim.disk)[-2])) == 1
    proved(sim)
    assert not sim.store._journal.chain.replaced
    if damage == "frame":
        hit = damaged_first_frame(sim)
        assert hit == other.log_id
        sim.crash()
    else:
        hit = log.log_id
        spoil(sim, log.last_index)
    held = {n: sim.all_entries(one) for n, one in sim.store.logs.items() if n != hit}
    sim.start()
    assert [n for n, one in sim.store.logs.items() if one.lost] == [hit]
    assert {n: sim.all_entries(sim.store.logs[n]) for n in held} == held


def test_file_that_stands_for_others_needs_no_payload_that_the_next_file_cuts_off(sim):
    """Other entries have its place then, and nothing is damaged."""
    log, other = stood_for(sim)
    full = sim.store.logs[2]
    sim.disk.room = None
    cut = log.last_index
    append(sim, 1, first=cut, term=2, size=20)
    sim.store.append(full, entries_from(full, full.last_index + 1, 40, 1, 1400))
    sim.submit()
    assert len(_blocks(*_files(sim.disk)[-2])) == 1
    for _ in range(2):
        append(sim, 1, term=2)
        settle_all(sim)
    assert log.flushed_index > cut
    held = {n: sim.all_entries(one) for n, one in sim.store.logs.items()}
    assert other.log_id in held
    sim.power_cut()
    sim.start()
    assert not any(one.lost for one in sim.store.logs.values())
    assert {n: sim.all_entries(one) for n, one in sim.store.logs.items()} == held


def rolled():
    """Return (engine, other log, its entries up to the block, last placed index).

    A placed append and a small one of the other log are in a journal file's last block. The job
    that begins the next file is done.
    """
    sim = settled(SimHarness(PLACING))
    other = sim.new_log()
    for _ in range(100):
        settle_all(sim)
        append(sim)
        sim.store.append(other, entries_from(other, other.last_index + 1, 2, 1, 100))
        assert sim.store._queue.batch.payloads
        sim.submit()
        last, held = sim.log.last_index, sim.all_entries(other)
        newest = _files(sim.disk)[-1][1].sequence
        append(sim, 1, size=20)
        sim.submit()
        if _files(sim.disk)[-1][1].sequence > newest:
            return sim, other, held, last
    raise AssertionError("no file was begun there")


@pytest.mark.parametrize("damage", ["none", "payload", "frame"])
def test_header_whose_first_block_never_arrived_proves_what_is_before(damage):
    """A power cut tore the write of both.

    Earlier blocks had been durable, so damage loses their log only.
    """
    sim, other, held, last = rolled()
    log = sim.log
    (inode, before), (torn, header) = _files(sim.disk)[-2:]
    if damage == "payload":
        spoil(sim, last)
    sim.crash()
    cut_behind_header(torn, header)
    if damage == "frame":
        block = _blocks(inode, before)[-1]
        at = block.position + BLOCK_HEADER_BYTES + len(block.table)
        for data in (inode.data, inode.durable):
            data[at + 10] ^= 1
    sim.start()
    hit = {"payload": {log.log_id}, "frame": {other.log_id}}.get(damage, set())
    for _ in range(2):
        assert {n for n, one in sim.store.logs.items() if one.lost} == hit
        if other.log_id not in hit:
            assert sim.all_entries(sim.store.logs[other.log_id]) == held
        if log.log_id not in hit:
            assert sim.log.last_index == last
            append(sim, 1, size=20)
            sim.submit()
            last += 1
        sim.power_cut()
        sim.start()


def cut_behind_header(torn, header):
    """Let only the header of the write of header and first block arrive."""
    for data in (torn.data, torn.durable):
        data[header.bytes :] = bytes(len(data) - header.bytes)


def test_header_that_alone_proves_a_damaged_block_stays_until_the_next_file_is_there(monkeypatch):
    """The reserve is used up: a start that dies leaves the proof to the next one."""
    sim, other, held, last = rolled()
    torn, header = _files(sim.disk)[-1]
    spoil(sim, last)
    cut_behind_header(torn, header)
    sim.store._allocation.files.reserve.free(8)
    make_room = JournalFiles.make_room

    def dies(files, *what):
        make_room(files, *what)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(JournalFiles, "make_room", dies)
        with pytest.raises(KeyboardInterrupt):
            sim.start()
    sim.crash()
    sim.start()
    assert [n for n, one in sim.store.logs.items() if one.lost] == [1]
    assert sim.all_entries(sim.store.logs[other.log_id]) == held


def test_header_proves_a_file_that_stands_for_others_though_it_was_to_stand_for_that():
    sim = settled(SimHarness(PLACING))
    _, other = stood_for(sim)
    full, current = sim.store.logs[2], sim.store._journal._current
    first = current.sequence
    current.capacity = current.position
    sim.store.set_hard_state(full, HardState(full.hard_state.term + 1, 0, 0))
    sim.submit()
    torn, header = _files(sim.disk)[-1]
    assert header.replaced
    assert header.previous < first < header.sequence
    held = {n: sim.all_entries(one) for n, one in sim.store.logs.items() if n != other.log_id}
    sim.crash()
    cut_behind_header(torn, header)
    assert damaged_first_frame(sim, first) == other.log_id
    sim.disk.room = None
    sim.start()
    assert [n for n, one in sim.store.logs.items() if one.lost] == [other.log_id]
    assert {n: sim.all_entries(sim.store.logs[n]) for n in held} == held


def damage_one(engine):
    """Damage a placed entry's payload; return its index and that of the last entry."""
    append(engine, 8)
    commit(engine)
    engine.submit()
    proved(engine)
    last = engine.log.last_index
    spoil(engine, last - 2)
    return last - 2, last


def test_verify_reads_what_is_placed(tmp_path):
    """`vdl log verify` compares committed entries of both kinds."""
    paths = []
    for name in ("a", "b"):
        engine = settled(DiskHarness(PLACING, directory=str(tmp_path / name)))
        append(engine, 8)
        commit(engine)
        engine.submit()
        proved(engine)
        assert written(engine)
        last = engine.log.last_index
        engine.crash()
        paths.append(Path(engine.directory))
    fs = engine.store._fs
    with Directory(fs, str(paths[0]), 16) as one, Directory(fs, str(paths[1]), 16) as other:
        reports, differences = verify([one, other])
    assert [(report.entries_read, report.problems) for report in reports] == [(last, [])] * 2
    assert differences == []


def test_tools_tell_of_a_damaged_payload_and_go_on(tmp_path):
    """One entry is damaged; those behind it are read and compared as usual."""
    engine = settled(DiskHarness(PLACING, directory=str(tmp_path / "data")))
    damaged, last = damage_one(engine)
    with Directory(engine.store._fs, engine.directory, 16) as directory:
        ((report,), _) = verify([directory])
    assert report.entries_read == last - 1
    assert [f"[{damaged}, {damaged + 1}) are damaged" in text for text in report.problems] == [True]


def test_room_is_given_up_by_a_log_that_needs_none(engine):
    """Files stay open only as long as entries are placed now and then."""
    for _ in range(2):
        append(engine, 1, size=20)
        commit(engine)
        engine.submit()
        for _ in range(100):
            append(engine, 1, size=200)
        commit(engine)
        engine.submit()
        engine.checkpoint()
    assert not engine.log.placement.rooms


def test_no_more_logs_have_room_than_may(sim, monkeypatch):
    """However many need it in one checkpoint: each holds files open."""
    monkeypatch.setattr(rooms, "ROOMS_MAX", 3)
    logs = [sim.log, *(sim.new_log() for _ in range(6))]
    for _ in range(2):
        for log in logs:
            sim.store.append(log, entries_from(log, log.last_index + 1, 4, 1, 300))
            sim.store.set_hard_state(log, HardState(1, 0, log.last_index))
        sim.submit()
        sim.checkpoint()
        sim.submit()
    assert sum(bool(log.placement.rooms) for log in logs) == 3


def test_room_is_made_beside_a_payload_where_the_system_writes_zeros_for_it(tmp_path, monkeypatch):
    """Space is preallocated without overwriting a payload.

    Where a file system cannot allocate, the C library writes a zero into each block that holds only
    zeros.
    """
    monkeypatch.setattr(rooms, "ROOM_BYTES_MIN", 600)
    options = replace(PLACING, segment_bytes=64 << 10)
    engine = settled(DiskHarness(options, directory=str(tmp_path / "data")))
    append(engine, 2, size=250)
    commit(engine)
    engine.submit()
    append(engine, 3, size=300)
    block, payload = jobs(engine)
    block[1](block[0]())
    calls = []

    def emulated(fd, offset, length):
        calls.append(offset)
        ends = range(offset + (length - 1) % 512, offset + length, 512)
        zeros = [at for at in ends if os.pread(fd, 1, at) in (b"", b"\0")]
        if engine.workers.payload_jobs:
            engine.workers.run_one(engine.workers.payload_jobs)
        for at in zeros:
            os.pwrite(fd, b"\0", at)

    monkeypatch.setattr(os, "posix_fallocate", emulated)
    engine.workers.payload_jobs.append(payload)
    engine.store.checkpoint()
    engine.workers.run_one(engine.workers.pool_jobs)
    engine.pump()
    assert calls
    held = engine.all_entries(engine.log)
    monkeypatch.undo()
    engine.reopen()
    assert not engine.log.lost
    assert engine.all_entries(engine.log) == held
    engine.crash()


def has_places(engine):
    identity = read_identity(engine.store._fs, engine.directory)
    assert identity is not None
    return identity.has_places


def test_directory_says_that_appends_may_be_placed(tmp_path):
    """The directory records for good that appends may be placed, before the first one.

    A version without this feature must refuse it.
    """
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    engine.start()
    engine.new_log()
    engine.reopen()
    assert not has_places(engine)
    engine.crash()
    for options in (PLACING, SMALL):
        engine.options = options
        engine.start()
        assert has_places(engine)
        engine.new_log()
        assert has_places(engine)
        engine.crash()


def test_nothing_is_placed_where_the_directory_could_not_say_so(tmp_path, monkeypatch):
    """There was no space to write the identity.

    The store opens, and the journal holds everything.
    """
    engine = DiskHarness(SMALL, directory=str(tmp_path / "data"))
    engine.start()
    engine.new_log()
    engine.crash()

    def refuse(*_):
        raise OSError(errno.ENOSPC, "identity")

    monkeypatch.setattr(start, "write_identity", refuse)
    engine.options = PLACING
    engine.start()
    append(engine, 8)
    settle_all(engine)
    append(engine, 8)
    engine.submit()
    assert written(engine) == 0
    assert not has_places(engine)
    monkeypatch.undo()
    engine.reopen()
    assert has_places(engine)
    engine.crash()


def test_blocks_tell_of_placed_entries_by_records_alone(sim):
    """No frame is in the block: PLACE, then DETAIL and PLACED for each entry."""
    append(sim, 8)
    sim.submit()
    disk = SimFileSystem(sim.disk).disk
    inode, header = _files(disk)[-1]
    table = _blocks(inode, header)[-1].table
    kinds = [table[at + 8] for at in range(0, len(table), RECORD_BYTES)]
    assert kinds.count(PLACED) == 8


ROOMY = replace(
    PLACING,
    segment_bytes=256 << 10,
    cache_bytes_max=1 << 20,
    checkpoint_bytes=1 << 30,
    checkpoint_entries=10**6,
    index_segment_entries=64,
)
"""Options with small journal files: a batch may be larger."""


def staged_across_files(sim):
    """Stage a batch that no journal file takes whole.

    The first file ends among the records of placed entries. Return the batch's other log.
    """
    other = sim.new_log()
    sim.store.append(other, entries_from(other, 1, 30, 1, 1400))
    append(sim, 300, size=20)
    assert sim.store._queue.batch.payloads
    sim.submit()
    return other


def survives_without_its_first_file(sim):
    """Flush what is committed and release files that nothing needs.

    Then check that a start finds it all.
    """
    sim.submit()
    proved(sim)
    held = sim.all_entries(sim.log)
    sim.checkpoint()
    sim.submit()
    proved(sim)
    sim.workers.advance(30_000)
    sim.crash()
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.log) == held


def test_cut_batch_keeps_placed_entries_with_the_record_of_their_place(monkeypatch):
    """The first file is removed, as all in it is flushed; the second one must do without it."""
    monkeypatch.setattr(scheduler, "FLUSH_BYTES_MIN", 1)
    sim = settled(SimHarness(ROOMY))
    other = staged_across_files(sim)
    for log in (sim.log, other):
        sim.store.set_hard_state(log, HardState(1, 0, log.last_index))
    survives_without_its_first_file(sim)


def test_run_of_placed_entries_that_no_file_takes_whole_outlives_its_beginning(monkeypatch):
    """Nothing records where the entries behind the split were placed.

    That they are flushed is enough.
    """
    monkeypatch.setattr(scheduler, "FLUSH_BYTES_MIN", 1)
    sim = settled(SimHarness(ROOMY))
    append(sim, 1_200, size=20)
    sim.submit()
    assert len(sim.store._journal.chain.paths) > 1
    commit(sim)
    survives_without_its_first_file(sim)


def test_cut_batch_whose_second_part_is_not_committed_outlives_the_first_file(monkeypatch):
    """A batch is split, its second part uncommitted.

    After a start it outlives the first file, though entries behind the split are only in the
    journal.
    """
    monkeypatch.setattr(scheduler, "FLUSH_BYTES_MIN", 1)
    sim = settled(SimHarness(ROOMY))
    other = staged_across_files(sim)
    proved(sim)
    sim.store.set_hard_state(other, HardState(1, 0, other.last_index))
    sim.submit()
    sim.checkpoint()
    sim.submit()
    proved(sim)
    sim.crash()
    sim.start()
    log, held = sim.log, sim.all_entries(sim.log)
    sim.store.set_hard_state(log, HardState(1, 0, log.runs[0].last))
    sim.submit()
    sim.checkpoint()
    sim.submit()
    proved(sim)
    sim.crash()
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.log) == held


def test_block_that_says_that_its_placed_entries_are_flushed_needs_no_frames():
    """A start needs no frames of repeated entries that are flushed and trimmed.

    They are committed, flushed and trimmed before their block is written. Appends of other logs in
    that block are acknowledged.
    """
    sim = settled(SimHarness(PLACING))
    log, other = sim.log, sim.new_log()
    append(sim, 7, size=500)
    sim.submit()
    behind = log.placement.begun[-1].first_index
    proved(sim)
    log.restage(log.oldest_run(), sim.store._queue.batch, with_tail=True)  # as a checkpoint does
    commit(sim)
    sim.store.checkpoint()
    sim.workers.pump()
    assert log.flushed_index == log.last_index
    sim.store.append(other, entries_from(other, 1, 3, 1, 20))
    sim.store.trim_log(log, first_index=behind)
    sim.submit()
    held = sim.all_entries(other)
    sim.crash()
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.store.logs[other.log_id]) == held


def test_begin_of_a_segment_is_told_again_once_its_file_was_replaced():
    """The segment was begun by truncated entries, in a file that a full disk had replaced.

    The entries before them are in an older file, and lie in that segment.
    """
    sim = settled(SimHarness(PLACING))
    log, other = sim.log, sim.new_log()
    sim.store.append(other, entries_from(other, 1, 40, 1, 1400))
    sim.submit()
    for _ in range(5):
        append(sim, 1)
        sim.submit()
    small, kept = log.last_index, log.runs[-1].sequence

    def vote():
        sim.store.set_hard_state(other, HardState(other.hard_state.term + 1, 0, 0))
        sim.submit()

    while sim.store._journal.current_sequence == kept:
        vote()
    append(sim, 2)
    sim.submit()
    began = log.placement.begun[0].first_index
    assert began <= small
    append(sim, 2, first=small + 1, term=2)
    sim.submit()
    sim.disk.room = 0
    sim.store._allocation.room = Room.FULL
    while not sim.store._journal.chain.replaced:
        vote()
    proved(sim)
    sim.disk.room = None
    sim.workers.advance(5_000)
    assert not sim.store.disk_full
    sim.store.set_hard_state(log, HardState(2, 0, began - 2))
    sim.submit()
    sim.checkpoint()
    sim.submit()
    append(sim, 2, term=2)
    assert sim.store._queue.batch.payloads
    sim.submit()
    proved(sim)
    held = sim.all_entries(log)
    sim.power_cut()
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.log) == held


def test_second_telling_that_was_cut_short_forgets_no_segment():
    """A batch repeats the places of entries; its first part is on disk, the rest is not.

    The segment that the rest would have repeated is still known.
    """
    log = ReplayedLog(1, 1, 0, 0, 0, 0, 0, 0)

    def tell(first, segment, position, count):
        log.apply(PLACE, segment, first, position)
        for index in range(first, first + count):
            log.add_placed(index, 1, 100, 1, 0)

    tell(1, 1, SEGMENT_HEADER_BYTES, 5)
    tell(6, 2, SEGMENT_HEADER_BYTES, 5)
    tell(3, 1, SEGMENT_HEADER_BYTES + 200, 3)
    assert log.begun == {1: 1, 6: 2}
    assert log.is_whole
    tell(3, 1, SEGMENT_HEADER_BYTES + 200, 8)
    assert log.begun == {1: 1}, "all of them lie in the first one"
