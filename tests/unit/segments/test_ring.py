"""Blocks of the journal that the kernel writes, without a thread."""

import errno
import os
import random
import select
import threading
from functools import partial

import pytest

from segments.api import HardState, StoredEntry
from segments.io.fs import RealFileSystem, SyncFailed
from segments.io.jobs import Jobs
from segments.io.ring import WriteRing, open_ring
from segments.io.workers import ThreadWorkers
from segments.journal import writer
from segments.store import DiskStore
from tests.hangs import HANG_SECONDS
from tests.unit.segments.conftest import OPTIONS

needs_ring = pytest.mark.skipif(open_ring() is None, reason="the kernel offers no ring here")


class Loop:
    """Runs what threads and the ring report, on the caller's thread."""

    def __init__(self, ring):
        self.ring = ring
        self._rung = []
        self._bell = os.eventfd(0)
        self.workers = ThreadWorkers(self._take, self._later, write_ring=ring)

    def _take(self, fn, argument):
        self._rung.append(partial(fn, argument))
        os.eventfd_write(self._bell, 1)

    def _later(self, delay_ms, fn):
        timer = threading.Timer(delay_ms / 1_000, self._take, (lambda _: fn(), None))
        timer.daemon = True
        timer.start()
        return timer

    def until(self, condition):
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self.ring.fileno(), select.POLLIN)
        while not condition():
            ready = poll.poll(HANG_SECONDS * 1_000)
            assert ready, "nothing was reported"
            if any(file == self.ring.fileno() for file, _ in ready):
                self.ring.look()
            if any(file == self._bell for file, _ in ready):
                os.eventfd_read(self._bell)
                while self._rung:
                    self._rung.pop(0)()

    def close(self):
        self.workers.close()


class Write:
    """A write of two buffers, by the kernel to `fd` or by `run`."""

    def __init__(self, fd):
        self.fd = fd
        self.runs = 0

    def place(self):
        return self.fd, [b"abc", memoryview(b"de")], 3

    def run(self):
        self.runs += 1
        return 5


class RefusedRing:
    """A kernel's ring with given results, which a real one has only in want of memory and the like.

    None: the write is not taken.
    """

    def __init__(self, *results):
        self._results = list(results)
        self._file = os.eventfd(0)
        self._result = None
        self.taken = 0

    def fileno(self):
        return self._file

    def write(self, fd, buffers, position):
        self._result = self._results.pop(0)
        if self._result is None:
            raise OSError(errno.EPERM, "refused")
        self.taken += 1
        os.eventfd_write(self._file, 1)

    def ended(self):
        if self._result is not None:
            os.eventfd_read(self._file)
        result, self._result = self._result, None
        return result


@needs_ring
def test_kernel_writes_in_place_and_one_after_another(tmp_path):
    """Each end is reported once."""
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    ring, ended = open_ring(), []
    loop = Loop(ring)
    with path.open("r+b") as file:
        for count in (1, 2, 3):
            write = Write(file.fileno())
            loop.workers.write(write, ended.append)
            loop.until(lambda count=count: len(ended) == count)
            assert write.runs == 0
            ring.look()
    loop.close()
    assert ended == [5] * 3
    assert path.read_bytes() == b"\0\0\0abcde\0\0"


@needs_ring
@pytest.mark.parametrize(("path", "code"), [("/dev/full", errno.ENOSPC), (None, errno.EBADF)])
def test_failed_write_of_the_kernel_is_a_failed_sync(path, code):
    ended = []
    loop = Loop(open_ring())
    fd = os.open(path, os.O_WRONLY) if path else -1
    write = Write(fd)
    loop.workers.write(write, ended.append)
    loop.until(lambda: ended)
    loop.close()
    if path:
        os.close(fd)
    assert [type(result) for result in ended] == [SyncFailed]  # never a disk that is only full
    assert os.strerror(code) in str(ended[0])
    assert write.runs == 0


def two_writes(kernel):
    """Make two writes, one after the other. Return them, their results and the refusals."""
    ended, refused = [], []
    loop = Loop(WriteRing(kernel))
    loop.ring.on_refused = refused.append
    writes = [Write(9), Write(9)]
    for count, write in enumerate(writes, start=1):
        loop.workers.write(write, ended.append)
        loop.until(lambda count=count: len(ended) == count)
    loop.close()
    return writes, ended, refused


@pytest.mark.parametrize(
    ("result", "runs"), [(3, [1, 0]), (-errno.EAGAIN, [1, 0]), (-errno.ECANCELED, [1, 1])]
)
def test_write_that_the_kernel_did_not_finish_is_done_again_by_the_thread(result, runs):
    """The next one goes to the kernel again, unless the kernel got no thread for this one."""
    kernel = RefusedRing(result, 5)
    writes, ended, refused = two_writes(kernel)
    assert ended == [5, 5]
    assert [write.runs for write in writes] == runs
    assert kernel.taken == runs.count(0) + 1
    assert [error.errno for error in refused] == [errno.ECANCELED] * (runs.count(1) - 1)


def test_ring_that_refuses_a_write_is_not_used_again():
    kernel = RefusedRing(None, 5)
    writes, _, refused = two_writes(kernel)
    assert [write.runs for write in writes] == [1, 1]
    assert kernel.taken == 0
    assert [error.errno for error in refused] == [errno.EPERM]


@needs_ring
def test_directory_is_released_after_the_write_that_the_kernel_has_begun(tmp_path):
    """Its result is dropped. A write that comes later does not begin."""
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    released, told = [], []
    loop = Loop(open_ring())
    jobs = Jobs(loop.workers)
    with path.open("r+b") as file:
        late = Write(file.fileno())
        jobs.write(Write(file.fileno()), told.append)
        jobs.over(lambda: released.append(True))
        assert released == []
        loop.until(lambda: released)
        path.write_bytes(bytes(10))
        jobs.write(late, told.append)
        loop.close()
    assert told == []
    assert late.runs == 0
    assert path.read_bytes() == bytes(10)


@needs_ring
def test_entries_that_the_kernel_wrote_are_there_after_a_restart(tmp_path, monkeypatch):
    """The journal's thread writes no block; entries are reported durable, and recovered."""

    def run(self):
        raise AssertionError("a block went to the thread")

    monkeypatch.setattr(writer._Write, "run", run)
    loop = Loop(open_ring())
    store = DiskStore.open(RealFileSystem(), str(tmp_path), loop.workers, OPTIONS, random.Random(3))
    made, durable = [], []
    store.on_durable = durable.append
    store.create_log(9, 1, on_created=made.append)
    loop.until(lambda: made)
    log = made[0]
    for index in range(1, 20):
        data = bytes([index]) * 300
        store.append(log, [StoredEntry(1, index, 0, data, log.next_offset, 1, index)])
        store.set_hard_state(log, HardState(1, 1, index))
        token = store.submit()
        loop.until(lambda token=token: durable and durable[-1] >= token)
    closed = []
    store.close(lambda: closed.append(True))
    loop.until(lambda: closed)
    loop.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "segments-journal"]
    monkeypatch.undo()
    again = Loop(open_ring())
    store = DiskStore.open(
        RealFileSystem(), str(tmp_path), again.workers, OPTIONS, random.Random(3)
    )
    assert store.logs[log.log_id].last_index == 19
    store.abandon()
    again.close()
