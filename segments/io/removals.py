"""Removal of files of logs that were reset, trimmed or deleted: one at a time, in order.

A removal begins once the journal record that requires it is durable, and while no other work uses
the files. A full disk may refuse even a removal (a file system that writes before it frees); it is
then retried. Removing a hundred thousand files takes minutes, so a job removes a part and returns
that there is more, and checkpoints get their turn before it continues.

A repair of damaged entries waits in the same queue, because it also needs exclusive use of files;
so does room for a large entry, before all others.

Does not depend on what is removed.
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
"""Files removed before other work gets its turn."""
REST_MS = 200
"""Pause between two parts of a removal; a part of a checkpoint becomes due within it."""


class RemovalState(Enum):
    """State of the queue."""

    IDLE = auto()
    RUNNING = auto()
    """A thread runs a job."""
    RESTING = auto()
    """A job has more to do: other work may use the files for a while."""
    REFUSED = auto()
    """A full disk refused a job. It is retried each second."""


@dataclass(slots=True)
class Removal:
    """An entry of the queue.

    `begin` is called when its turn comes and returns the job for the pool, or None if the job has
    become pointless. The job is called again as long as it returns True, which means that there is
    more to do. `after` runs on the loop when the job is done.
    """

    token: int
    begin: Callable[[], Job | None]
    after: Callable[[], None] | None = None


class RemovalsOwner(Protocol):
    """Methods that the queue requires of the store.

    Calls rather than values: a removal's turn also comes by timers, and only the store knows which
    other work uses the files.
    """

    def removal_may_run(self, token: int) -> bool:
        """Return True if records up to the token are durable and no other work uses the files."""

    def removal_is_urgent(self) -> bool:
        """Return True if space is needed too urgently to pause."""

    def removal_ended(self) -> None:
        """React to the end of a job: the files are free."""

    def removal_failed(self, error: BaseException) -> None:
        """React to a disk that can no longer be trusted."""


class Removals:
    """The queue of removals."""

    __slots__ = ("_owner", "_workers", "begun", "queue", "state")

    def __init__(self, workers: Workers, owner: RemovalsOwner) -> None:
        self._workers = workers
        self._owner = owner
        self.queue: deque[Removal] = deque()
        """Removals that wait, oldest first. Read only for others."""
        self.state = RemovalState.IDLE
        self.begun = 0
        """Number of jobs begun."""

    @property
    def is_running(self) -> bool:
        return self.state is RemovalState.RUNNING

    def add(self, removal: Removal) -> None:
        self.queue.append(removal)

    def add_first(self, removal: Removal) -> None:
        self.queue.appendleft(removal)

    def next(self) -> None:
        """Begin the oldest removal, if it may run."""
        while self.queue and self.state is RemovalState.IDLE:
            if not self._owner.removal_may_run(self.queue[0].token):
                return
            removal = self.queue.popleft()
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
                self.queue.appendleft(Removal(removal.token, lambda: job, removal.after))
                self._workers.call_later(DISK_FULL_RETRY_MS, self._go_on)
            elif isinstance(result, BaseException):
                self._owner.removal_failed(result)
                return
            elif result:
                self.state = RemovalState.RESTING
                self.queue.appendleft(Removal(removal.token, lambda: job, removal.after))
                rest_ms = 0 if self._owner.removal_is_urgent() else REST_MS
                self._workers.call_later(rest_ms, self._go_on)
            elif removal.after is not None:
                removal.after()
            self._owner.removal_ended()

        self._workers.files(job, done)

    def _go_on(self) -> None:
        self.state = RemovalState.IDLE
        self.next()
