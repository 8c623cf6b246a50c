"""Faults of a start: a missing part, a damaged header page, a second opener."""

from random import Random

import pytest

from segments.directory.identity import decode
from segments.format.block import PAGE_BYTES
from vdl.clock import MS
from vdl.sim.damage import spoil_header
from vdl.sim.disk import Directory, Inode
from vdl.sim.filesystem import SimFileSystem
from vdl.sim.machine import Condition, Machine
from vdl.sim.options import Options
from vdl.sim.world import World


@pytest.fixture
def machine() -> Machine:
    """A machine whose server has run for a while and still runs."""
    world = World(7, Options(servers=1))
    (machine,) = world.machines
    machine.start()
    world.run_for(3_000 * MS)
    return machine


def data(machine: Machine) -> Directory:
    found = machine.disk.root.entries["data"]
    assert isinstance(found, Directory)
    return found


@pytest.mark.parametrize("part", ["identity", "journal", "logs", "meta"])
def test_machine_without_a_part_of_its_directory_does_not_start(
    machine: Machine, part: str
) -> None:
    """It continues with all its data once the part is there again."""
    machine.power_cut()
    before = data(machine).entries[part]
    assert machine.hide(part)
    assert part not in data(machine).entries
    assert not machine.hide(part)
    machine.start()
    assert machine.life is None
    assert machine.condition is Condition.DOWN
    machine.put_back()
    assert data(machine).entries[part] is before
    machine.start()
    assert machine.life is not None
    assert not any(log.lost for log in machine.life.store.logs.values())
    assert machine.warnings == []


def test_machine_with_the_journal_of_another_does_not_start() -> None:
    """It changes nothing either; with its own journal it continues."""
    world = World(7, Options(servers=2))
    machine, other = world.machines
    for one in world.machines:
        one.start()
    world.run_for(3_000 * MS)
    machine.power_cut()
    journal = data(machine).entries["journal"]
    assert machine.hide("journal")
    machine.try_journal_of(other)
    assert "journal" not in data(machine).entries
    assert machine.warnings == []
    machine.put_back()
    assert data(machine).entries["journal"] is journal
    machine.start()
    assert machine.life is not None
    assert not any(log.lost for log in machine.life.store.logs.values())


def test_second_process_is_refused_and_the_first_goes_on(machine: Machine) -> None:
    """Its owner runs and holds the lock."""
    machine.open_again()
    assert machine.warnings == []
    machine.disk.locks.clear()  # as if the owner had released it
    machine.open_again()
    assert len(machine.warnings) == 1


def test_lock_let_go_with_jobs_under_way_is_told(machine: Machine) -> None:
    """Running jobs would write into another process's files."""
    life = machine.life
    assert life is not None
    life.workers.pool(lambda: None, lambda _: None)
    life.store._lock.release()
    assert machine.warnings == ["let go of its directory with 1 jobs under way"]


def test_spoiled_page_is_one_of_a_header(machine: Machine) -> None:
    """It belongs to the identity or to a journal file; a bit flips, or it cannot be read."""
    machine.power_cut()
    seen = set()
    for seed in range(60):
        disk = machine.disk
        disk.bad_pages.clear()
        identity = data(machine).entries["identity"]
        assert isinstance(identity, Inode)
        before = bytes(identity.data)
        what = spoil_header(disk, Random(seed))
        seen.add((what.startswith("a bit"), "identity" in what))
        if bytes(identity.data) != before:
            assert decode(bytes(identity.data)).is_half_damaged
            identity.data[:] = before
        for inode, page in disk.bad_pages:
            assert page * PAGE_BYTES < len(inode.data)
    assert len(seen) == 4


def test_bad_page_cannot_be_read_until_it_is_written_as_a_whole(machine: Machine) -> None:
    """As in Linux, a part of a bad page cannot be written either."""
    machine.power_cut()
    fs = SimFileSystem(machine.disk)
    file = fs.open("data/spare", create=True)
    file.pwrite([bytes(3 * PAGE_BYTES)], 0)
    machine.disk.bad_pages.add((file._inode, 1))
    assert len(file.pread(PAGE_BYTES, 0)) == PAGE_BYTES
    for act in (
        lambda: file.pread(10, PAGE_BYTES + 5),
        lambda: file.pwrite([b"part"], 2 * PAGE_BYTES - 2),
    ):
        with pytest.raises(OSError, match="bad sector"):
            act()
    file.pwrite([bytes(PAGE_BYTES)], PAGE_BYTES)
    assert file.pread(10, PAGE_BYTES + 5) == bytes(10)
