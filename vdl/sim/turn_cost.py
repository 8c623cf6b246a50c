"""What the turns of a server's loop cost: time, in proportion to what it handled.

A simulated loop is as fast as its events come, so nobody is ever late in it. Here each message in
and out, each turn and each request of a client has a price, and while a turn takes its time nothing
else runs (`clock.NodeClock.busy`). What a server does with being late is in `vdl.logstream`:
`loop_time`, `elections`, `overload`.

Must not know: what is handled, what comes of being late.
"""

from __future__ import annotations

from vdl.server.server import Server


class TurnCost:
    """The meter of one process: see `clock.NodeClock.meter`."""

    __slots__ = ("_handled", "_server", "_unit_ns")

    def __init__(self, server: Server, unit_ns: int) -> None:
        """`unit_ns`: what one message, one request, one turn takes, in ns."""
        self._server = server
        self._handled = self._count()
        self._unit_ns = unit_ns

    def __call__(self) -> int:
        """How long what was handled since the last call takes, in ns."""
        handled = self._count()
        done, self._handled = handled - self._handled, handled
        return done * self._unit_ns

    def _count(self) -> int:
        count = 0
        host, frontend = self._server.host, self._server.frontend
        if host is not None:
            stats = host.stats
            count = stats.turns + stats.frames_out + stats.messages_in + stats.messages_out
        if frontend is not None:
            count += sum(api.requests for api in frontend.stats.values())
        return count
