"""Detection of a hung disk, as opposed to a slow one."""

from vdl.clock import MS
from vdl.logstream.elections.disk_watch import PATIENCE_TIMES, RATE_MIN, DiskWatch

PATIENCE_MS = 3_000
LOOK_MS = 100


class Watched:
    """A disk watch that is checked ten times a second, with its disk."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.watch = DiskWatch(PATIENCE_MS, 0)
        self.durable = 0

    def write(self, took_ms: int, size: int = 0) -> bool:
        """Make one write of `size` bytes that takes `took_ms`. Return True if the disk hung."""
        self.watch.staged(self.durable + 1)
        end_ms = self.now_ms + took_ms
        hung = False
        while self.now_ms < end_ms:
            self.now_ms += LOOK_MS
            hung |= self.watch.is_hung(self.durable, self.now_ms * MS, size)
        self.durable += 1
        self.watch.is_hung(self.durable, self.now_ms * MS, 0)
        return hung


def test_write_that_takes_longer_than_the_patience_hangs() -> None:
    disk = Watched()
    assert not any(disk.write(50) for _ in range(100))
    assert disk.write(PATIENCE_MS + 500)


def test_disk_that_is_slow_does_not_hang() -> None:
    """Leaderships would move between servers with equally slow disks for ever."""
    disk = Watched()
    assert not any(disk.write(2_000) for _ in range(5))
    assert not disk.write(PATIENCE_MS + 1_000)
    assert disk.write(PATIENCE_TIMES * PATIENCE_MS + 1_000), "it is waited for only so long"


def test_disk_that_was_slow_is_soon_expected_to_be_quick() -> None:
    disk = Watched()
    disk.write(2_000)
    for _ in range(100):
        disk.write(50)
    assert disk.write(PATIENCE_MS + 500)


def test_steps_at_other_files_go_by_the_same_measure() -> None:
    """A flush has several syncs, each of which may take seconds on a slow disk."""
    for slow_ms, is_stalled in ((50, True), (2_000, False)):
        disk = Watched()
        disk.write(slow_ms)
        assert not disk.watch.is_stalled((7, 0), disk.now_ms * MS)
        later_ms = disk.now_ms + PATIENCE_MS + 500
        assert disk.watch.is_stalled((7, 0), later_ms * MS) is is_stalled


def test_large_write_is_waited_for_as_long_as_it_may_take() -> None:
    """A batch of 100 MiB takes a slow disk seconds, which does not hang."""
    size, may_take_ms = 10 * RATE_MIN, PATIENCE_MS + 10_000
    for took_ms, is_hung in ((may_take_ms - 500, False), (may_take_ms + 500, True)):
        disk = Watched()
        assert not any(disk.write(50) for _ in range(100))
        assert disk.write(took_ms, size) is is_hung


def test_work_that_goes_on_does_not_hide_a_step_that_hangs() -> None:
    """A checkpoint goes on while a payload that is written ahead hangs."""
    disk = Watched()
    disk.write(50)
    found = [
        disk.watch.is_stalled((n, 7), (disk.now_ms + n * LOOK_MS) * MS)
        for n in range(1, PATIENCE_MS // LOOK_MS + 10)
    ]
    assert (found[0], found[-1]) == (False, True)
