"""Contradictory messages of peers: counted, and logged from time to time.

Such a message is dropped where it is found, and has no other effect: one of the two replicas is
faulty, and all other groups of that server go on.

Does not depend on the content of messages.
"""

from __future__ import annotations

from ids import GroupId, ServerId
from vdl.clock import MS
from vdl.logstream.state import HostState

TELL_NS = 10_000 * MS
"""Minimum interval of log messages: each heartbeat may bring a contradiction."""


class Contradictions:
    """Contradictions of all peers of one server."""

    __slots__ = ("_state", "_tell_ns")

    def __init__(self, state: HostState) -> None:
        self._state = state
        self._tell_ns = 0
        """Time before which none is logged again."""

    def found(self, server_id: ServerId, group_id: GroupId, *, message: str, says: str) -> None:
        """Count a peer's message that contradicts itself or the known state of a group."""
        state, stats = self._state, self._state.stats
        stats.contradictions += 1
        stats.contradicted_ns = now_ns = state.clock.now_ns()
        if now_ns < self._tell_ns:
            return
        self._tell_ns = now_ns + TELL_NS
        state.log.error(
            "peer_contradicts",
            server=server_id,
            partition=state.told_of(group_id),
            message=message,
            says=says,
            in_all=stats.contradictions,
            meaning="one of the two replicas is faulty, or has lost acknowledged data",
        )
