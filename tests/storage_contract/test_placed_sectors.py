"""Placed appends on a failing medium, or beside files that are removed.

A payload overwrites what cannot be read, and needs nothing of a deleted log.
"""

import errno
from dataclasses import replace

import pytest

from segments.api import EntriesDamaged, HardState
from tests.storage_contract.conftest import PLACING, SimHarness
from tests.storage_contract.test_placed import (
    append,
    commit,
    jobs,
    settle_all,
    settled,
    written,
)
from vdl.sim.disk import SimDisk

PAGE = 4096
ROOMY = replace(PLACING, segment_bytes=64 << 10, cache_bytes_max=1 << 20, checkpoint_bytes=1 << 30)
"""Options with segments of many pages."""


def inode_of(sim, path):
    return sim.store._fs.open(path)._inode


def spoil_page(sim, path, page):
    """Make a page unreadable."""
    inode = inode_of(sim, path)
    assert page * PAGE < len(inode.data)
    sim.disk.bad_pages.add((inode, page))


def segment_of(sim):
    """Return the path of the segment to which the next payload goes."""
    return sim.log.files.segment_path(sim.log.placement.segment)


def survives(sim):
    """Check that everything is there: in this run, after a power cut, and from segments."""
    assert sim.fatal == []
    held = sim.all_entries(sim.log)
    sim.power_cut()
    sim.start()
    assert not sim.log.lost
    assert sim.all_entries(sim.log) == held
    settle_all(sim)
    sim.power_cut()
    sim.start()
    assert sim.all_entries(sim.log) == held
    assert not sim.log.damaged
    return held


