"""Cost of the turns of a server's loop: time in proportion to the work handled.

A simulated loop is otherwise as fast as its events come, so it is never late. Here each message in
and out, each turn and each client request has a cost, and while a turn takes its time nothing else
runs (`clock.NodeClock.busy`). `vdl.logstream` handles lateness: `loop_time`, `elections`,
`overload`.
"""

from __future__ import annotations

from vdl.server.server import Server


class TurnCost:
    """The meter of one process: see `clock.NodeClock.meter`."""

    __slots__ = ("_handled", "_server", "_unit_ns")

    def __init__(self, server: Server, unit_ns: int) -> None:
        """Create a meter. `unit_ns`: time for one message, one request, one turn, in ns."""
        self._server = server
        self._handled = self._count()
        self._unit_ns = unit_ns

    def __call__(self) -> int:
        """Return the time for the work handled since the last call, in ns."""
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
            count += sum(api.requests for api in frontend.stats.by_api.values())
        return count
