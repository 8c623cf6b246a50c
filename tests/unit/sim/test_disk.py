"""The simulated disk: data that a power cut may keep, must keep, and must lose."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.disk import SECTOR_BYTES, DiskProfile, SimDisk
from vdl.sim.filesystem import SimFile, SimFileSystem
from vdl.sim.workers import SimWorkers

SEEDS = range(60)


class _Rolls(Random):
    """Random source that draws the given whole numbers."""

    def __init__(self, rolls: list[int]) -> None:
        super().__init__(1)
        self._rolls = rolls

    def randint(self, a: int, b: int) -> int:
        roll = self._rolls.pop(0)
        assert a <= roll <= b
        return roll


def a_disk(seed: int) -> tuple[SimDisk, SimFileSystem]:
    disk = SimDisk(Random(seed), DiskProfile())
    return disk, SimFileSystem(disk)


def test_synced_bytes_under_a_synced_name_survive_every_power_cut() -> None:
    """Data synced by fdatasync and a directory sync survives, whatever the seed."""
    for seed in SEEDS:
        disk, fs = a_disk(seed)
        fs.make_directory("d/e")
        file = fs.open("d/e/f", create=True)
        file.pwrite([b"ab" * 600], 0)
        file.sync()
        for path in ("", "d", "d/e"):
            fs.sync_directory(path)
        file.pwrite([b"x" * 2000], 0)
        file.pwrite([b"ab" * 300], 600, durable=True)
        disk.power_cut()
        assert fs.open("d/e/f").pread(600, 600) == b"ab" * 300


def test_power_cut_keeps_any_subset_of_unsynced_sectors() -> None:
    """Sectors are written in any order: over the seeds each is sometimes kept, sometimes lost."""
    outcomes = set[tuple[bool, ...]]()
    for seed in SEEDS:
        disk, fs = a_disk(seed)
        file = fs.open("f", create=True)
        file.pwrite([bytes(4 * SECTOR_BYTES)], 0)
        file.sync()
        fs.sync_directory("/")
        file.pwrite([b"n" * 4 * SECTOR_BYTES], 0)
        disk.power_cut()
        data = fs.open("f").pread(4 * SECTOR_BYTES, 0)
        assert set(data) <= {0, ord("n")}
        outcomes.add(tuple(data[s * SECTOR_BYTES] != 0 for s in range(4)))
    assert len(outcomes) > 8


def test_unsynced_name_may_be_lost_and_is_sometimes_kept() -> None:
    """A created file is volatile until its directory is synced, even if its bytes are durable."""
    found = list[bool]()
    for seed in SEEDS:
        disk, fs = a_disk(seed)
        fs.open("f", create=True).pwrite([b"x"], 0, durable=True)
        disk.power_cut()
        found.append(fs.exists("f"))
    assert True in found
    assert False in found


def test_rename_is_atomic_over_a_power_cut() -> None:
    """After a power cut the name refers to the old file or the new one."""
    outcomes = set[bytes]()
    for seed in SEEDS:
        disk, fs = a_disk(seed)
        fs.open("f", create=True).pwrite([b"old"], 0, durable=True)
        fs.sync_directory("")
        fs.open("f.new", create=True).pwrite([b"new"], 0, durable=True)
        fs.rename("f.new", "f")
        disk.power_cut()
        outcomes.add(fs.open("f").pread(3, 0))
    assert outcomes == {b"old", b"new"}


def test_killed_process_loses_nothing_it_wrote() -> None:
    """The page cache outlives the process."""
    disk, fs = a_disk(1)
    fs.open("f", create=True).pwrite([b"x" * 5000], 0)
    disk.cut_jobs([])
    assert fs.open("f").pread(5000, 0) == b"x" * 5000


def test_failed_sync_loses_the_pages_and_the_next_one_succeeds() -> None:
    """Linux marks the pages clean: a retry reports success over lost data."""
    disk, fs = a_disk(1)
    file = fs.open("f", create=True)
    fs.sync_directory("")
    file.pwrite([b"x" * 100], 0)
    disk.fail_syncs = 1
    with pytest.raises(OSError) as error:
        file.sync()
    assert error.value.errno == errno.EIO
    file.sync()
    assert file.pread(100, 0) == b"x" * 100
    disk.power_cut()
    assert b"x" not in fs.open("f").pread(100, 0)


def test_full_disk_refuses_growth_and_allows_overwriting() -> None:
    """ENOSPC comes from allocation, not from writing."""
    disk, fs = a_disk(1)
    file = fs.open("f", create=True)
    file.pwrite([bytes(1024)], 0)
    disk.room = 0
    file.pwrite([b"y" * 1024], 0)
    with pytest.raises(OSError, match="no space") as error:
        file.pwrite([b"z"], 1024)
    assert error.value.errno == errno.ENOSPC


def test_disk_that_fills_up_takes_what_fits_and_says_no() -> None:
    """As in a real short write: the part with room is written, and a second try finds no room."""
    disk, fs = a_disk(1)
    file = fs.open("f", create=True)
    disk.room = 300
    with pytest.raises(OSError, match="no space"):
        file.pwrite([b"a" * 200, b"b" * 200], 0)
    assert file.pread(1_000, 0) == b"a" * 200 + b"b" * 100
    with pytest.raises(OSError, match="no space"):
        file.allocate(301)
    with pytest.raises(OSError, match="no space"):
        fs.open_meta("meta", 1 << 20).commit([(b"k", b"v")])
    disk.room = None
    file.pwrite([b"b" * 200], 200)
    assert file.size() == 400


def test_wiped_disk_is_empty_and_stays_so_over_a_power_cut() -> None:
    """Nothing of the old disk comes back, whatever had been pending."""
    disk, fs = a_disk(1)
    fs.make_directory("d")
    fs.open("d/f", create=True).pwrite([b"x"], 0, durable=True)
    fs.sync_directory("")
    disk.wipe()
    assert fs.list("") == []
    disk.power_cut()
    assert fs.list("") == []


def test_meta_transactions_survive_whole_and_in_order() -> None:
    """A transaction cut during its commit exists or not; completed ones exist."""
    seen = set[bytes | None]()
    for seed in SEEDS:
        disk, fs = a_disk(seed)
        meta = fs.open_meta("meta", 1 << 20)
        fs.sync_directory("")
        meta.commit([(b"a", b"1"), (b"b", b"1")])
        _, steps, _ = disk.run_job(lambda meta=meta: meta.commit([(b"a", b"2"), (b"b", None)]))  # type: ignore[misc]
        disk.cut_jobs([steps])
        disk.power_cut()
        again = fs.open_meta("meta", 1 << 20)
        assert (again.get(b"a"), again.get(b"b")) in {(b"1", b"1"), (b"2", None)}
        seen.add(again.get(b"a"))
    assert seen == {b"1", b"2"}


def _replace(fs: SimFileSystem) -> Callable[[], None]:
    def job() -> None:
        file = fs.open("f.new", create=True)
        file.pwrite([b"new!" * 1000], 0)
        file.sync()
        fs.rename("f.new", "f")
        fs.sync_directory("")

    return job


def test_job_is_never_reordered_by_dying_inside_it() -> None:
    """Write, sync, rename: the new name never refers to unsynced bytes, wherever it is cut."""
    outcomes = set[bytes]()
    for seed in SEEDS:
        disk, fs = a_disk(seed)
        fs.open("f", create=True).pwrite([b"old!" * 1000], 0, durable=True)
        fs.sync_directory("")
        time = VirtualTime()
        clock = NodeClock(time)
        workers = SimWorkers(clock, disk)
        finished = list[object]()
        workers.journal(_replace(fs), finished.append)
        time.run_until(Random(seed).randint(0, 1_500_000))
        clock.stop()
        workers.die()
        disk.power_cut()
        content = fs.open("f").pread(4000, 0)
        outcomes.add(content)
        assert content in {b"old!" * 1000, b"new!" * 1000}
        if finished:
            assert content == b"new!" * 1000
    assert len(outcomes) == 2


def test_kill_inside_a_job_takes_back_what_was_not_issued() -> None:
    """Even without a power cut, the next process sees no name that had not been created yet."""
    for seed in SEEDS:
        disk, fs = a_disk(seed)
        fs.open("f", create=True).pwrite([b"old!" * 1000], 0, durable=True)
        _, steps, _ = disk.run_job(_replace(fs))
        disk.cut_jobs([steps])
        assert fs.open("f").pread(4000, 0) in {b"old!" * 1000, b"new!" * 1000}
        if fs.exists("f.new"):
            assert fs.open("f").pread(4, 0) == b"old!"


def test_cut_job_leaves_what_was_complete_and_what_was_under_way() -> None:
    """Steps before the cut are durable, the step in progress is readable and may be lost.

    Later steps never happened.
    """
    for reached in range(4):
        under_way = set[bytes]()
        for seed in SEEDS:
            disk, fs = a_disk(seed)
            file = fs.open("f", create=True)
            file.pwrite([bytes(3 * SECTOR_BYTES)], 0)
            file.sync()
            fs.sync_directory("")

            def job(file: SimFile = file) -> None:
                for n, letter in enumerate((b"a", b"b", b"c")):
                    file.pwrite([letter * SECTOR_BYTES], n * SECTOR_BYTES, durable=True)

            _, steps, _ = disk.run_job(job)
            assert [step.is_durable_write for step in steps] == [True, True, True]
            disk.cut_job(steps, reached=reached)
            letters = file.pread(3 * SECTOR_BYTES, 0)[::SECTOR_BYTES]
            assert letters == b"abc"[: reached + 1].ljust(3, b"\0")
            disk.power_cut()
            letters = fs.open("f").pread(3 * SECTOR_BYTES, 0)[::SECTOR_BYTES]
            assert letters[:reached] == b"abc"[:reached]
            assert not any(letters[reached + 1 :])
            under_way.add(letters[reached : reached + 1])
        assert under_way == ({b"\0", b"abc"[reached : reached + 1]} if reached < 3 else {b""})


def test_killed_job_keeps_what_the_sync_of_another_made_durable() -> None:
    """Another job's sync makes bytes, length and name durable before the job itself completes."""
    disk, fs = a_disk(1)
    file = fs.open("f", create=True)
    fs.sync_directory("")

    def writes() -> None:
        file.pwrite([b"a" * 100], 0, durable=True)
        file.pwrite([b"a" * 100], 100, durable=True)
        fs.rename("f", "g")

    def syncs() -> None:
        file.pwrite([b"b" * 50], 200)
        file.sync()
        fs.sync_directory("")

    jobs = [disk.run_job(writes)[1], disk.run_job(syncs)[1]]
    disk.rng = _Rolls([0, len(jobs[1])])
    disk.cut_jobs(jobs)
    assert fs.open("g").pread(250, 0) == b"a" * 200 + b"b" * 50
    disk.rng = Random(1)
    disk.power_cut()
    assert fs.open("g").pread(250, 0) == b"a" * 200 + b"b" * 50


