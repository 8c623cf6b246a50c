"""Jobs that wait for their turn, at most one of a key, while at most one of each key runs.

The key says for whom a job is. A second job of a key takes the place of the one that waits; while
one of that key runs, it waits behind it. So whoever asks again and again has one job in hand and
one to come, and what it no longer needs can be withdrawn.

Must not know: when a job may begin, what it does.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Job = TypeVar("Job")
Terms = TypeVar("Terms")


class KeyedJobs(Generic[Job, Terms]):
    """See the module. `Terms` is what a job runs on; whoever begins it says so, and is told again
    at its end."""

    __slots__ = ("_behind", "_running", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Hashable, Job] = {}
        """In their order; read-only to others. Invariant: no key is also in `_running`."""
        self._running: dict[Hashable, Terms] = {}
        self._behind: dict[Hashable, Job] = {}
        """What waits for the job of its key that runs. Invariant: all keys are in `_running`."""

    def add(self, key: Hashable, job: Job) -> bool:
        """A job for this key, in place of the one that waits. False: it waits behind one that
        runs."""
        if key in self._running:
            self._behind[key] = job
            return False
        self.waiting[key] = job
        return True

    def withdraw(self, key: Hashable) -> None:
        """The job of this key is not needed any more: it does not run, unless it has begun."""
        self.waiting.pop(key, None)
        self._behind.pop(key, None)

    def begin(self, key: Hashable, terms: Terms) -> Job:
        """The waiting job of this key runs from now on, until `end`."""
        job = self.waiting.pop(key)
        assert key not in self._running, key
        self._running[key] = terms
        return job

    def end(self, key: Hashable) -> tuple[Terms, Job | None]:
        """The job of this key that ran is over: what it ran on, and the one behind it, which waits
        now."""
        terms = self._running.pop(key)
        behind = self._behind.pop(key, None)
        if behind is not None:
            self.waiting[key] = behind
        return terms, behind
