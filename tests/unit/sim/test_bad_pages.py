"""Unreadable pages of segments, of their indexes and of the journal."""

import random
from dataclasses import replace
from random import Random

import pytest

from segments.api import SegmentLimits
from segments.log.segment import LogFiles
from tests.storage_contract.test_scrap import OPTIONS, Engine
from vdl.clock import MS
from vdl.sim.damage import is_hole, spoil_block, spoil_segment
from vdl.sim.disk import PAGE_BYTES, Directory, DiskProfile, Inode, SimDisk
from vdl.sim.filesystem import SimFileSystem
from vdl.sim.options import Options
from vdl.sim.world import World

SPREAD = replace(OPTIONS, index_segment_entries=256)
"""Segments and indexes of a few pages each."""
LAST = 400
"""Last of the entries in segments.

The Idx of those in the newest segment are not durable: its flush reaches neither a mebibyte nor
1,024 entries, and creates no index file.
"""


def flushed() -> tuple[SimDisk, LogFiles]:
    """Return a log whose entries 1 to `LAST` are all in segments."""
    disk = SimDisk(random.Random(1), DiskProfile())
    engine = Engine(SimFileSystem(disk), "data", SPREAD)
    while engine.log.last_index < LAST:
        engine.put(50)
        engine.flush(SegmentLimits(16 << 10))
    return disk, engine.log.files


def test_spoiled_page_is_that_of_the_entries_that_are_named() -> None:
    """Exactly the named entries are damaged; a page of an index damages none."""
    disk, files = flushed()
    seen = set()
    for seed in range(60):
        disk.bad_pages.clear()
        spoiled = spoil_segment(disk, files, 1, LAST + 1, Random(seed))
        assert spoiled is not None
        assert len(disk.bad_pages) == 1
        seen.add(".index " in spoiled.what)
        if ".index " in spoiled.what:
            assert spoiled.told
            assert not spoiled.entries
        else:
            assert [n for n in range(1, LAST + 1) if is_hole(files, n)] == spoiled.entries
            assert spoiled.entries
    assert seen == {True, False}


def sync_index(files: LogFiles) -> None:
    """Make the whole index of entries 1 to `LAST` durable."""
    files.open_index(0, 1).sync()
    files.open_index(1, LAST).sync()


def told(disk: SimDisk, files: LogFiles, *, of_index: bool) -> set[bool]:
    """Return the `told` values of bad pages, in the index or in a segment, one at a time."""
    before, seen = set(disk.bad_pages), set()
    for seed in range(60):
        disk.bad_pages = set(before)
        spoiled = spoil_segment(disk, files, 1, LAST + 1, Random(seed))
        if spoiled is not None and (not spoiled.entries) is of_index:
            seen.add(spoiled.told)
    disk.bad_pages = before
    return seen


def test_page_whose_entries_no_durable_idx_tells_may_cost_a_replica() -> None:
    """A power cut loses the newest Idx, and the frames to rebuild them from are unreadable."""
    disk, files = flushed()
    assert told(disk, files, of_index=False) == {False}
    assert told(disk, files, of_index=True) == {True}
    sync_index(files)
    assert told(disk, files, of_index=False) == {True}


def test_index_page_beside_a_damaged_entry_may_cost_a_replica() -> None:
    """An index is rebuilt from frames up to the damaged one, even a trimmed and overwritten one.

    Nor may a page with entries go bad while one of the index is unreadable.
    """
    disk, files = flushed()
    sync_index(files)
    segment = disk.root.entries["data"]
    for name in files.segment_path(1).split("/")[1:]:
        assert isinstance(segment, Directory)
        segment = segment.entries[name]
    assert isinstance(segment, Inode)
    before = bytes(segment.data)
    segment.data[64:80] = bytes(16)
    assert told(disk, files, of_index=True) == {False}
    assert told(disk, files, of_index=False) == {True}
    segment.data[:] = before
    seed = 0
    while not disk.bad_pages:
        spoiled = spoil_segment(disk, files, 1, LAST + 1, Random(seed))
        if spoiled is not None and spoiled.entries:
            disk.bad_pages.clear()
        seed += 1
    assert told(disk, files, of_index=True) == {True}
    assert told(disk, files, of_index=False) == {False}


def test_bad_block_is_met_at_the_start() -> None:
    """The bad block is before the durable mark: the replay cannot take it for a torn end."""
    world = World(13, Options(servers=1))
    (machine,) = world.machines
    machine.start()
    world.run_for(3_000 * MS)
    machine.power_cut()
    assert spoil_block(machine.disk, Random(3)) > 0
    ((inode, page),) = machine.disk.bad_pages
    with pytest.raises(OSError, match="bad sector"):
        machine.disk.read(inode, 1, page * PAGE_BYTES)
    machine.start()
    assert machine.life is not None
    assert machine.life.store.stats()["recovered_damaged_blocks"] > 0


def test_page_that_was_cut_off_is_another_one_when_the_file_grows() -> None:
    """A truncated page is released: after the file grows again it is readable."""
    disk = SimDisk(random.Random(1), DiskProfile())
    file = SimFileSystem(disk).open("spare", create=True)
    file.pwrite([bytes(3 * PAGE_BYTES)], 0)
    disk.bad_pages |= {(file._inode, 1), (file._inode, 2)}
    file.truncate(2 * PAGE_BYTES)
    assert disk.bad_pages == {(file._inode, 1)}
    file.truncate(3 * PAGE_BYTES)
    assert file.pread(PAGE_BYTES, 2 * PAGE_BYTES) == bytes(PAGE_BYTES)
