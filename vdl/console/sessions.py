"""Sessions of browsers, and the slowing of guesses at their login.

A session keeps the credential of its user in memory, because each connection to a server logs in
anew: a session ends at the next login after its user was deleted or got another password. It also
ends after a time without questions, after half a day, and with the process. On a set without logins
a session has no user; it only counts the questions of one browser.

The servers slow guesses by user and address (`vdl/kafka/security/login_failures.py`). All users of
a console come from one address there, so the console refuses earlier: strangers at its login page
must not lock the users of this machine out of the servers.

Does not depend on HTTP, or on what is asked.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from rpc.newcomers import network_of
from vdl.console.clients import ConsoleClient
from vdl.console.problems import ConsoleError
from vdl.kafka.security.login_failures import FORGET_SECONDS, KNOWN_MAX, NAME_CHARS_MAX

SESSIONS_MAX: Final = 64
SESSIONS_PER_OWNER_MAX: Final = 8
IDLE_SECONDS: Final = 1_800
LIFETIME_SECONDS: Final = 43_200
CONNECTION_SECONDS: Final = 30
"""Age at which a connection is replaced, so that its user logs in again."""
CONNECTION_IDLE_SECONDS: Final = 10
CONNECTIONS_KEPT_MAX: Final = 4
MEMORY_SECONDS: Final = 2
"""Time for which an answer of the servers may be used again in one session."""

NAME_FAILURES_MAX: Final = 8
"""Fewer than those after which a server locks a name (`FREE`)."""
ADDRESS_FAILURES_MAX: Final = 64
FAILURES_SECONDS: Final = FORGET_SECONDS + 60
"""Time without a failure after which those of a name are forgotten: later than by the servers."""
_KNOWN_MAX: Final = KNOWN_MAX


@dataclass(slots=True, eq=False)
class Session:
    """One browser. Questions of it run in several threads, which borrow its connections."""

    key: str
    user: str
    """Empty: there are no logins."""
    password: str = field(repr=False)
    mechanism: str
    owner: str
    """User or, without logins, network; sessions are counted by it."""
    created_s: float
    used_s: float
    has_ended: bool = False
    _kept: list[tuple[float, float, tuple[str, int], ConsoleClient]] = field(default_factory=list)
    """(time of login, time of last use, address, connection) of idle connections."""
    _memory: dict[str, tuple[float, Any]] = field(default_factory=dict)
    _cancels: list[Callable[[], None]] = field(default_factory=list)
    """Ends of the questions that run."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def ending(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Call `cancel` if the session ends meanwhile, in the thread that ends it."""
        with self._lock:
            self._cancels.append(cancel)
        try:
            yield
        finally:
            with self._lock:
                self._cancels.remove(cancel)

    def borrow(self, address: tuple[str, int], now_s: float) -> tuple[float, ConsoleClient] | None:
        """Return (time of login, connection) of an idle connection, which is no longer kept."""
        with self._lock:
            for found in self._kept:
                if found[2] == address and now_s - found[0] < CONNECTION_SECONDS:
                    self._kept.remove(found)
                    return found[0], found[3]
        return None

    def give_back(
        self, address: tuple[str, int], login_s: float, client: ConsoleClient, now_s: float
    ) -> None:
        """Keep a connection, or close it if there are enough."""
        with self._lock:
            is_kept = not self.has_ended and len(self._kept) < CONNECTIONS_KEPT_MAX
            if is_kept:
                self._kept.append((login_s, now_s, address, client))
        if not is_kept:
            client.close()

    def remembered(self, name: str, now_s: float) -> Any | None:
        """Return what was remembered, if it is recent."""
        with self._lock:
            found = self._memory.get(name)
        return None if found is None or now_s - found[0] > MEMORY_SECONDS else found[1]

    def remember(self, name: str, what: Any, now_s: float) -> None:
        """Remember something for a moment. There are few names."""
        with self._lock:
            self._memory[name] = now_s, what

    def sweep(self, now_s: float) -> None:
        """Close old connections and forget old answers."""
        with self._lock:
            old = [
                found
                for found in self._kept
                if now_s - found[1] > CONNECTION_IDLE_SECONDS
                or now_s - found[0] > CONNECTION_SECONDS
            ]
            self._kept = [found for found in self._kept if found not in old]
            self._memory = {
                name: found
                for name, found in self._memory.items()
                if now_s - found[0] <= MEMORY_SECONDS
            }
        for found in old:
            found[3].close()

    def end(self) -> None:
        """Forget the credential, end the questions, and close the connections."""
        with self._lock:
            self.has_ended = True
            self.password = ""
            cancels = list(self._cancels)
            kept, self._kept = self._kept, []
            self._memory.clear()
        for cancel in cancels:
            cancel()
        for found in kept:
            found[3].close()


