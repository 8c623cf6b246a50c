"""Connections that have to log in and have not.

A stranger costs a server a connection and little else (`frontend.py`), but there may be very many
strangers. So few are open at a time, `LOGINS_MAX`. One more costs the address that has most of them
its oldest: an address that floods a server displaces its own connections, and others log in.

Must not know: how clients log in, what else bounds connections.
"""

from __future__ import annotations

from collections import Counter

from vdl.kafka.connections.client_session import ClientSession

LOGINS_MAX = 1_024
"""Connections that are open and have not logged in, where that is asked for."""


class UnprovedSessions:
    """See the module."""

    __slots__ = ("_by_host", "_sessions", "displaced")

    def __init__(self) -> None:
        self._sessions: dict[ClientSession, None] = {}
        """Oldest first. Invariant: `LOGINS_MAX` at the most."""
        self._by_host: Counter[str] = Counter()
        """How many of them each address has. Invariant: no address has none."""
        self.displaced = 0
        """How many had to go for others."""

    def add(self, session: ClientSession) -> None:
        """A new session; another one may have to go for it, and is removed as it ends."""
        if len(self._sessions) >= LOGINS_MAX:
            greedy = self._by_host.most_common(1)[0][0]
            oldest = next(one for one in self._sessions if one.info.peer_host == greedy)
            self.displaced += 1
            oldest.abort("displaced: too many logins are under way")
        self._sessions[session] = None
        self._by_host[session.info.peer_host] += 1

    def remove(self, session: ClientSession) -> None:
        """This one has logged in, or is gone; it may never have had to."""
        if session in self._sessions:
            del self._sessions[session]
            host = session.info.peer_host
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]
