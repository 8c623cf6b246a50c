"""Removing files of logs that were reset, trimmed or deleted: one removal at a time, in order.

A removal begins once the journal record that calls for it is durable, and while nothing else is at
the files. A full disk may refuse even a removal (a file system that writes before it frees): it is
then tried again. To remove a hundred thousand files takes minutes: a job does a piece of it and
says that there is more, and checkpoints have their turn before it goes on.

A repair of damaged entries stands in the same queue, because it needs the files for itself, too.

Must not know: what is removed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from segments.api import Workers
from segments.io.fs import DISK_FULL_RETRY_MS, is_refused

Job = Callable[[], bool | None]
FILES_AT_ONCE = 256
"""So many are removed before others have the files."""
REST_MS = 200
"""In which a part of a checkpoint falls due."""


class RemovalState(Enum):
    """What the queue does just now."""

    IDLE = auto()
    RUNNING = auto()
    """A thread has a job."""
    RESTING = auto()
    """A job has said that there is more: others have the files for a while."""
    REFUSED = auto()
    """A full disk refused a job. It is tried again each second."""


@dataclass(slots=True)
class Removal:
    """`begin` is called when its turn comes and gives the job for the pool, or None when what has
    happened meanwhile made it pointless. The job is called again as long as it returns True: there
    is more to do. `after` runs on the loop when the job is done."""

    token: int
    begin: Callable[[], Job | None]
    after: Callable[[], None] | None = None


class RemovalsOwner(Protocol):
    """What the queue asks of the store. Calls, not values: a removal's turn also comes by timers,
    and only the store knows who else is at the files."""

    def removal_may_run(self, token: int) -> bool:
        """What was staged up to the token is durable, and nobody is at the files."""

    def removal_is_urgent(self) -> bool:
        """Room is needed too much to rest."""

    def removal_ended(self) -> None:
        """A job of one has ended: the files are free."""

    def removal_failed(self, error: BaseException) -> None:
        """The disk can no longer be trusted."""


class Removals:
    """The queue."""

    __slots__ = ("_owner", "_queue", "_workers", "begun", "state")

    def __init__(self, workers: Workers, owner: RemovalsOwner) -> None:
        self._workers = workers
        self._owner = owner
        self._queue: deque[Removal] = deque()
        self.state = RemovalState.IDLE
        self.begun = 0
        """Jobs so far."""

    @property
    def is_running(self) -> bool:
        return self.state is RemovalState.RUNNING

    def add(self, removal: Removal) -> None:
        self._queue.append(removal)

    def next(self) -> None:
        """Begin the oldest removal, if it may."""
        while self._queue and self.state is RemovalState.IDLE:
            if not self._owner.removal_may_run(self._queue[0].token):
                return
            removal = self._queue.popleft()
            job = removal.begin()
            if job is not None:
                self._run(removal, job)

    def _run(self, removal: Removal, job: Job) -> None:
        self.state = RemovalState.RUNNING
        self.begun += 1

        def done(result: BaseException | bool | None) -> None:
            self.state = RemovalState.IDLE
            if isinstance(result, BaseException) and is_refused(result):
                self.state = RemovalState.REFUSED
                self._queue.appendleft(Removal(removal.token, lambda: job, removal.after))
                self._workers.call_later(DISK_FULL_RETRY_MS, self._go_on)
            elif isinstance(result, BaseException):
                self._owner.removal_failed(result)
                return
            elif result:
                self.state = RemovalState.RESTING
                self._queue.appendleft(Removal(removal.token, lambda: job, removal.after))
                rest_ms = 0 if self._owner.removal_is_urgent() else REST_MS
                self._workers.call_later(rest_ms, self._go_on)
            elif removal.after is not None:
                removal.after()
            self._owner.removal_ended()

        self._workers.files(job, done)

    def _go_on(self) -> None:
        self.state = RemovalState.IDLE
        self.next()
