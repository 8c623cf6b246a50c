"""Waiting until groups have leaders, any or certain ones, as far as this server knows.

Leader lists of peers cover all groups at once and have no subscribers. A request that has created
topics, or had leaders elected, therefore polls every few milliseconds. The interval grows with the
number of requests that poll.

Does not depend on topics or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ids import GroupId
from vdl.clock import MS, NEVER
from vdl.kafka.answer import Later
from vdl.kafka.context import Context

ANYONE = -1
_NOBODY = GroupId(NEVER), ANYONE
_LOOK_AGAIN_NS = 5 * MS
_LOOK_COST_NS = MS // 10
"""Amount by which each waiting request extends the interval: about fifty times the cost of a
poll."""


def when_led(
    server: Context,
    groups: Iterable[GroupId],
    *,
    deadline_ns: int,
    later: Later,
    done: Callable[[], None],
) -> None:
    """Run `done`, as a step of `later`, once each group has been seen with a leader.

    `done` also runs at the deadline, or at once if that is now. Stop when `later` is done or
    cancelled. `groups` is iterated once, up to the first without a leader.
    """
    wanted = ((group, ANYONE) for group in groups)
    _Wait(server, wanted, deadline_ns, later, done).look(is_first=True)


def when_led_by(
    server: Context,
    wanted: Iterable[tuple[GroupId, int]],
    *,
    deadline_ns: int,
    later: Later,
    done: Callable[[], None],
) -> None:
    """Like `when_led`, once each group has been seen to be led by the server named with it."""
    _Wait(server, wanted, deadline_ns, later, done).look(is_first=True)


class _Wait:
    """One waiting request."""

    __slots__ = ("_deadline_ns", "_done", "_group", "_later", "_leader", "_server", "_wanted")

    def __init__(
        self,
        server: Context,
        wanted: Iterable[tuple[GroupId, int]],
        deadline_ns: int,
        later: Later,
        done: Callable[[], None],
    ) -> None:
        self._server = server
        self._wanted = iter(wanted)
        self._group, self._leader = next(self._wanted, _NOBODY)
        """First group not yet seen with the wanted leader; `NEVER` if there is none."""
        self._deadline_ns = deadline_ns
        self._later = later
        self._done = done

    def look(self, *, is_first: bool = False) -> None:
        server = self._server
        if not is_first:
            server.leader_waits -= 1
        if self._later.done or self._later.cancelled:
            return
        while self._group != NEVER and self._is_led():
            self._group, self._leader = next(self._wanted, _NOBODY)
        now_ns = server.clock.now_ns()
        if self._group == NEVER or now_ns >= self._deadline_ns:
            self._later.run(self._done)
            return
        server.leader_waits += 1
        pause_ns = max(_LOOK_AGAIN_NS, _LOOK_COST_NS * server.leader_waits)
        server.clock.call_later(min(pause_ns, self._deadline_ns - now_ns), self.look)

    def _is_led(self) -> bool:
        leader, _term = self._server.host.leader_of(self._group)
        return leader >= 0 and self._leader in (ANYONE, leader)
