"""Linearizable reads without a log entry (§8, thesis §6.4).

A read request is given the commit index of the moment it arrives at the leader; it may be answered
once the leader knows that at that moment it was still the leader: when a quorum has answered a
heartbeat sent afterwards. Requests wait in one queue; a heartbeat carries the newest request's
round, and its answers confirm that request and all older ones. A round is named by who asked and
the context it asked with: two who happen to use equal contexts are two requests.

No more than `WAITING_MAX` wait: a leader whose peers are alive, and do not answer, leads on. The
oldest gives way, and gets no answer: it was asked longest ago.

`PendingReads` is that queue and nothing else; who sends what is the leader's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ids import Index, NodeId

WAITING_MAX: Final = 10_000
"""Requests that wait for a round, and as many for the term's first commit."""


@dataclass(slots=True)
class PendingRead:
    """One request that waits for its heartbeat round."""

    context: bytes
    requester: NodeId
    """Who asked: this node or a follower that forwarded it."""
    index: Index
    """Commit index when the request arrived."""
    acks: dict[NodeId, bool] = field(default_factory=dict)
    """Who answered a heartbeat of this round."""


class PendingReads:
    """Read index requests of one leader and term, oldest first."""

    __slots__ = ("_queue", "postponed")

    def __init__(self) -> None:
        self._queue: dict[bytes, PendingRead] = {}
        """By round."""
        self.postponed: list[tuple[NodeId, bytes]] = []
        """(requester, context) of requests from before the term's first commit: until then the
        leader does not know what is committed (§8)."""

    @property
    def last_round(self) -> bytes:
        """Round of the newest request, which heartbeats carry; empty if none waits."""
        return next(reversed(self._queue)) if self._queue else b""

    def add(self, context: bytes, requester: NodeId, index: Index) -> bytes:
        """A request arrived; its round. One of the same requester with a context already waiting is
        the same request again."""
        name = requester.to_bytes(8, "big") + context
        queue = self._queue
        queue.setdefault(name, PendingRead(context, requester, index))
        if len(queue) > WAITING_MAX:
            del queue[next(iter(queue))]
        return name

    def postpone(self, requester: NodeId, context: bytes) -> None:
        """A request arrived before the term's first commit."""
        self.postponed.append((requester, context))
        if len(self.postponed) > WAITING_MAX:
            del self.postponed[0]

    def acknowledge(self, peer: NodeId, name: bytes) -> dict[NodeId, bool]:
        """`peer` answered the heartbeat of a round; everyone who has, {} if none waits."""
        read = self._queue.get(name)
        if read is None:
            return {}
        read.acks[peer] = True
        return read.acks

    def confirm(self, name: bytes) -> list[PendingRead]:
        """Remove and return the request of a round and all older ones."""
        confirmed: list[PendingRead] = []
        if name not in self._queue:
            return confirmed
        for older in list(self._queue):
            confirmed.append(self._queue.pop(older))
            if older == name:
                break
        return confirmed