def cut_back(options=ROOMY):
    """Return an engine in whose log large appends were truncated and not yet overwritten."""
    sim = settled(SimHarness(options))
    append(sim, 20, size=1000)
    sim.submit()
    assert written(sim)
    append(sim, 1, first=sim.log.flushed_index + 1, term=2, size=20)
    sim.submit()
    commit(sim)
    sim.submit()
    sim.checkpoint()
    sim.submit()
    assert sim.log.placement.rooms
    return sim


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_page_that_a_payload_ends_in_cannot_be_read(pages):
    """The data written there before was truncated. The medium takes whole pages, as ever."""
    sim = cut_back()
    path, position, last = segment_of(sim), sim.log.placement.position, sim.log.last_index
    append(sim, 1, term=2, size=pages * PAGE)
    end = sim.log.placement.position
    assert end // PAGE > position // PAGE
    for page in range(position // PAGE + 1, end // PAGE + 1):
        spoil_page(sim, path, page)
    sim.submit()
    assert not sim.disk.bad_pages
    assert sim.log.placement.durable == last + 1
    survives(sim)


def test_both_pages_that_a_payload_has_a_part_of_cannot_be_read():
    """Data in the first page is damaged as usual; the payload is intact."""
    sim = cut_back()
    path, position, flushed = segment_of(sim), sim.log.placement.position, sim.log.flushed_index
    append(sim, 1, term=2, size=PAGE)
    for page in range(position // PAGE, sim.log.placement.position // PAGE + 1):
        spoil_page(sim, path, page)
    sim.submit()
    assert sim.fatal == []
    assert not sim.disk.bad_pages
    sim.power_cut()
    sim.start()
    log = sim.log
    assert not log.lost
    assert len(list(log.entries(flushed + 1, log.last_index + 1, 1 << 20))) == 1
    with pytest.raises(EntriesDamaged):
        sim.cold(sim.store.entries_cold, log, flushed, flushed + 1, 1 << 20)


def test_payload_of_less_than_a_page_begins_a_segment_that_was_written_before():
    """A payload begins a segment whose first page cannot be read.

    Its header and frames are a part of it.
    """
    sim = settled(SimHarness(replace(PLACING, segment_bytes=2048)))
    append(sim, 4, size=400)
    segment = sim.log.placement.begun[-1].number
    spoil_page(sim, sim.log.files.segment_path(segment), 0)
    sim.submit()
    assert not sim.disk.bad_pages
    survives(sim)


def test_last_page_of_a_file_that_ends_in_it_cannot_be_read():
    """A payload into the unreadable last page of a file is written.

    Preallocated space ends where a segment does, which need not be a page boundary: then the file
    ends with the page, and is cut to length as usual.
    """
    sim = settled(SimHarness(replace(ROOMY, segment_bytes=9000)))
    while sim.log.placement.position < 2 * PAGE:
        append(sim, 3, size=300)
        commit(sim)
        sim.submit()
        sim.checkpoint()
        sim.submit()
    append(sim, 2, size=4200)
    assert 2 * PAGE < sim.log.placement.position <= 9000
    path = segment_of(sim)
    assert sim.log.placement.rooms[sim.log.placement.segment].end % PAGE
    spoil_page(sim, path, 2)
    sim.submit()
    assert not sim.disk.bad_pages
    append(sim, 2, size=4200)
    sim.submit()
    survives(sim)
    for info in sim.log.segments[:-1]:
        assert len(inode_of(sim, sim.log.files.segment_path(info.number)).data) <= 9000


def test_two_payloads_of_one_block_share_a_page_that_cannot_be_read():
    """The first payload ends in it, the second begins there."""
    sim = cut_back()
    path = segment_of(sim)
    append(sim, 1, term=2, size=PAGE)
    shared = sim.log.placement.position // PAGE
    append(sim, 1, term=2, size=PAGE)
    assert len(sim.store._queue.batch.payloads) == 2
    for page in (shared, shared + 1):
        spoil_page(sim, path, page)
    sim.submit()
    assert not sim.disk.bad_pages
    survives(sim)


def test_payload_written_again_by_a_start_ends_in_a_page_that_goes_bad(monkeypatch):
    """The page was read, and becomes unreadable when it is written."""
    sim = cut_back()
    path = segment_of(sim)
    append(sim, 1, term=2, size=2 * PAGE)
    page = sim.log.placement.position // PAGE
    inode = inode_of(sim, path)
    for job, _ in jobs(sim):
        job()
    sim.crash()
    real_write, seen = SimDisk.write, []

    def write(disk, written_to, buffers, position, *, durable):
        if written_to is inode and not seen:
            seen.append(position)
            disk.bad_pages.add((inode, page))
        return real_write(disk, written_to, buffers, position, durable=durable)

    monkeypatch.setattr(SimDisk, "write", write)
    sim.start()
    assert seen
    assert not sim.disk.bad_pages
    survives(sim)


def test_written_bytes_are_those_of_the_frames():
    """Bytes written twice because of a page count once."""
    sim = cut_back()
    before = written(sim)
    path = segment_of(sim)
    append(sim, 1, term=2, size=2 * PAGE)
    spoil_page(sim, path, sim.log.placement.position // PAGE)
    sim.submit()
    assert written(sim) - before == 2 * PAGE + 48


def spoiled_head(sim):
    """Return (block's job, payload's job) of a payload whose first page cannot be read."""
    path, position = segment_of(sim), sim.log.placement.position
    assert position % PAGE
    append(sim, 8)
    made = jobs(sim)
    spoil_page(sim, path, position // PAGE)
    return made


def ends(sim, block, payload):
    for job, done in (payload, block):
        try:
            done(job())
        except Exception as error:  # noqa: BLE001 - as a worker hands it on
            done(error)


def test_payload_of_a_deleted_log_needs_no_idx():
    """The files were removed before it was written: it goes to an unlinked file, without effect."""
    sim = settled(SimHarness(PLACING))
    other = sim.new_log()
    log_id = sim.log.log_id
    block, payload = spoiled_head(sim)
    sim.store._fs.remove_tree(sim.log.files.directory)
    sim.store.delete_log(log_id)
    ends(sim, block, payload)
    sim.pump()
    assert sim.fatal == []
    sim.store.set_hard_state(other, HardState(3, 1, 0))
    sim.submit()
    sim.reopen()
    assert list(sim.store.logs) == [other.log_id]


def test_payload_is_written_where_the_index_is_missing():
    """Idx are rebuilt when they are needed: a payload needs none."""
    sim = settled(SimHarness(PLACING))
    block, payload = spoiled_head(sim)
    sim.store._fs.unlink(sim.log.files.index_path(0))
    ends(sim, block, payload)
    sim.pump()
    assert sim.fatal == []
    assert sim.log.placement.durable == sim.log.last_index
    sim.crash()


def test_payload_that_finds_no_descriptor_for_the_index_changes_nothing(monkeypatch):
    """A payload without a descriptor for the index waits, and changes nothing.

    It would replace unreadable frames with zeros. A power cut would take the Idx, without which the
    frames cannot be walked.
    """
    sim = settled(SimHarness(PLACING))
    block, payload = spoiled_head(sim)
    bad = set(sim.disk.bad_pages)
    durable, flushed = sim.store.durable_token, sim.log.flushed_index
    fs = type(sim.store._fs)
    real_open = fs.open

    def refuse(self, path, *, create=False):
        if path.endswith(".index"):
            raise OSError(errno.EMFILE, path)
        return real_open(self, path, create=create)

    monkeypatch.setattr(fs, "open", refuse)
    ends(sim, block, payload)
    monkeypatch.undo()
    assert sim.fatal == []
    assert sim.store.durable_token == durable
    assert sim.disk.bad_pages == bad
    sim.crash()
    sim.start()
    assert not sim.log.lost
    assert sim.log.last_index == flushed


def test_failed_sync_of_the_index_is_the_end(monkeypatch):
    """A failed sync of the index is fatal, as any other."""
    sim = settled(SimHarness(PLACING))
    block, payload = spoiled_head(sim)
    durable = sim.store.durable_token
    index = inode_of(sim, sim.log.files.index_path(0))
    real_sync = SimDisk.sync

    def sync(disk, inode):
        if inode is index:
            raise OSError(errno.EIO, "sync")
        real_sync(disk, inode)

    monkeypatch.setattr(SimDisk, "sync", sync)
    ends(sim, block, payload)
    assert len(sim.fatal) == 1
    assert sim.store.durable_token == durable
    sim.crash()


def test_header_that_cannot_be_read_is_left_alone_by_a_payload_elsewhere():
    """A payload elsewhere does not write an unreadable header.

    That would replace frames beside it with zeros, which may be unreadable only temporarily.
    """
    sim = cut_back()
    while sim.log.placement.position < PAGE:
        append(sim, 3, term=2, size=600)
        settle_all(sim)
    path = segment_of(sim)
    spoil_page(sim, path, 0)
    bad = next(iter(sim.disk.bad_pages))
    spoil_page(sim, path, sim.log.placement.position // PAGE)
    append(sim, 8, term=2)
    sim.submit()
    assert sim.fatal == []
    assert sim.disk.bad_pages == {bad}


def test_first_page_of_a_file_that_was_made_as_room_cannot_be_read():
    """Small appends go to it: the flush begins the segment all the same."""
    sim = settled(SimHarness(ROOMY))
    segment = sim.log.placement.segment + 1
    assert segment in sim.log.placement.rooms
    spoil_page(sim, sim.log.files.segment_path(segment), 0)
    for _ in range(250):
        append(sim, 1)
    settle_all(sim)
    assert sim.fatal == []
    assert sim.log.segments[-1].number == segment
    survives(sim)
