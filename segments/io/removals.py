"""Chores: removing files of logs that were reset, trimmed or deleted, one at a time, in order.

A chore begins once the journal record that calls for it is durable, and while nothing else is at
the files. A full disk may refuse even a removal (a file system that writes before it frees): the
chore is then tried again. To remove a hundred thousand files takes minutes: a job does a piece of
it and says that there is more, and checkpoints have their turn before it goes on.

Must not know: what the chores remove.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from segments.api import Workers
from segments.io.fs import DISK_FULL_RETRY_MS, is_refused

Job = Callable[[], bool | None]
FILES_AT_ONCE = 256
"""So many are removed before others have the files."""
REST_MS = 200
"""In which a part of a checkpoint falls due."""


@dataclass(slots=True)
class Chore:
    """`begin` is called when its turn comes and gives the job for the pool, or None when what has
    happened meanwhile made it pointless. The job is called again as long as it returns True: there
    is more to do. `after` runs on the loop when the job is done."""

    token: int
    begin: Callable[[], Job | None]
    after: Callable[[], None]


class Chores:
    """The queue. `may_run` says whether the files are free, `is_urgent` whether room is needed too
    much to rest, `ended` is told of each end."""

    __slots__ = (
        "_ended", "_fail", "_is_resting", "_is_urgent", "_may_run", "_queue", "_workers", "begun",
        "is_full", "is_running",
    )  # fmt: skip

    def __init__(
        self,
        workers: Workers,
        *,
        may_run: Callable[[int], bool],
        is_urgent: Callable[[], bool],
        ended: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._workers = workers
        self._may_run = may_run
        self._is_urgent = is_urgent
        self._ended = ended
        self._fail = fail
        self._queue: deque[Chore] = deque()
        self._is_resting = False
        self.is_running = False
        self.is_full = False
        self.begun = 0

    def add(self, chore: Chore) -> None:
        self._queue.append(chore)

    def next(self) -> None:
        """Begin the oldest chore, if it may."""
        while self._queue and not (self.is_running or self.is_full or self._is_resting):
            if not self._may_run(self._queue[0].token):
                return
            chore = self._queue.popleft()
            job = chore.begin()
            if job is not None:
                self._run(chore, job)

    def _run(self, chore: Chore, job: Job) -> None:
        self.is_running = True
        self.begun += 1

        def done(result: BaseException | bool | None) -> None:
            self.is_running = False
            if isinstance(result, BaseException) and is_refused(result):
                self.is_full = True
                self._queue.appendleft(Chore(chore.token, lambda: job, chore.after))
                self._workers.call_later(DISK_FULL_RETRY_MS, self._again)
            elif isinstance(result, BaseException):
                self._fail(result)
                return
            elif result:
                self._is_resting = True
                self._queue.appendleft(Chore(chore.token, lambda: job, chore.after))
                self._workers.call_later(0 if self._is_urgent() else REST_MS, self._go_on)
            else:
                chore.after()
            self._ended()

        self._workers.files(job, done)

    def _go_on(self) -> None:
        self._is_resting = False
        self.next()

    def _again(self) -> None:
        self.is_full = False
        self.next()
