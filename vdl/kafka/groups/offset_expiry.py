"""Expiry of committed offsets, a few groups at a time.

A coordinator may have a million positions (committed offsets), and a scan of all of them takes a
third of a second. So its leader scans the groups over many turns. Each turn's finds are removed by
a command for the groups of that turn; the next turn follows once the command is decided. A group
that changes in between is judged when the command is applied.

Does not depend on when a scan starts, nor on which partitions are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ids import GroupId
from vdl.clock import MS, Clock, Timer
from vdl.logstream.group.state_group import Outcome
from vdl.state import commands
from vdl.state.coordinator import Coordinator

LOOKED_AT_PER_TURN = 8_000
"""Positions scanned in a turn, plus at most those of one group. Removing that many takes some
25 ms."""
PAUSE_NS = 10 * MS


class OffsetExpiry:
    """Scan of one coordinator's positions: see the module."""

    def __init__(
        self,
        machine: Coordinator,
        clock: Clock,
        propose: Callable[[Any, Callable[[Outcome], None]], None],
    ) -> None:
        """`propose`: called with a command and a callback, which it calls once when the command is
        decided."""
        self._machine = machine
        self._clock = clock
        self._propose = propose
        self._group_ids: Iterator[str] = iter(())
        self._deleted: list[GroupId] = []
        self._retention_ms = self._now_ms = 0
        self._is_looking = False
        """True while groups are left to scan."""
        self._is_first = False
        self._timer: Timer | None = None

    def begin(self, retention_ms: int, deleted: list[GroupId], now_ms: int) -> None:
        """Scan all groups once, unless a scan is in progress. See `ExpireOffsetsOf`."""
        if self._is_looking:
            return
        self._is_looking = True
        self._group_ids = iter(list(self._machine.group_ids()))
        self._retention_ms, self._deleted, self._now_ms = retention_ms, deleted, now_ms
        self._is_first = True
        self._look()

    def close(self) -> None:
        """Stop because this server no longer leads the coordinator."""
        self._is_looking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        offsets, deleted = self._machine.offsets, set(self._deleted)
        looked_at: list[str] = []
        left = LOOKED_AT_PER_TURN
        for group_id in self._group_ids:
            looked_at.append(group_id)
            left -= 1 + len(offsets.of(group_id))
            if left <= 0:
                break
        found = self._machine.expirable(self._now_ms, self._retention_ms, looked_at)
        due = {group.group_id for group, _ in found}
        kinds = self._machine.expirable_of_kinds(self._now_ms, self._retention_ms, looked_at)
        due.update(group_id for group_id, _ in kinds)
        if deleted:
            due.update(one for one in looked_at if offsets.in_partitions(one, deleted))
        if due or (deleted and self._is_first):
            # The first command also removes what deleted partitions have besides positions.
            self._expire(sorted(due))
        elif looked_at:
            self._look_on()
        else:
            self._is_looking = False
        self._is_first = False

    def _look_on(self) -> None:
        if self._is_looking:
            self._timer = self._clock.call_later(PAUSE_NS, self._look)

    def _expire(self, group_ids: list[str]) -> None:
        """Propose to remove the groups' expired offsets. If that fails, the next check retries."""
        self._propose(
            commands.ExpireOffsetsOf(group_ids, self._retention_ms, self._deleted, self._now_ms),
            lambda _: self._look_on(),
        )
