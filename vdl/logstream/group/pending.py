"""Whoever waits for an answer, with a deadline: one type, and one way to end what has waited for
too long.

Each queue knows what ends its waits in time (an index that is committed, a round that is confirmed,
a leader) and what is said when that does not come. Deadlines are looked at ten times a second.

Must not know: what is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence
from typing import Generic, Protocol, TypeVar

from ids import NO_INDEX, NO_TERM, Index, Term

Answer = TypeVar("Answer")
Told_contra = TypeVar("Told_contra", contravariant=True)


class Pending(Generic[Answer]):
    """Somebody who waits. Invariant: `done` is called once, and it is not in its queue then."""

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
        """Of the entry that is waited for, where that is what ends the wait."""
        self.term = term
        """In which it was appended by this server as leader; 0 when it was not, or does not
        count."""


class HasDeadline(Protocol):
    """`Pending`, or whatever else waits with a deadline."""

    deadline_ns: int


Waiting = TypeVar("Waiting", bound=HasDeadline)


def take_late(queue: MutableSequence[Waiting], now_ns: int) -> list[Waiting]:
    """Take out those whose deadline has passed, in their order; the rest keeps its own."""
    late = [one for one in queue if one.deadline_ns <= now_ns]
    if late:
        left = [one for one in queue if one.deadline_ns > now_ns]
        queue.clear()
        queue.extend(left)
    return late


class Waits(HasDeadline, Protocol[Told_contra]):
    """`Pending`, or whatever else waits with a deadline for an answer of this kind."""

    @property
    def done(self) -> Callable[[Told_contra], None]: ...


def end_all(waiting: Iterable[Waits[Told_contra]], answer: Told_contra) -> None:
    """All of these get the same answer, in their order."""
    for one in waiting:
        one.done(answer)
