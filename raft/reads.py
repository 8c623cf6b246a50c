"""Linearizable reads without a log entry (§8, thesis §6.4).

A read request gets the commit index at its arrival at the leader. It may be answered once the
leader knows that it was still the leader at that moment: when a quorum has answered a heartbeat
sent afterwards. Requests wait in one queue. A heartbeat carries the newest request's round, and its
answers confirm that request and all older ones. A round is named by requester and context: equal
contexts of two requesters are two requests.

At most `WAITING_MAX` requests wait, because a leader whose peers are alive but do not answer keeps
leading. Beyond that the oldest request is dropped without an answer.

`PendingReads` is only that queue. Sending is up to the leader.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ids import Index, NodeId

WAITING_MAX: Final = 10_000
"""Limit of requests that wait for a round, and of those that wait for the term's first commit."""


@dataclass(slots=True)
class PendingRead:
    """One request that waits for its heartbeat round."""

    context: bytes
    requester: NodeId
    """Node that sent the request: this node or a follower that forwarded it."""
    index: Index
    """Commit index when the request arrived."""
    acks: dict[NodeId, bool] = field(default_factory=dict)
    """Nodes that answered a heartbeat of this round."""


class PendingReads:
    """Read index requests of one leader and term, oldest first."""

    __slots__ = ("_queue", "last_round", "postponed")

    def __init__(self) -> None:
        self._queue: dict[bytes, PendingRead] = {}
        """Pending requests by round."""
        self.last_round = b""
        """Round of the newest request, carried by heartbeats; empty if none waits."""
        self.postponed: list[tuple[NodeId, bytes]] = []
        """(requester, context) of requests from before the term's first commit: until then the
        leader does not know what is committed (§8)."""

    def add(self, context: bytes, requester: NodeId, index: Index) -> bytes:
        """Add a request and return its round.

        A request with the same requester and context as a waiting one is the same request.
        """
        name = requester.to_bytes(8, "big") + context
        queue = self._queue
        queue.setdefault(name, PendingRead(context, requester, index))
        if len(queue) > WAITING_MAX:
            del queue[next(iter(queue))]
        self.last_round = next(reversed(queue))
        return name

    def postpone(self, requester: NodeId, context: bytes) -> None:
        """Add a request that arrived before the term's first commit."""
        self.postponed.append((requester, context))
        if len(self.postponed) > WAITING_MAX:
            del self.postponed[0]

    def acknowledge(self, peer: NodeId, name: bytes) -> dict[NodeId, bool]:
        """Record `peer`'s answer in a round and return all answers; {} if no request waits."""
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
        if not self._queue:
            self.last_round = b""
        return confirmed