def test_killed_job_keeps_the_length_that_another_relies_on() -> None:
    """A job extends the file and is killed; another has written and synced after its end."""
    for grow in (
        lambda file: file.pwrite([b"a" * 100], 0),
        lambda file: file.truncate(100),
    ):
        disk, fs = a_disk(1)
        file = fs.open("f", create=True)
        fs.sync_directory("")

        def grows(file: SimFile = file, grow: Callable[[SimFile], object] = grow) -> None:
            file.pwrite([b"a"], 0)
            grow(file)

        jobs = [
            disk.run_job(grows)[1],
            disk.run_job(lambda file=file: file.pwrite([b"b" * 50], 100, durable=True))[1],  # type: ignore[misc]
        ]
        disk.rng = _Rolls([0, 1])
        disk.cut_jobs(jobs)
        assert file.pread(50, 100) == b"b" * 50


def test_synced_meta_survives_only_where_the_sync_was_reached() -> None:
    """A start that was cut before the sync has made nothing durable."""
    for reached in (0, 1):
        found = set[bytes | None]()
        for seed in SEEDS:
            disk, fs = a_disk(seed)
            meta = fs.open_meta("meta", 1 << 20)
            fs.sync_directory("")
            _, steps, _ = disk.run_job(lambda meta=meta: meta.commit([(b"a", b"1")]))  # type: ignore[misc]
            disk.cut_job(steps, reached=0)
            assert meta.get(b"a") == b"1"
            _, steps, _ = disk.run_job(meta.sync)
            disk.cut_job(steps, reached=reached)
            disk.power_cut()
            found.add(fs.open_meta("meta", 1 << 20).get(b"a"))
        assert found == ({b"1"} if reached else {b"1", None})


