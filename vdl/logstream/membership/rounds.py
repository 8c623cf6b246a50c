"""Progress of a group's replicas towards their leader, measured in rounds (thesis §4.2.1).

A round brings a replica the entries that the leader's log held when the round began. The next
begins then. A round shorter than an election timeout shows that the replica follows: the entries it
lacks, some always under steady load, reach it within that time, so as a voter it delays commits no
longer than that. The number of missing entries at one instant does not show that: at thousands of
batches a second hundreds are always in flight.

A replica is overdue after `ROUNDS_MAX` longer rounds, or when it has taken nothing for
`STALLED_TICKS`: it is slower than the producers, or stopped. It is still fed, and has caught up as
soon as a round is short; others need not wait for that.

Rounds begin and end when they are checked, so a round may seem longer than it was, never shorter.
Time is the server's own, as for all timers: a late leader does not count its own lateness.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ids import Index, NodeId, Term
from raft.node import RawNode
from raft.progress import ProgressState

ROUNDS_MAX: Final = 10
"""The thesis' example. The first round may be a copy of terabytes; if a replica is twice as fast as
the producers, each round is half as long as the one before."""
STALLED_TICKS: Final = 1_000
"""Ten seconds: longer than a lost link or the repetition of a snapshot takes."""


@dataclass(slots=True)
class Round:
    """The running round of a replica, and the results of earlier ones."""

    end: Index
    """Last entry of the leader's log when the round began."""
    began: int
    """Tick at which it began."""
    match: Index
    """Match index of the replica at the last check."""
    moved: int
    """Tick at which that was last seen to grow."""
    ended: int = 0
    """Number of rounds that were too long."""
    was_short: bool = False
    """True if the last round took less than an election timeout."""


class Rounds:
    """The rounds of one group's replicas, in one term of its leader."""

    __slots__ = ("_limit", "_of", "_tick", "term")

    def __init__(self, term: Term, *, election_ticks: int) -> None:
        self.term = term
        self._limit = election_ticks
        self._tick = 0
        self._of: dict[NodeId, Round] = {}

    def look(self, node: RawNode, replicas: Iterable[NodeId], tick: int) -> None:
        """Update the rounds of these replicas; forget others.

        The node leads `term`. Its own disk counts as one of the replicas.
        """
        assert node.is_leader, node.id
        assert node.term == self.term, (node.term, self.term)
        self._tick = tick
        self._of = {replica: self._followed(node, replica) for replica in replicas}

    def _followed(self, node: RawNode, replica: NodeId) -> Round:
        tick, last = self._tick, node.last_index
        progress = node.progress(replica)
        found = self._of.get(replica)
        match = Index(0) if progress is None else progress.match
        if found is None:
            found = Round(last, tick, match, tick)
        if match > found.match:
            found.match, found.moved = match, tick
        if progress is None or progress.state is not ProgressState.REPLICATE:
            # It has not reported its log since this leader was elected, or since it returned.
            found.was_short = False
        elif match >= found.end:
            found.was_short = tick - found.began < self._limit
            found.ended += not found.was_short
            found.end, found.began, found.moved = last, tick, tick
        return found

    def has_caught_up(self, replica: NodeId) -> bool:
        """Return True if the last round was short, and the running one is not too long yet."""
        found = self._of.get(replica)
        if found is None:
            return False
        return found.was_short and self._tick - found.began < self._limit

    def is_overdue(self, replica: NodeId) -> bool:
        """Return True if others need not wait for the replica any more."""
        found = self._of.get(replica)
        if found is None:
            return False
        return found.ended >= ROUNDS_MAX or self._tick - found.moved >= STALLED_TICKS
