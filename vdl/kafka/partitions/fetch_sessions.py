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

A session that grows beyond `SESSION_PARTITIONS_MAX` ends: one request may name as many, and should
cost no more because others came before it. One that would begin so is not opened.

Sessions are bounded in number (`max.incremental.fetch.session.cache.slots`) and by the partitions
in all of them. A new one evicts one that was not used for `EVICT_AFTER_NS`, else the smallest of
that age, if it is smaller than the new one, else the least recently used one of the principal that
has most of what is short, if that has more than the new one's would. Without a place the client
gets session 0, and goes on with full fetches.

Must not know: requests, logs, answers.
"""

from __future__ import annotations

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
"""Of one session. Those that cannot be read are told of with each answer: all in one turn."""


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
        """Who opened it (`RequestContext.asker`); it counts for that, whoever uses it."""
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
        self._random_bytes = random_bytes
        self._slots = Shares(slots_max)
        self._partitions = Shares(partitions_max)
        self._sessions: dict[int, FetchSession] = {}
        """By id, the least recently used first."""
        self.evicted = 0
        self.refused = 0
        """Times there was no place."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """In all sessions."""
        return self._partitions.used

    def create(
        self, partitions: int, now_ns: int, *, uses_topic_ids: bool, asker: str
    ) -> FetchSession | None:
        """A session of `asker` for `partitions` partitions; None: there is no place."""
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
        return self.partitions + more <= self._partitions.limit

    def counted(self, session: FetchSession, more: int) -> None:
        """A session has this many partitions more, or fewer."""
        self._partitions.change(session.asker, more)

    def remove(self, session_id: int) -> None:
        """End a session, if there is one of that id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.counted(session, -len(session.partitions))
            self._slots.change(session.asker, -1)
            session.close()

    def _short(self, partitions: int) -> Shares | None:
        """What there is too little of for a session of so many partitions; None: nothing."""
        if len(self._sessions) >= self._slots.limit:
            return self._slots
        return None if self.has_room(partitions) else self._partitions

    def _displace(self, partitions: int, asker: str) -> bool:
        """End a session of the principal that has most of what is short; False when `asker` would
        have as much. Its client opens another one, or goes on without."""
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
