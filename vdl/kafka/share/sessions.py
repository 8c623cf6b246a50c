"""Share sessions (KIP-932): what each member of a share group reads from this server.

A member has one session on each server that leads partitions for it, named by group and member. Its
first request, with epoch 0, opens it; each further one carries the next epoch and says only what
changed. Epoch -1 closes it. There is no reading without a session.

A session belongs to its connection: when that is gone, so is the session, and what the member held
is free. Sessions are bounded in number, and by the partitions in all of them; of both nobody has
more than three times what it leaves free (`vdl/kafka/shares.py`). Unlike those of Fetch none gives
way to another: its member's records would be delivered twice for it.

Must not know: requests, records.
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
"""In all sessions."""
TIMES_OF_FREE = 3


class ShareSession:
    """One session."""

    __slots__ = ("asker", "connection_id", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, connection_id: int, asker: str) -> None:
        self.key = key
        self.asker = asker
        """Whom it counts for."""
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

    def __init__(
        self, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX
    ) -> None:
        self._slots = Shares(sessions_max, TIMES_OF_FREE)
        self._partitions = Shares(partitions_max, TIMES_OF_FREE)
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[int, set[SessionKey]] = {}
        self.refused = 0
        """Times there was no place."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """In all sessions."""
        return self._partitions.used

    def get(self, key: SessionKey) -> ShareSession | None:
        """The session of a member, whatever its epoch."""
        return self._sessions.get(key)

    def open(
        self, key: SessionKey, connection_id: int, asker: str = ""
    ) -> ShareSession | ErrorCode:
        """A new session, after the one before it was closed. `asker`: whom it counts for; empty
        where all are alike, and share nothing out."""
        assert key not in self._sessions, key
        if not _has_room(self._slots, asker, 1):
            self.refused += 1
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        self._slots.change(asker, 1)
        session = self._sessions[key] = ShareSession(key, connection_id, asker)
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
        """The member reads these as well; False when there are too many."""
        new = [place for place in dict.fromkeys(places) if place not in session.partitions]
        if new and not _has_room(self._partitions, session.asker, len(new)):
            return False
        for place in new:
            session.partitions[place] = None
        self._partitions.change(session.asker, len(new))
        return True

    def forget(self, session: ShareSession, places: list[Place]) -> list[Place]:
        """The member does not read these any more; which of them it did."""
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
        """The sessions whose latest request came by this connection."""
        return sorted(self._by_connection.get(connection_id, ()))

    def _leave(self, session: ShareSession) -> None:
        keys = self._by_connection[session.connection_id]
        keys.discard(session.key)
        if not keys:
            del self._by_connection[session.connection_id]


def _has_room(shares: Shares, asker: str, more: int) -> bool:
    """Whether there is room, and it is the asker's."""
    return shares.may_take(asker, more) if asker else shares.used + more <= shares.limit
