"""Hanging reads delay only other reads."""

import asyncio
import random
import threading
from functools import partial

from segments.api import HardState, StoredEntry
from segments.io.fs import RealFile, RealFileSystem
from segments.io.workers import ThreadWorkers
from segments.store import DiskStore
from tests.hangs import HANG_SECONDS
from tests.unit.segments.conftest import OPTIONS

POOL_THREADS = 3
"""Threads of the pool.

A hanging run fails by its time limit; others take a fraction of a second.
"""


class StuckFile(RealFile):
    """Reads a segment only when it is permitted."""

    __slots__ = ("go_on", "is_read", "stuck")

    def pread(self, length, position):
        if self.stuck.is_set():
            self.is_read.release()
            self.go_on.wait()
        return super().pread(length, position)


class StuckFileSystem(RealFileSystem):
    """Behaves like a disk with bad sectors, which retries."""

    def __init__(self):
        self.stuck, self.go_on = threading.Event(), threading.Event()
        self.is_read = threading.Semaphore(0)

    def open(self, path, *, create=False):
        real = super().open(path, create=create)
        if not path.endswith(".log"):
            return real
        file = StuckFile(real._fd)
        real._fd = -1
        file.stuck, file.go_on, file.is_read = self.stuck, self.go_on, self.is_read
        return file


class Bench:
    """A store on threads whose log has entries in segments."""

    def __init__(self, fs, directory, loop):
        self.loop = loop
        self.workers = ThreadWorkers(
            loop.call_soon_threadsafe,
            lambda delay_ms, fn: loop.call_later(delay_ms / 1000, fn),
            pool_threads=POOL_THREADS,
        )
        self.store = DiskStore.open(fs, directory, self.workers, OPTIONS, random.Random(1))
        self.store.on_durable = self._durable
        self.durable = asyncio.Event()

    def _durable(self, token):
        self.token = token
        self.durable.set()

    async def create(self, group_id):
        created = self.loop.create_future()
        self.store.create_log(group_id, 1, on_created=created.set_result)
        return await created

    async def append(self, log, count, size):
        first = log.last_index + 1
        entries = [StoredEntry(1, n, 0, bytes(size), n, 1, n) for n in range(first, first + count)]
        self.store.append(log, entries)
        self.store.set_hard_state(log, HardState(1, 1, log.last_index))
        token = self.store.submit()
        while self.store.durable_token < token:
            self.durable.clear()
            await self.durable.wait()

    async def checkpoint(self):
        done = self.loop.create_future()
        self.store.checkpoint(partial(done.set_result, True))
        await done


def test_reads_that_hang_stop_neither_new_logs_nor_the_journal_nor_flushes(tmp_path):
    """All threads that read are stuck.

    A log is still created, the journal has its next files, and committed entries reach segments;
    then the reads end.
    """
    fs = StuckFileSystem()

    async def run():
        async with asyncio.timeout(HANG_SECONDS):
            bench = Bench(fs, str(tmp_path / "data"), asyncio.get_running_loop())
            log = await bench.create(9)
            await bench.append(log, 200, 500)
            await bench.checkpoint()
            assert log.flushed_index == 200
            fs.stuck.set()
            reads = [bench.loop.create_future() for _ in range(POOL_THREADS)]
            for n, read in enumerate(reads):
                bench.store.entries_cold(log, 1 + n, 100, 1 << 20, read.set_result)
            for _ in range(POOL_THREADS):
                await asyncio.to_thread(fs.is_read.acquire)
            other = await bench.create(10)
            files = bench.store.stats()["journal_bytes"] // OPTIONS.journal_file_bytes
            for _ in range(30):
                await bench.append(other, 10, 5_000)
            more = bench.store.stats()["journal_bytes"] // OPTIONS.journal_file_bytes
            assert more > files + 3
            await bench.append(log, 50, 500)
            while (other.flushed_index, log.flushed_index) != (300, 250):
                await bench.checkpoint()  # a checkpoint under way may have begun before
            assert not any(read.done() for read in reads)
            fs.go_on.set()
            assert all(isinstance(answer, list) for answer in await asyncio.gather(*reads))
            closed = asyncio.get_running_loop().create_future()
            bench.store.close(partial(closed.set_result, True))
            await closed
            bench.workers.close()

    try:
        asyncio.run(run())
    finally:
        fs.go_on.set()