def test_journal_jobs_run_one_at_a_time_in_order() -> None:
    """The journal has one writer; the pool has several."""
    disk, _ = a_disk(1)
    time = VirtualTime()
    workers = SimWorkers(NodeClock(time), disk)
    fs = SimFileSystem(disk)
    file = fs.open("f", create=True)
    done = list[tuple[str, int]]()
    for name in ("a", "b"):
        workers.journal(
            lambda: file.pwrite([b"x"], 0, durable=True),
            lambda result, name=name: done.append((name, time.now_ns)),  # type: ignore[misc]
        )
    time.run_until(1 << 40)
    assert [name for name, _ in done] == ["a", "b"]
    assert 0 < done[0][1] < done[1][1]


def test_durable_bytes_are_reported_when_they_become_durable() -> None:
    """The audit at each acknowledgement uses these reports."""
    disk, fs = a_disk(1)
    durable = list[bytes]()
    disk.on_durable = lambda image: durable.append(bytes(image))
    file = fs.open("f", create=True)
    file.pwrite([b"one"], 0)
    assert durable == []
    file.pwrite([b"two"], 3, durable=True)
    file.sync()
    assert durable == [b"two", b"one"]


def test_frame_is_reported_as_a_whole_when_its_last_part_becomes_durable() -> None:
    """A sync that began earlier may end later than one that covers more."""
    disk, fs = a_disk(1)
    durable = list[bytes]()
    disk.on_durable = lambda image: durable.append(bytes(image))
    file = fs.open("f", create=True)
    file.truncate(11)
    file.sync()

    def write_and_sync(data: bytes, position: int) -> None:
        file.pwrite([data], position)
        file.sync()

    jobs = [
        disk.run_job(lambda: write_and_sync(b"two", 3))[1],
        disk.run_job(lambda: write_and_sync(b"three", 6))[1],
    ]
    for steps in reversed(jobs):
        for step in steps:
            if step.harden is not None:
                step.harden()
    file.pwrite([b"one"], 0, durable=True)
    assert durable[-1] == b"onetwothree"


