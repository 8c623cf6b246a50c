"""Pending requests with a deadline: one type, and one way to end those that waited for too long.

Each queue knows what completes its requests (a committed index, a confirmed round, a leader) and
the answer if that does not happen in time. Deadlines are checked ten times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence
from typing import Generic, Protocol, TypeVar

from ids import NO_INDEX, NO_TERM, Index, Term

Answer = TypeVar("Answer")
Told_contra = TypeVar("Told_contra", contravariant=True)


class Pending(Generic[Answer]):
    """A pending request. Invariant: `done` is called once, and it is not in its queue then."""

    __slots__ = ("deadline_ns", "done", "index", "term")

    def __init__(
        self,
        deadline_ns: int,
        done: Callable[[Answer], None],
        *,
        index: Index = NO_INDEX,
        term: Term = NO_TERM,
    ) -> None:
        self.deadline_ns = deadline_ns
        self.done = done
        self.index = index
        """Index of the entry whose commit or application completes the request, if there is one."""
        self.term = term
        """Term in which this server appended the entry as leader; 0 if it did not, or if it does
        not count."""


class HasDeadline(Protocol):
    """`Pending`, or another request with a deadline."""

    deadline_ns: int


Waiting = TypeVar("Waiting", bound=HasDeadline)


def take_late(queue: MutableSequence[Waiting], now_ns: int) -> list[Waiting]:
    """Remove and return the requests whose deadline has passed. The order is kept."""
    late = [one for one in queue if one.deadline_ns <= now_ns]
    if late:
        left = [one for one in queue if one.deadline_ns > now_ns]
        queue.clear()
        queue.extend(left)
    return late


class Waits(HasDeadline, Protocol[Told_contra]):
    """`Pending`, or another request with a deadline that takes an answer of this type."""

    @property
    def done(self) -> Callable[[Told_contra], None]: ...


def end_all(waiting: Iterable[Waits[Told_contra]], answer: Told_contra) -> None:
    """Give all of these the same answer, in order."""
    for one in waiting:
        one.done(answer)