class Sessions:
    """All sessions, the least recently used first. Used by the loop alone."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._by_key: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def open(self, user: str, password: str, mechanism: str, host: str) -> Session:
        """Return a new session. It displaces the least recently used of the owner with most, if
        there are too many."""
        owner = f"user {user}" if user else f"network {network_of(host)}"
        counts: dict[str, int] = {}
        for one in self._by_key.values():
            counts[one.owner] = counts.get(one.owner, 0) + 1
        if counts.get(owner, 0) >= SESSIONS_PER_OWNER_MAX:
            self._end_oldest(owner)
        elif len(self._by_key) >= SESSIONS_MAX:
            self._end_oldest(max(counts, key=lambda name: counts[name]))
        now_s = self._now_s()
        session = Session(secrets.token_urlsafe(32), user, password, mechanism, owner, now_s, now_s)
        self._by_key[session.key] = session
        return session

    def _end_oldest(self, owner: str) -> None:
        self.end(next(one for one in self._by_key.values() if one.owner == owner))

    def find(self, key: str) -> Session | None:
        """Return the session with a key, which is now used, unless it has ended."""
        session = self._by_key.get(key)
        if session is None:
            return None
        now_s = self._now_s()
        if session.has_ended or _is_over(session, now_s):
            self.end(session)
            return None
        session.used_s = now_s
        self._by_key.move_to_end(key)
        return session

    def end(self, session: Session) -> None:
        """End a session."""
        self._by_key.pop(session.key, None)
        session.end()

    def end_alike(self, session: Session) -> None:
        """End all sessions with the same credential, which is refused now: each would fail once
        more at the servers."""
        same = (session.user, session.password, session.mechanism)
        for one in list(self._by_key.values()):
            if (one.user, one.password, one.mechanism) == same:
                self.end(one)
        self.end(session)

    def sweep(self) -> None:
        """End sessions whose time is over, and let go what the others no longer need."""
        now_s = self._now_s()
        for session in list(self._by_key.values()):
            if session.has_ended or _is_over(session, now_s):
                self.end(session)
            else:
                session.sweep(now_s)


def _is_over(session: Session, now_s: float) -> bool:
    return now_s - session.used_s > IDLE_SECONDS or now_s - session.created_s > LIFETIME_SECONDS


@dataclass(slots=True)
class _Guesses:
    """Failed logins of one name, counted as the servers do."""

    count: int = 0
    last_s: float = 0.0
    """Time of the last failure, or of the last beginning of a login."""
    pending: int = 0
    """Logins that have begun and not ended; they are in `count`."""
    failed: int = 0
    """All failures so far."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A login that has begun. `failed_before`: failures of its name until then."""

    user: str
    network: str
    failed_before: int


