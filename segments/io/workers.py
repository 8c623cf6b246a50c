"""Threads for blocking work.

One for the journal, one for payloads of its blocks, one for essential work, one for segments and
meta, and a small pool for reads and the rest. Two more only compute, so that computation does not
wait behind disk work.

A job is a plain callable that touches only files and what it closed over. Its result, or the
exception it raised, is passed to `done` on the loop. The journal thread runs its jobs one at a time
and in order. Threads hold no state of the store and take no locks.

Does not depend on what the jobs do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from segments.api import Timer
from segments.io.fs import SyncFailed

try:
    from segments.io._blocks import Writer
except ImportError:
    Writer = None

T = TypeVar("T")
_Job = tuple[Callable[[], Any], Callable[[Any], None]]


class ThreadWorkers:
    """`Workers` for a real server.

    `ring(fn, argument)`, from any thread, and `call_later(delay_ms, fn)` belong to the loop. After
    `close` no job is accepted; those already queued are finished first.
    """

    def __init__(
        self,
        ring: Callable[[Callable[[Any], None], object], object],
        call_later: Callable[[int, Callable[[], None]], Timer],
        *,
        watch: Callable[[int, Callable[[], None]], None] | None = None,
        pool_threads: int = 3,
        compute_threads: int = 2,
    ) -> None:
        self._ring = ring
        self._blocks = None
        self._block_done: Callable[[Any], None] | None = None
        if watch is not None and Writer is not None and not os.environ.get("VDL_NO_NATIVE"):
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._blocks = Writer(self._eventfd)
            watch(self._eventfd, self._block_ended)
        self._call_later = call_later
        self._journal: SimpleQueue[_Job | None] = SimpleQueue()
        self._payload: SimpleQueue[_Job | None] = SimpleQueue()
        self._pool: SimpleQueue[_Job | None] = SimpleQueue()
        self._essential: SimpleQueue[_Job | None] = SimpleQueue()
        self._files: SimpleQueue[_Job | None] = SimpleQueue()
        self._computing: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = {
            self._start("journal", self._journal): self._journal,
            self._start("payload", self._payload): self._payload,
            self._start("essential", self._essential): self._essential,
            self._start("files", self._files): self._files,
            **{self._start(f"pool-{n}", self._pool): self._pool for n in range(pool_threads)},
            **{
                self._start(f"compute-{n}", self._computing): self._computing
                for n in range(compute_threads)
            },
        }

    def journal(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._journal.put((job, done))

    def block(self, descriptor, buffers, position, done) -> bool:
        blocks = self._blocks
        if blocks is None or len(buffers) > 1024:
            return False
        self._block_done = done
        blocks.submit(descriptor, buffers, position)
        return True

    def _block_ended(self) -> None:
        os.eventfd_read(self._eventfd)
        result = self._blocks.collect()
        assert result is not None
        done = self._block_done
        if result < 0:
            result = SyncFailed(OSError(-result, os.strerror(-result)))
        done(result)

    def payload(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._payload.put((job, done))

    def pool(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._pool.put((job, done))

    def compute(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._computing.put((job, done))

    def essential(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._essential.put((job, done))

    def files(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._files.put((job, done))

    def call_later(self, delay_ms: int, fn: Callable[[], None]) -> Timer:
        return self._call_later(delay_ms, fn)

    def close(self) -> None:
        """Finish queued jobs and end the threads. Blocks."""
        for queue in self._threads.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._blocks is not None:
            self._blocks.close()

    def _start(self, name: str, queue: SimpleQueue[_Job | None]) -> threading.Thread:
        thread = threading.Thread(
            target=self._run, args=(queue,), name=f"segments-{name}", daemon=True
        )
        thread.start()
        return thread

    def _run(self, queue: SimpleQueue[_Job | None]) -> None:
        while (item := queue.get()) is not None:
            job, done = item
            result: Any
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - the loop decides what a failure means
                result = error
            self._ring(done, result)
            del item, job, done, result  # so that a chunk is not kept alive until the next job
