"""Writing of large entries to their places before the journal blocks that refer to them.

A block and its payloads are durable before the next block begins, so a payload of 100 MB would make
all logs wait. A large entry is therefore written first, while blocks go on, and staged when it is
durable. It is written in steps, each of which the medium has before the next begins: other writes
wait for one step at most. The payloads of blocks take turns with the steps.

A step that was refused for lack of memory or descriptors is repeated each second. Any other failure
is a failed sync: the space was allocated before.

Does not depend on logs or on what is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from segments.api import Workers
from segments.io import failpoint
from segments.io.fs import DISK_FULL_RETRY_MS, is_refused, uncache_steps
from segments.log.placement import Payload

STEPS = 8
"""Steps of the smallest large entry."""
_PAGE_BYTES = 4096


class AheadWriter:
    """Writes large entries ahead, any number at a time.

    `failed` is called with the error when the disk can no longer be trusted.
    """

    __slots__ = ("_failed", "_refused", "_step_bytes", "_workers", "is_stopped")

    def __init__(
        self, workers: Workers, large_bytes_min: int, failed: Callable[[BaseException], None]
    ) -> None:
        self._workers = workers
        self._step_bytes = max(large_bytes_min // STEPS // _PAGE_BYTES, 1) * _PAGE_BYTES
        self._failed = failed
        self._refused = 0
        self.is_stopped = False
        """Invariant: once True no step begins, and nothing is reported as durable."""

    @property
    def is_refused(self) -> bool:
        """True if a step waits to be repeated."""
        return self._refused > 0

    def write(self, payloads: Sequence[Payload], durable: Callable[[], None]) -> None:
        """Write the payloads and sync them; `durable` is then called on the loop."""
        steps: list[Callable[[], None]] = [
            partial(_write_step, step, payload if step.end == payload.end else None)
            for payload in payloads
            for step in payload.steps(self._step_bytes)
        ]
        steps.reverse()
        self._next(steps, durable)

    def _next(self, steps: list[Callable[[], None]], durable: Callable[[], None]) -> None:
        if self.is_stopped:
            return
        if not steps:
            durable()
            return
        self._workers.payload(steps[-1], partial(self._ended, steps, durable))

    def _ended(
        self,
        steps: list[Callable[[], None]],
        durable: Callable[[], None],
        result: BaseException | None,
    ) -> None:
        if isinstance(result, BaseException) and is_refused(result):
            self._refused += 1
            self._workers.call_later(DISK_FULL_RETRY_MS, partial(self._again, steps, durable))
        elif isinstance(result, BaseException):
            self._failed(result)
        else:
            steps.pop()
            self._next(steps, durable)

    def _again(self, steps: list[Callable[[], None]], durable: Callable[[], None]) -> None:
        self._refused -= 1
        self._next(steps, durable)


def _write_step(step: Payload, whole: Payload | None) -> None:
    """Write one step to the medium; sync the file after the last step of a `whole` payload.

    Blocks. Raises OSError.
    """
    failpoint.hit("ahead.before_step")
    step.write(durable=False)
    step.file.write_back(step.bytes, step.position)
    if whole is None:
        return
    failpoint.hit("ahead.before_sync")
    step.file.sync()
    failpoint.hit("ahead.after_sync")
    if not whole.is_read:
        uncache_steps(whole.file, whole.position, whole.end)
