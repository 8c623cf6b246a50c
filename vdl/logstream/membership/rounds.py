"""Whether a group's replicas have caught up with its leader, by rounds (thesis §4.2.1).

A round brings a replica what the leader's log held when the round began. The next begins then. One
that took less than an election timeout shows that the replica follows: what it lacks, and always
will under steady load, it has within that time, so as a voter it makes nobody wait for longer. How
many entries it lacks at one instant does not show that. At thousands of batches a second there are
always hundreds on their way.

A replica is overdue when `ROUNDS_MAX` rounds were longer, or when it has taken nothing for
`STALLED_TICKS`: it is slower than producers are, or stands still. It is fed on, and has caught up
as soon as a round is short; others need not wait for that.

Rounds begin and end when they are looked at, so one seems longer than it was, never shorter. Time
is the server's own, as for all timers: a leader that is late finds no replica slow for that.

Must not know: what is done with a replica that has caught up, or is overdue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ids import Index, NodeId, Term
from raft.node import RawNode
from raft.progress import ProgressState

ROUNDS_MAX: Final = 10
"""The thesis' example. The first may be a copy of terabytes; of a replica that is twice as fast as
the producers each next one is half as long."""
STALLED_TICKS: Final = 1_000
"""Ten seconds: longer than a lost link or a snapshot that is sent again takes."""


@dataclass(slots=True)
class Round:
    """The round that runs, and what came of those before."""

    end: Index
    """Last entry of the leader's log when it began."""
    began: int
    """At which tick."""
    match: Index
    """What the replica held at the last look."""
    moved: int
    """At which tick that was last seen to grow."""
    ended: int = 0
    """Rounds that were too long."""
    was_short: bool = False
    """Whether the last one took less than an election timeout."""


class Rounds:
    """Of one group, in one term of its leader."""

    __slots__ = ("_limit", "_of", "_tick", "term")

    def __init__(self, term: Term, *, election_ticks: int) -> None:
        self.term = term
        self._limit = election_ticks
        self._tick = 0
        self._of: dict[NodeId, Round] = {}

    def look(self, node: RawNode, replicas: Iterable[NodeId], tick: int) -> None:
        """Follow the rounds of these; others are forgotten. The node leads `term`; its own disk is
        one of those that it brings entries to."""
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
            # It has not shown what it has since this leader came, or since it came back.
            found.was_short = False
        elif match >= found.end:
            found.was_short = tick - found.began < self._limit
            found.ended += not found.was_short
            found.end, found.began, found.moved = last, tick, tick
        return found

    def has_caught_up(self, replica: NodeId) -> bool:
        """Whether its last round was short, and the one that runs is not too long yet."""
        found = self._of.get(replica)
        if found is None:
            return False
        return found.was_short and self._tick - found.began < self._limit

    def is_overdue(self, replica: NodeId) -> bool:
        """Whether others need not wait for it any more."""
        found = self._of.get(replica)
        if found is None:
            return False
        return found.ended >= ROUNDS_MAX or self._tick - found.moved >= STALLED_TICKS
