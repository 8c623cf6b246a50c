"""Share sessions (KIP-932): the partitions that each share group member reads from this server.

A member has one session on each server that leads partitions for it, named by group and member. Its
first request, with epoch 0, opens it; each further one carries the next epoch and contains only
changes. Epoch -1 closes it. Reading requires a session.

A session belongs to its connection and ends with it; the member's locks are then released. Sessions
are bounded in number, and by the partitions in all of them. No principal may hold more than three
times what it leaves free of either (`vdl/kafka/shares.py`). Unlike fetch sessions, none is evicted
for another: its member's records would be delivered twice.

Does not depend on requests or records.
"""

from __future__ import annotations

from vdl.errors import ErrorCode
from vdl.kafka.shares import Shares

SessionKey = tuple[str, str]
"""(group id, member id)."""
Place = tuple[bytes, int]
"""(topic id, partition)."""

EPOCH_MAX = (1 << 31) - 1
SESSIONS_MAX = 2_000
"""`group.share.max.share.sessions`."""
PARTITIONS_MAX = 100_000
"""Partitions in all sessions."""
TIMES_OF_FREE = 3


class ShareSession:
    """One session."""

    __slots__ = ("asker", "connection_id", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, connection_id: int, asker: str) -> None:
        self.key = key
        self.asker = asker
        """Client that it counts for."""
        self.connection_id = connection_id
        """Connection of its latest request."""
        self.epoch = 1
        """Epoch that the next request must carry."""
        self.partitions: dict[Place, None] = {}
        """In the order in which they are served: one that returned records moves to the end."""

    def served(self, place: Place) -> None:
        """Move a partition that returned records to the end."""
        if place in self.partitions:
            del self.partitions[place]
            self.partitions[place] = None


class ShareSessions:
    """All sessions of a server."""

    def __init__(
        self, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX
    ) -> None:
        self._slots = Shares(sessions_max, TIMES_OF_FREE)
        self._partitions = Shares(partitions_max, TIMES_OF_FREE)
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[int, set[SessionKey]] = {}
        self.refused = 0
        """Times that no session could be opened for lack of room."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Number of partitions in all sessions."""
        return self._partitions.used

    def get(self, key: SessionKey) -> ShareSession | None:
        """Return the session of a member, whatever its epoch."""
        return self._sessions.get(key)

    def open(
        self, key: SessionKey, connection_id: int, asker: str = ""
    ) -> ShareSession | ErrorCode:
        """Open a session; the one before it must be closed. `asker`: the client that it counts for;
        empty if the room is not shared out."""
        assert key not in self._sessions, key
        if not _has_room(self._slots, asker, 1):
            self.refused += 1
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        self._slots.change(asker, 1)
        session = self._sessions[key] = ShareSession(key, connection_id, asker)
        self._by_connection.setdefault(connection_id, set()).add(key)
        return session

    def use(self, key: SessionKey, epoch: int, connection_id: int) -> ShareSession | ErrorCode:
        """Return the session of a further request and move it to the next epoch, or the error."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.epoch = session.epoch + 1 if session.epoch < EPOCH_MAX else 1
        if session.connection_id != connection_id:
            self._leave(session)
            session.connection_id = connection_id
            self._by_connection.setdefault(connection_id, set()).add(key)
        return session

    def add(self, session: ShareSession, places: list[Place]) -> bool:
        """Add partitions to the session. Return False if there are too many."""
        new = [place for place in dict.fromkeys(places) if place not in session.partitions]
        if new and not _has_room(self._partitions, session.asker, len(new)):
            return False
        for place in new:
            session.partitions[place] = None
        self._partitions.change(session.asker, len(new))
        return True

    def forget(self, session: ShareSession, places: list[Place]) -> list[Place]:
        """Remove partitions from the session. Return those that were in it."""
        gone = [place for place in dict.fromkeys(places) if place in session.partitions]
        for place in gone:
            del session.partitions[place]
        self._partitions.change(session.asker, -len(gone))
        return gone

    def close(self, key: SessionKey) -> ShareSession | None:
        """End a session, if there is one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._slots.change(session.asker, -1)
            self._partitions.change(session.asker, -len(session.partitions))
            self._leave(session)
        return session

    def of_connection(self, connection_id: int) -> list[SessionKey]:
        """Return the sessions whose latest request came from this connection."""
        return sorted(self._by_connection.get(connection_id, ()))

    def _leave(self, session: ShareSession) -> None:
        keys = self._by_connection[session.connection_id]
        keys.discard(session.key)
        if not keys:
            del self._by_connection[session.connection_id]


def _has_room(shares: Shares, asker: str, more: int) -> bool:
    """Return True if there is room, and the asker's share allows it."""
    return shares.may_take(asker, more) if asker else shares.used + more <= shares.limit
