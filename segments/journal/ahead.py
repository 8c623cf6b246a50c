"""Writing of large payloads to their places before their entries are appended.

A block and its payloads are durable before the next block begins, so a payload of 100 MB would make
all logs wait. A large one is therefore written first, while blocks go on, in steps: other writes
wait for one step at most, because the medium has each step before the next begins. The payloads of
blocks take turns with the steps, in the same thread. One payload is written at a time.

A payload that its owner no longer wants ends before its next step. A step that is refused for lack
of memory or descriptors ends it, too; it is then written with its block. Any other failure is a
failed sync: the space was allocated before.

Does not depend on logs, or on what becomes of the entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from segments.api import Workers
from segments.io import failpoint
from segments.io.fs import is_refused, uncache_steps
from segments.log.placement import Payload

STEPS = 8
"""Steps of the smallest large payload."""
_PAGE_BYTES = 4096

Ended = Callable[[bool], None]
"""Called on the loop with True if the payload is durable."""


class AheadWriter:
    """Writes payloads ahead, in the order in which they come.

    `failed` is called with the error when the disk can no longer be trusted.
    """

    __slots__ = (
        "_failed", "_is_running", "_queue", "_step_bytes", "_workers", "is_stopped", "steps",
    )  # fmt: skip

    def __init__(
        self, workers: Workers, large_bytes_min: int, failed: Callable[[BaseException], None]
    ) -> None:
        self._workers = workers
        self._step_bytes = max(large_bytes_min // STEPS // _PAGE_BYTES, 1) * _PAGE_BYTES
        self._failed = failed
        self._queue: deque[tuple[list[Payload], Payload, Callable[[], bool], Ended]] = deque()
        """(steps that are left, the payload, is it wanted, its callback); the first is being
        written."""
        self._is_running = False
        """True if a step of the first one is under way."""
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
                self._is_running = True
                job = partial(_write_step, steps[-1], payload, is_last=len(steps) == 1)
                self._workers.payload(job, self._step_ended)
            else:
                self._end(is_durable=False)

    def _end(self, *, is_durable: bool) -> None:
        _, _, _, ended = self._queue.popleft()
        ended(is_durable)  # may write another one

    def _step_ended(self, result: BaseException | None) -> None:
        if self.is_stopped:
            return
        self.steps += 1
        self._is_running = False
        is_refusal = isinstance(result, BaseException) and is_refused(result)
        if isinstance(result, BaseException) and not is_refusal:
            self._failed(result)
            return
        steps = self._queue[0][0]
        steps.pop()
        if is_refusal or not steps:
            self._end(is_durable=not is_refusal)
        self._next()


def _write_step(step: Payload, whole: Payload, *, is_last: bool) -> None:
    """Write one step to the medium; sync the file after the last. Blocks. Raises OSError."""
    failpoint.hit("payload.before_sync")
    step.write(durable=False)
    step.file.write_back(step.bytes, step.position)
    if not is_last:
        return
    step.file.sync()
    failpoint.hit("payload.after_sync")
    if not whole.is_read:
        uncache_steps(whole.file, whole.position, whole.end)
