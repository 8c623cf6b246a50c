"""Fetch sessions (KIP-227): the server remembers a client's partitions, so that it sends only
changes.

A full fetch (epoch 0) creates a session with its partitions. Each further request carries the
session's id and the next epoch. It names partitions that are new or have another position, and
those to forget; the response contains only partitions with something new. Epoch -1 ends a session.
An unknown id is FETCH_SESSION_ID_NOT_FOUND, a wrong epoch INVALID_FETCH_SESSION_EPOCH; after either
the client starts again with a full fetch. As in Kafka, any client that knows a session's id may use
it: it is not bound to a connection.

The cost of a request follows its changes, not the size of the session. A partition with nothing new
is *quiet*: it subscribes to its log, across requests, and is read when the log wakes it. All others
are `ready`, in the order in which they are served. A partition that returned records moves to the
end, so that none starves when a response is full.

A session that grows beyond `SESSION_PARTITIONS_MAX` ends: that is also the bound of one request,
and a request should cost no more because others came before it. A session that would begin larger
is not opened.

Sessions are bounded in number (`max.incremental.fetch.session.cache.slots`) and by the partitions
in all of them. A new session evicts, in this order: one that was not used for `EVICT_AFTER_NS`; the
smallest of those created that long ago, if it is smaller than the new one; the least recently used
one of the principal that holds most of the exhausted budget, if that is more than the new session's
principal would hold. If there is no place, the client gets session 0 and continues with full
fetches.

Does not depend on requests, logs or responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.shares import Shares

Key = tuple[str | bytes, int]
"""Topic name, or id, and partition."""

EVICT_AFTER_NS = 120_000 * MS
"""Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`."""
EPOCH_MAX = (1 << 31) - 1
SESSION_PARTITIONS_MAX = 10_000
"""Partitions of one session. Those that cannot be read are reported in each response, all in one
turn."""
CLEANED = 64
"""Subscriptions of ended sessions that a request cancels, beside two for each partition of a new
session."""
UNCLEAN_MAX = 2 * SESSION_PARTITIONS_MAX
"""Most such subscriptions."""


class Subscription(Protocol):
    def cancel(self) -> None: ...


class Cached(Protocol):
    """A partition of a session, as the session sees it."""

    key: Key
    wait: Subscription | None


class Reader(Protocol):
    """A request of the session that waits for changes."""

    def wake(self, target: Cached) -> None: ...
    def superseded(self) -> None: ...
    def session_ended(self) -> None: ...


class FetchSession:
    """One session."""

    __slots__ = (
        "asker",
        "created_ns",
        "epoch",
        "id",
        "partitions",
        "reader",
        "ready",
        "used_ns",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, now_ns: int, *, uses_topic_ids: bool, asker: str = ""
    ) -> None:
        self.id = session_id
        self.asker = asker
        """Client that opened it (`RequestContext.asker`). The session counts against that client,
        even if another one uses it."""
        self.epoch = 1
        """Epoch that the next request must carry."""
        self.uses_topic_ids = uses_topic_ids
        self.created_ns = self.used_ns = now_ns
        self.partitions: dict[Key, Cached] = {}
        self.ready: dict[Key, Cached] = {}
        """Partitions that may have changes, in the order in which they are served."""
        self.reader: Reader | None = None

    def advance(self) -> None:
        """Move to the epoch of the next request; after the largest comes 1."""
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1

    def read_by(self, reader: Reader) -> None:
        """Set the request that waits for changes. One that waits already is answered with what it
        has."""
        before, self.reader = self.reader, reader
        if before is not None:
            before.superseded()

    def add(self, target: Cached) -> None:
        """Add a partition, new or with a new position; the next read looks at it."""
        if target.wait is not None:
            target.wait.cancel()
            target.wait = None
        self.partitions[target.key] = target
        self.ready[target.key] = target

    def forget(self, key: Key) -> None:
        """Remove a partition that the client no longer reads."""
        target = self.partitions.pop(key, None)
        if target is not None:
            self.ready.pop(key, None)
            if target.wait is not None:
                target.wait.cancel()
                target.wait = None

    def served(self, target: Cached) -> None:
        """Move a partition that returned records to the end of `ready`."""
        if self.ready.pop(target.key, None) is not None:
            self.ready[target.key] = target

    def quiet(self, target: Cached) -> None:
        """Remove a partition from `ready` until its log wakes it."""
        assert target.wait is not None, target.key
        self.ready.pop(target.key, None)

    def wake(self, target: Cached) -> None:
        """Make a partition ready because its log has changed."""
        target.wait = None
        if self.partitions.get(target.key) is target:
            self.ready[target.key] = target
            if self.reader is not None:
                self.reader.wake(target)

    def close(self) -> dict[Key, Cached]:
        """End the session. Return its partitions, whose subscriptions are to be cancelled. A
        waiting request is answered with what it has, because nothing would wake it."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.session_ended()
        ended, self.partitions, self.ready = self.partitions, {}, {}
        return ended


class FetchSessions:
    """All sessions of a server."""

    def __init__(
        self, slots_max: int, partitions_max: int, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._random_bytes = random_bytes
        self._slots = Shares(slots_max)
        self._partitions = Shares(partitions_max)
        self._sessions: dict[int, FetchSession] = {}
        """By id, least recently used first."""
        self._ended: deque[dict[Key, Cached]] = deque()
        """Partitions of ended sessions whose subscriptions are not cancelled yet. Cancelling a
        thousand takes a millisecond of the loop."""
        self._unclean = 0
        """Number of those partitions."""
        self.evicted = 0
        self.refused = 0
        """Times that no session could be opened for lack of room."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Number of partitions in all sessions."""
        return self._partitions.used

    def create(
        self, partitions: int, now_ns: int, *, uses_topic_ids: bool, asker: str
    ) -> FetchSession | None:
        """Open a session of `asker` for `partitions` partitions. Return None if there is no
        room. Of more than a few, the caller cleans up for each (`clean`)."""
        self.clean(CLEANED)
        while self._short(partitions) is not None:
            if not self._evict(partitions, now_ns) and not self._displace(partitions, asker):
                self.refused += 1
                return None
        session_id = 0
        while not session_id or session_id in self._sessions:
            session_id = int.from_bytes(self._random_bytes(4), "big") & EPOCH_MAX
        session = FetchSession(session_id, now_ns, uses_topic_ids=uses_topic_ids, asker=asker)
        self._sessions[session_id] = session
        self._slots.change(asker, 1)
        return session

    def find(
        self, session_id: int, epoch: int, now_ns: int, *, uses_topic_ids: bool
    ) -> FetchSession | ErrorCode:
        """Return the session of an incremental request and mark it as used, or the error."""
        if self._unclean:
            self.clean(CLEANED)
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.uses_topic_ids is not uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.used_ns = now_ns
        del self._sessions[session_id]
        self._sessions[session_id] = session
        session.advance()
        return session

    def has_room(self, more: int) -> bool:
        """Return True if sessions may get this many more partitions."""
        return self.partitions + more <= self._partitions.limit

    def counted(self, session: FetchSession, more: int) -> None:
        """Note that a session has `more` partitions more, or fewer if negative."""
        self._partitions.change(session.asker, more)

    def remove(self, session_id: int) -> None:
        """End the session of that id, if there is one."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.counted(session, -len(session.partitions))
            self._slots.change(session.asker, -1)
            ended = session.close()
            self._unclean += len(ended)
            self._ended.append(ended)
            self.clean(max(CLEANED, self._unclean - UNCLEAN_MAX))

    def clean(self, count: int) -> None:
        """Cancel up to `count` subscriptions of sessions that have ended."""
        while self._ended and count > 0:
            ended = self._ended[0]
            while ended and count > 0:
                _, target = ended.popitem()
                if target.wait is not None:
                    target.wait.cancel()
                    target.wait = None
                count -= 1
                self._unclean -= 1
            if not ended:
                self._ended.popleft()

    def _short(self, partitions: int) -> Shares | None:
        """Return the budget that is exhausted for a session of that many partitions, or None."""
        if len(self._sessions) >= self._slots.limit:
            return self._slots
        return None if self.has_room(partitions) else self._partitions

    def _displace(self, partitions: int, asker: str) -> bool:
        """End a session of the principal that holds most of the exhausted budget. Return False if
        `asker` would hold as much. The session's client opens another one, or continues without."""
        short = self._short(partitions)
        assert short is not None, partitions
        greediest = short.yields(asker, 1 if short is self._slots else partitions)
        if greediest is None:
            return False
        found = next(one for one in self._sessions.values() if one.asker == greediest)
        self.evicted += 1
        self.remove(found.id)
        return True

    def _evict(self, partitions: int, now_ns: int) -> bool:
        """Make room for a session of that many partitions. Return False if none may be evicted."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        before_ns = now_ns - EVICT_AFTER_NS
        found = oldest
        if oldest.used_ns > before_ns:
            old = [s for s in self._sessions.values() if s.created_ns <= before_ns]
            if not old:
                return False
            found = min(old, key=lambda session: len(session.partitions))
            if len(found.partitions) >= partitions:
                return False
        self.evicted += 1
        self.remove(found.id)
        return True