class LoginThrottle:
    """Failed logins by user and by address.

    The failures of a user are forgotten only when the servers forget theirs: after a successful
    login, or after a time without any. Those of an address are forgotten one by one.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._by_user: OrderedDict[str, _Guesses] = OrderedDict()
        """The one with the oldest last failure first."""
        self._by_network: OrderedDict[str, deque[float]] = OrderedDict()
        """Times, the network with the oldest last failure first."""

    def __len__(self) -> int:
        return len(self._by_user) + len(self._by_network)

    def check(self, user: str, host: str) -> None:
        """Raise ConsoleError if there were too many failures."""
        now_s = self._now_s()
        self.sweep()
        found = self._by_user.get(_short(user))
        if found is not None and found.count >= NAME_FAILURES_MAX:
            _refuse(found.last_s + FAILURES_SECONDS - now_s)
        times = self._by_network.get(network_of(host), deque())
        while times and times[0] + FAILURES_SECONDS < now_s:
            times.popleft()
        if len(times) >= ADDRESS_FAILURES_MAX:
            _refuse(times[0] + FAILURES_SECONDS - now_s)

    def begin(self, user: str, host: str) -> Attempt:
        """Count a login as failed until it has succeeded: guesses at the same time count, too."""
        now_s = self._now_s()
        user, network = _short(user), network_of(host)
        found = self._by_user.setdefault(user, _Guesses())
        found.count += 1
        found.pending += 1
        found.last_s = now_s
        self._by_user.move_to_end(user)
        self._by_network.setdefault(network, deque(maxlen=ADDRESS_FAILURES_MAX)).append(now_s)
        self._by_network.move_to_end(network)
        for known in (self._by_user, self._by_network):
            while len(known) > _KNOWN_MAX:
                known.popitem(last=False)
        return Attempt(user, network, found.failed)

    def failed(self, attempt: Attempt) -> None:
        """End a login that a server has refused, or may have."""
        found = self._by_user.get(attempt.user)
        if found is not None:
            found.pending = max(0, found.pending - 1)
            found.failed += 1
            found.last_s = self._now_s()
            self._by_user.move_to_end(attempt.user)

    def succeeded(self, attempt: Attempt) -> None:
        """End a login that a server has accepted. It forgets the failures before it."""
        found = self._by_user.get(attempt.user)
        if found is not None:
            found.pending = max(0, found.pending - 1)
            found.count = max(0, found.pending + found.failed - attempt.failed_before)
            self._drop_if_none(attempt.user, found)
        self._take_back(attempt.network)

    def not_asked(self, attempt: Attempt) -> None:
        """End a login that no server has judged."""
        found = self._by_user.get(attempt.user)
        if found is not None:
            found.pending = max(0, found.pending - 1)
            found.count -= 1
            self._drop_if_none(attempt.user, found)
        self._take_back(attempt.network)

    def sweep(self) -> None:
        """Forget what the servers have forgotten."""
        over_s = self._now_s() - FAILURES_SECONDS
        while self._by_user and next(iter(self._by_user.values())).last_s < over_s:
            self._by_user.popitem(last=False)
        while self._by_network:
            network, times = next(iter(self._by_network.items()))
            while times and times[0] < over_s:
                times.popleft()
            if times:
                return
            del self._by_network[network]

    def also_failed(self, user: str) -> None:
        """Count the refusal of a session's credential, which had been accepted before."""
        user = _short(user)
        found = self._by_user.setdefault(user, _Guesses())
        found.count += 1
        found.failed += 1
        found.last_s = self._now_s()
        self._by_user.move_to_end(user)

    def _drop_if_none(self, user: str, found: _Guesses) -> None:
        if found.count <= 0:
            self._by_user.pop(user, None)

    def _take_back(self, network: str) -> None:
        times = self._by_network.get(network)
        if times:
            times.pop()
            if not times:
                del self._by_network[network]


def _refuse(wait_s: float) -> NoReturn:
    seconds = max(1, int(wait_s) + 1)
    raise ConsoleError("too_many", f"too many failed logins; wait {seconds} s", retry_after=seconds)


def _short(user: str) -> str:
    return user[:NAME_CHARS_MAX]