def test_frame_is_reported_as_a_whole_when_one_sync_covers_its_parts() -> None:
    """Its header is written again, and what is behind it was synced with what is before it."""
    disk, fs = a_disk(1)
    durable = list[bytes]()
    disk.on_durable = lambda image: durable.append(bytes(image))
    file = fs.open("f", create=True)
    for position, data in ((0, b"before"), (6, b"one"), (9, b"two")):
        file.pwrite([data], position)
    file.sync()
    assert durable == [b"beforeonetwo", b"onetwo", b"two"]
    file.pwrite([b"ONE"], 6, durable=True)
    assert durable[-1] == b"ONEtwo"


def test_refused_allocation_has_what_there_was_room_for() -> None:
    """As on a real file system, the caller has to truncate the file again."""
    disk, fs = a_disk(1)
    file = fs.open("file", create=True)
    file.pwrite([bytes(100)], 0)
    disk.room = 1000
    with pytest.raises(OSError, match="no space") as caught:
        file.allocate(5000, start=100)
    assert caught.value.errno == errno.ENOSPC
    assert (file.size(), file.allocated(), disk.room) == (1100, 1100, 0)
    disk.returns_room = True
    file.truncate(100)
    assert (file.size(), file.allocated(), disk.room) == (100, 100, 1000)
    fs.unlink("file")
    assert disk.room == 1100


def test_file_that_was_only_made_longer_has_no_blocks_there() -> None:
    """A power cut may have allocated blocks there."""
    disk, fs = a_disk(1)
    file = fs.open("file", create=True)
    file.pwrite([bytes(100)], 0)
    file.truncate(5000)
    assert (file.size(), file.allocated()) == (5000, 100)
    file.sync()
    fs.sync_directory("")
    disk.power_cut()
    assert fs.open("file").allocated() == 5000
