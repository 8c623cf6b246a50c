"""Writing of large payloads to their places before their entries are appended.

A block and its payloads are durable before the next block begins, so a payload of 100 MB would make
all logs wait. A large one is therefore written first, while blocks go on, in steps: other writes
wait for one step at most, because the medium has each step before the next begins. After a step the
medium and the processor are left to others for as long as it took. The payloads of blocks take
turns with the steps, in the same thread. One payload is written at a time.

The thread also computes the checksum of what it writes, which would hold up the loop later.

A payload that its owner no longer wants ends before its next step. A step that is refused for lack
of memory or descriptors ends it, too; it is then written with its block. Any other failure is a
failed sync: the space was allocated before.

Does not depend on logs, or on what becomes of the entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from crc32c import crc32c

from segments.api import Workers
from segments.io import failpoint
from segments.io.fs import is_refused, uncache_steps
from segments.log.placement import Payload

STEPS = 32
"""Steps of the smallest large payload: they have 512 KiB by default."""
PAUSE_MS_MAX = 10
"""Longest pause after a step, so that 100 MB wait for two seconds at most."""
_PAGE_BYTES = 4096
_MS = 1_000_000

Ended = Callable[[int | None], None]
"""Called on the loop with the CRC of the payload if it is durable, else with None."""


class AheadWriter:
    """Writes payloads ahead, in the order in which they come.

    `failed` is called with the error when the disk can no longer be trusted.
    """

    __slots__ = (
        "_began_ns", "_crc", "_failed", "_is_running", "_now_ns", "_queue", "_step_bytes",
        "_workers", "is_stopped", "steps",
    )  # fmt: skip

    def __init__(
        self,
        workers: Workers,
        large_bytes_min: int,
        failed: Callable[[BaseException], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._workers = workers
        self._now_ns = now_ns
        self._step_bytes = max(large_bytes_min // STEPS // _PAGE_BYTES, 1) * _PAGE_BYTES
        self._failed = failed
        self._queue: deque[tuple[list[Payload], Payload, Callable[[], bool], Ended]] = deque()
        """(steps that are left, the payload, is it wanted, its callback); the first is being
        written."""
        self._is_running = False
        """True if a step of the first one is under way, or a pause after it."""
        self._began_ns = 0
        """Time at which the step began."""
        self._crc = 0
        """CRC of the steps of the first one that have ended."""
        self.steps = 0
        """Number of steps that have ended."""
        self.is_stopped = False
        """Invariant: once True no step begins, and nothing is reported as durable."""

    @property
    def is_writing(self) -> bool:
        return bool(self._queue) and not self.is_stopped

    def write(self, payload: Payload, is_wanted: Callable[[], bool], ended: Ended) -> None:
        """Write the payload and sync it; `ended` is called unless the writer is stopped."""
        steps = payload.steps(self._step_bytes)
        steps.reverse()
        self._queue.append((steps, payload, is_wanted, ended))
        if len(self._queue) == 1:
            self._next()

    def _next(self) -> None:
        while self._queue and not (self._is_running or self.is_stopped):
            steps, payload, is_wanted, _ = self._queue[0]
            if is_wanted():
                self._is_running, self._began_ns = True, self._now_ns()
                job = partial(_write_step, steps[-1], payload, self._crc, is_last=len(steps) == 1)
                self._workers.payload(job, self._step_ended)
            else:
                self._end(None)

    def _end(self, crc: int | None) -> None:
        _, _, _, ended = self._queue.popleft()
        self._crc = 0
        ended(crc)  # may write another one

    def _step_ended(self, result: int | BaseException) -> None:
        if self.is_stopped:
            return
        self.steps += 1
        steps = self._queue[0][0]
        steps.pop()
        if isinstance(result, BaseException):
            if not is_refused(result):
                self._failed(result)
                return
            self._is_running = False
            self._end(None)
        elif not steps:
            self._is_running = False
            self._end(result)
        else:
            self._crc = result
            pause_ms = min((self._now_ns() - self._began_ns) // _MS, PAUSE_MS_MAX)
            if pause_ms:
                self._workers.call_later(pause_ms, self._go_on)
                return
            self._is_running = False
        self._next()

    def _go_on(self) -> None:
        self._is_running = False
        self._next()


def _write_step(step: Payload, whole: Payload, crc: int, *, is_last: bool) -> int:
    """Write one step to the medium; sync the file after the last. Blocks. Raises OSError.

    `crc` is that of the steps before; return it with this step.
    """
    failpoint.hit("payload.before_sync")
    for buffer in step.buffers:
        crc = crc32c(buffer, crc)
    step.write(durable=False)
    step.file.write_back(step.bytes, step.position)
    if not is_last:
        return crc
    step.file.sync()
    failpoint.hit("payload.after_sync")
    if not whole.is_read:
        uncache_steps(whole.file, whole.position, whole.end)
    return crc
