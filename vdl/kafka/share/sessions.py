"""Share sessions (KIP-932): what each member of a share group reads from this server.

A member has one session on each server that leads partitions for it, named by group and member. Its
first request, with epoch 0, opens it; each further one carries the next epoch and says only what
changed. Epoch -1 closes it. There is no reading without a session.

A session belongs to its connection: when that is gone, so is the session, and what the member held
is free. Sessions are bounded in number, and by the partitions in all of them. Unlike those of Fetch
none gives way to another: its member's records would be delivered twice for it.

Must not know: requests, records.
"""

from __future__ import annotations

from vdl.errors import ErrorCode

SessionKey = tuple[str, str]
"""(group id, member id)."""
Place = tuple[bytes, int]
"""(topic id, partition)."""

EPOCH_MAX = (1 << 31) - 1
SESSIONS_MAX = 2_000
"""`group.share.max.share.sessions`."""
PARTITIONS_MAX = 100_000
"""In all sessions."""


class ShareSession:
    """One session."""

    __slots__ = ("connection_id", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, connection_id: int) -> None:
        self.key = key
        self.connection_id = connection_id
        """Of its latest request."""
        self.epoch = 1
        """What the next request has to carry."""
        self.partitions: dict[Place, None] = {}
        """In the order in which they are served: whoever got records goes to the end."""

    def served(self, place: Place) -> None:
        """It got records: it is served last next time."""
        if place in self.partitions:
            del self.partitions[place]
            self.partitions[place] = None


class ShareSessions:
    """All sessions of a server."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[int, set[SessionKey]] = {}
        self.partitions = 0
        """In all sessions."""
        self.refused = 0
        """Times there was no place."""

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession | None:
        """The session of a member, whatever its epoch."""
        return self._sessions.get(key)

    def open(self, key: SessionKey, connection_id: int) -> ShareSession | ErrorCode:
        """A new session, after the one before it was closed."""
        assert key not in self._sessions, key
        if len(self._sessions) >= self._sessions_max:
            self.refused += 1
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        session = self._sessions[key] = ShareSession(key, connection_id)
        self._by_connection.setdefault(connection_id, set()).add(key)
        return session

    def use(self, key: SessionKey, epoch: int, connection_id: int) -> ShareSession | ErrorCode:
        """The session of a further request, which moves it on."""
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
        """The member reads these as well; False when there are too many in all."""
        new = [place for place in dict.fromkeys(places) if place not in session.partitions]
        if self.partitions + len(new) > PARTITIONS_MAX:
            return False
        for place in new:
            session.partitions[place] = None
        self.partitions += len(new)
        return True

    def forget(self, session: ShareSession, places: list[Place]) -> list[Place]:
        """The member does not read these any more; which of them it did."""
        gone = [place for place in dict.fromkeys(places) if place in session.partitions]
        for place in gone:
            del session.partitions[place]
        self.partitions -= len(gone)
        return gone

    def close(self, key: SessionKey) -> ShareSession | None:
        """End a session, if there is one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self.partitions -= len(session.partitions)
            self._leave(session)
        return session

    def of_connection(self, connection_id: int) -> list[SessionKey]:
        """The sessions whose latest request came by this connection."""
        return sorted(self._by_connection.get(connection_id, ()))

    def _leave(self, session: ShareSession) -> None:
        keys = self._by_connection[session.connection_id]
        keys.discard(session.key)
        if not keys:
            del self._by_connection[session.connection_id]
