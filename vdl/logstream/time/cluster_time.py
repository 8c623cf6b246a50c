"""The agreed time (`agreed_time.py`) on one server's clock.

It logs when the server's own wall clock disagrees. Does not depend on how clocks travel, or what is
stamped or deleted.
"""

from __future__ import annotations

from collections.abc import Collection

from ids import ServerId
from vdl.clock import Clock
from vdl.log import Log
from vdl.logstream.time.agreed_time import AWAY_MS, AgreedTime


class ClusterTime:
    """The agreed time of one server."""

    __slots__ = ("_agreed", "_clock", "_disagrees", "_log", "_voters")

    def __init__(
        self, clock: Clock, *, voters: Collection[ServerId], own: ServerId, hold_ms: int, log: Log
    ) -> None:
        """See `AgreedTime`. `voters`: the servers whose clocks count at first; `own`: this one."""
        self._agreed = AgreedTime(len(voters), counts_own=own in voters, hold_ms=hold_ms)
        self._voters = frozenset(voters)
        self._clock = clock
        self._log = log
        self._disagrees = False
        self.look()

    def now_ms(self) -> int:
        """Return milliseconds since 1970, to stamp what is written."""
        clock = self._clock
        return self._agreed.now_ms(clock.wall_ms(), clock.now_ns())

    def settled_ms(self) -> int:
        """Return milliseconds since 1970, to delete by: never later than a majority's clocks."""
        now_ns = self._clock.now_ns()
        self._agreed.look(self._clock.wall_ms(), now_ns)
        return self._agreed.settled_ms(now_ns)

    @property
    def ahead_ms(self) -> int:
        """Lead of the own wall clock over the agreed time."""
        return self._agreed.ahead_ms

    @property
    def is_sure(self) -> bool:
        """True if a majority's clocks are known and agree."""
        return self._agreed.is_sure

    @property
    def moves_forward(self) -> int:
        """See `AgreedTime.moves_forward`."""
        return self._agreed.moves_forward

    def follow(
        self, voters: Collection[ServerId], own: ServerId, linked: Collection[ServerId]
    ) -> None:
        """Count the clocks of these voters of the catalog, which are as many as before.

        A server that gave its vote to another no longer counts, and the other does from now on.
        """
        after = frozenset(voters)
        if after == self._voters:
            return
        before, self._voters = self._voters, after
        for server_id in sorted(before - after):
            self._agreed.unlinked(server_id)
        for server_id in sorted((after - before).intersection(linked)):
            self._agreed.linked(server_id)
        self._agreed.count_own(own in after)

    def linked(self, server_id: ServerId) -> None:
        """Start a session with a server whose clock counts."""
        self._agreed.linked(server_id)

    def unlinked(self, server_id: ServerId) -> None:
        """End the session."""
        self._agreed.unlinked(server_id)

    def received(self, server_id: ServerId, wall_ms: int, echo_ns: int) -> None:
        """See `AgreedTime.received`."""
        clock = self._clock
        self._agreed.received(
            server_id, wall_ms, echo_ns, wall_ms=clock.wall_ms(), now_ns=clock.now_ns()
        )

    def remember(self, ms: int) -> None:
        """See `AgreedTime.remember`."""
        self._agreed.remember(ms)

    def look(self) -> None:
        """Check the clocks. Use: ten times a second."""
        self._agreed.look(self._clock.wall_ms(), self._clock.now_ns())
        ahead_ms = self._agreed.ahead_ms
        # A clock at the limit is not logged repeatedly.
        limit_ms = AWAY_MS // 2 if self._disagrees else AWAY_MS
        disagrees = abs(ahead_ms) > limit_ms
        if disagrees and not self._disagrees:
            self._log.warning(
                "clock_disagrees",
                ahead_ms=ahead_ms,
                meaning=(
                    "the wall clock of this server differs from the time of a majority of the "
                    "servers, which is used instead"
                ),
            )
        elif self._disagrees and not disagrees:
            self._log.info("clock_agrees", ahead_ms=ahead_ms)
        self._disagrees = disagrees
