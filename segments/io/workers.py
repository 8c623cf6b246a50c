"""Threads for blocking work.

One for the journal, one for payloads of its blocks, one for essential work, one for segments and
meta, and a small pool for reads and the rest. Two more only compute, so that computation does not
wait behind disk work.

A job is a plain callable that touches only files and what it closed over. Its result, or the
exception it raised, is passed to `done` on the loop. The journal thread runs its jobs one at a time
and in order. Threads hold no state of the store and take no locks.

Blocks of the journal are written by the kernel where it offers that (`ring.py`), and by the journal
thread otherwise.

Does not depend on what the jobs do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from segments.api import Timer, Write
from segments.io.ring import WriteRing

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
        pool_threads: int = 3,
        compute_threads: int = 2,
        write_ring: WriteRing | None = None,
    ) -> None:
        """`write_ring`: its owner calls `look` when it is readable."""
        self._ring = ring
        self._call_later = call_later
        self._write_ring = write_ring
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

    def write(self, write: Write, done: Callable[[int | BaseException], None]) -> None:
        ring = self._write_ring
        if ring is not None:
            place = write.place()
            if place is not None and ring.begin(*place, partial(self._written, write, done)):
                return
        self._journal.put((write.run, done))

    def _written(
        self,
        write: Write,
        done: Callable[[int | BaseException], None],
        result: int | BaseException | None,
    ) -> None:
        if result is None:
            self._journal.put((write.run, done))
        else:
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
        if self._write_ring is not None:
            self._write_ring.wait()
        for queue in self._threads.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()

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
