"""Waiting until groups have leaders, as far as this server knows.

Leader lists of peers cover all groups at once and have no subscribers. A request that has created
topics therefore polls every few milliseconds; the more requests poll, the longer the interval.

Must not know: topics, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vdl.clock import MS, NEVER
from vdl.kafka.answer import Later
from vdl.kafka.context import Context

_LOOK_AGAIN_NS = 5 * MS
_LOOK_COST_NS = MS // 10
"""Each waiting request makes the interval longer by this: some fifty times the cost of a poll."""


def when_led(
    server: Context,
    groups: Iterable[int],
    *,
    deadline_ns: int,
    later: Later,
    done: Callable[[], None],
) -> None:
    """Run `done`, as a step of `later`, once each group has been seen with a leader, or at the
    deadline; at once if that is now. Stops when `later` is done or cancelled. `groups` is iterated
    once, up to the first without a leader."""
    _Wait(server, groups, deadline_ns, later, done).look(is_first=True)


class _Wait:
    """One waiting request."""

    __slots__ = ("_deadline_ns", "_done", "_group", "_groups", "_later", "_server")

    def __init__(
        self,
        server: Context,
        groups: Iterable[int],
        deadline_ns: int,
        later: Later,
        done: Callable[[], None],
    ) -> None:
        self._server = server
        self._groups = iter(groups)
        self._group = next(self._groups, NEVER)
        """The first that may have no leader; `NEVER`: all have been seen to have one."""
        self._deadline_ns = deadline_ns
        self._later = later
        self._done = done

    def look(self, *, is_first: bool = False) -> None:
        server = self._server
        if not is_first:
            server.leader_waits -= 1
        if self._later.done or self._later.cancelled:
            return
        while self._group != NEVER and server.host.leader_of(self._group)[0] >= 0:
            self._group = next(self._groups, NEVER)
        now_ns = server.clock.now_ns()
        if self._group == NEVER or now_ns >= self._deadline_ns:
            self._later.run(self._done)
            return
        server.leader_waits += 1
        pause_ns = max(_LOOK_AGAIN_NS, _LOOK_COST_NS * server.leader_waits)
        server.clock.call_later(min(pause_ns, self._deadline_ns - now_ns), self.look)
