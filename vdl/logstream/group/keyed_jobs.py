"""A queue of jobs by key: at most one waits and at most one runs of each key.

The key stands for the party that a job serves. A second job of a key replaces the one that waits;
while one of that key runs, it waits behind it. So a caller that requests repeatedly has at most one
job running and one waiting, and a job that is not needed any more can be withdrawn.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Job = TypeVar("Job")
Terms = TypeVar("Terms")


class KeyedJobs(Generic[Job, Terms]):
    """A queue of jobs by key.

    `Terms` are the conditions under which a job runs: given when it begins and returned when it
    ends.
    """

    __slots__ = ("_behind", "_running", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Hashable, Job] = {}
        """Waiting jobs in order; read-only to others. Invariant: no key is also in `_running`."""
        self._running: dict[Hashable, Terms] = {}
        self._behind: dict[Hashable, Job] = {}
        """Jobs that wait for the running one of their key. Invariant: all keys are in
        `_running`."""

    def add(self, key: Hashable, job: Job) -> bool:
        """Add a job in place of the waiting one of its key.

        Return False if it waits behind a running one.
        """
        if key in self._running:
            self._behind[key] = job
            return False
        self.waiting[key] = job
        return True

    def withdraw(self, key: Hashable) -> None:
        """Drop the job of this key, unless it has begun."""
        self.waiting.pop(key, None)
        self._behind.pop(key, None)

    def begin(self, key: Hashable, terms: Terms) -> Job:
        """Start the waiting job of this key, which runs until `end`."""
        job = self.waiting.pop(key)
        assert key not in self._running, key
        self._running[key] = terms
        return job

    def end(self, key: Hashable) -> tuple[Terms, Job | None]:
        """End the running job of this key. Return its terms and the job behind it.

        The latter waits now.
        """
        terms = self._running.pop(key)
        behind = self._behind.pop(key, None)
        if behind is not None:
            self.waiting[key] = behind
        return terms, behind
