"""Fetch sessions (KIP-227): what a client asked for last, so that it sends only changes.

A full fetch (epoch 0) creates a session with its partitions. Each further request carries the
session's id and the next epoch. It names partitions that are new or have another position, and
those to be forgotten; the answer has only partitions with something new. Epoch -1 ends a session.
An unknown id is FETCH_SESSION_ID_NOT_FOUND, a wrong epoch INVALID_FETCH_SESSION_EPOCH; after either
the client starts again with a full fetch. As in Kafka, a session belongs to whoever knows its id,
not to a connection.

The cost of a request follows its changes, not the size of the session. A partition with nothing new
is *quiet*: it subscribes to its log, across requests, and is read when the log wakes it. All others
are `ready`, in the order in which they are served. One that got records goes to the end, so that
none starves when an answer is full.

Sessions are bounded in number (`max.incremental.fetch.session.cache.slots`) and by the partitions
in all of them. A new one evicts one that was not used for `EVICT_AFTER_NS`, else the smallest of
that age, if it is smaller than the new one. Without a place the client gets session 0, and goes on
with full fetches.

Must not know: requests, logs, answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vdl.clock import MS
from vdl.errors import ErrorCode

Key = tuple[str | bytes, int]
"""Topic name, or id, and partition."""

EVICT_AFTER_NS = 120_000 * MS
"""Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`."""
EPOCH_MAX = (1 << 31) - 1


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


class FetchSession:
    """One session."""

    __slots__ = (
        "created_ns",
        "epoch",
        "id",
        "partitions",
        "reader",
        "ready",
        "used_ns",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, now_ns: int, *, uses_topic_ids: bool) -> None:
        self.id = session_id
        self.epoch = 1
        """What the next request has to carry."""
        self.uses_topic_ids = uses_topic_ids
        self.created_ns = self.used_ns = now_ns
        self.partitions: dict[Key, Cached] = {}
        self.ready: dict[Key, Cached] = {}
        """Partitions that may have changes, in the order in which they are served."""
        self.reader: Reader | None = None

    def advance(self) -> None:
        """The next request carries the next epoch; after the largest comes 1."""
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1

    def read_by(self, reader: Reader) -> None:
        """One request at a time: one that waits is answered with what there is."""
        before, self.reader = self.reader, reader
        if before is not None:
            before.superseded()

    def add(self, target: Cached) -> None:
        """A partition, new or with a new position; it is looked at next time."""
        if target.wait is not None:
            target.wait.cancel()
            target.wait = None
        self.partitions[target.key] = target
        self.ready[target.key] = target

    def forget(self, key: Key) -> None:
        """The client does not ask for this partition any more."""
        target = self.partitions.pop(key, None)
        if target is not None:
            self.ready.pop(key, None)
            if target.wait is not None:
                target.wait.cancel()
                target.wait = None

    def served(self, target: Cached) -> None:
        """It got records: it is served last next time."""
        if self.ready.pop(target.key, None) is not None:
            self.ready[target.key] = target

    def quiet(self, target: Cached) -> None:
        """It has no changes until it is woken."""
        assert target.wait is not None, target.key
        self.ready.pop(target.key, None)

    def wake(self, target: Cached) -> None:
        """Its log has changed."""
        target.wait = None
        if self.partitions.get(target.key) is target:
            self.ready[target.key] = target
            if self.reader is not None:
                self.reader.wake(target)

    def close(self) -> None:
        """The session has ended: cancel all subscriptions. Nothing would wake its request, which is
        answered with what there is."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.superseded()
        for key in list(self.partitions):
            self.forget(key)


class FetchSessions:
    """All sessions of a server."""

    def __init__(
        self, slots_max: int, partitions_max: int, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._random_bytes = random_bytes
        self._sessions: dict[int, FetchSession] = {}
        """By id, the least recently used first."""
        self.partitions = 0
        """In all sessions."""
        self.evicted = 0
        self.refused = 0
        """Times there was no place."""

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, partitions: int, now_ns: int, *, uses_topic_ids: bool) -> FetchSession | None:
        """A session for `partitions` partitions; None: there is no place."""
        while (
            len(self._sessions) >= self._slots_max
            or self.partitions + partitions > self._partitions_max
        ):
            if not self._evict(partitions, now_ns):
                self.refused += 1
                return None
        session_id = 0
        while not session_id or session_id in self._sessions:
            session_id = int.from_bytes(self._random_bytes(4), "big") & EPOCH_MAX
        session = FetchSession(session_id, now_ns, uses_topic_ids=uses_topic_ids)
        self._sessions[session_id] = session
        return session

    def find(
        self, session_id: int, epoch: int, now_ns: int, *, uses_topic_ids: bool
    ) -> FetchSession | ErrorCode:
        """The session of an incremental request, which is used by that."""
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
        """Whether sessions may get this many more partitions."""
        return self.partitions + more <= self._partitions_max

    def counted(self, more: int) -> None:
        """A session has this many partitions more, or fewer."""
        self.partitions += more
        assert self.partitions >= 0, self.partitions

    def remove(self, session_id: int) -> None:
        """End a session, if there is one of that id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.counted(-len(session.partitions))
            session.close()

    def _evict(self, partitions: int, now_ns: int) -> bool:
        """Make place for a session of so many partitions; False when nobody gives way."""
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
