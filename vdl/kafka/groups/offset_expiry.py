"""Committed offsets that are over, looked for a few groups at a time.

A coordinator may have a million positions, and to look at all of them takes a third of a second. So
its leader goes through its groups over many turns, and removes what it finds with a command for the
groups of each turn. A group that changes in between is judged when the command is applied.

Must not know: when it is looked, which partitions are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ids import GroupId
from vdl.clock import MS, Clock, Timer
from vdl.state import commands
from vdl.state.coordinator import Coordinator

LOOKED_AT_PER_TURN = 8_000
"""Positions, and one group's more. To remove as many takes some 25 ms."""
PAUSE_NS = 10 * MS


class OffsetExpiry:
    """See the module."""

    def __init__(self, machine: Coordinator, clock: Clock, propose: Callable[[Any], None]) -> None:
        self._machine = machine
        self._clock = clock
        self._propose = propose
        self._group_ids: Iterator[str] = iter(())
        self._deleted: list[GroupId] = []
        self._retention_ms = self._now_ms = 0
        self._timer: Timer | None = None
        """Runs while groups are left to be looked at."""

    def begin(self, retention_ms: int, deleted: list[GroupId], now_ms: int) -> None:
        """Look through all groups once, as far as that is not being done. See `ExpireOffsetsOf`."""
        if self._timer is not None:
            return
        self._group_ids = iter(list(self._machine.group_ids()))
        self._retention_ms, self._deleted, self._now_ms = retention_ms, deleted, now_ms
        if deleted:
            # What is no group's position goes with the first.
            self._expire([])
        self._look()

    def close(self) -> None:
        """This server leads the coordinator no more."""
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
                self._timer = self._clock.call_later(PAUSE_NS, self._look)
                break
        found = self._machine.expirable(self._now_ms, self._retention_ms, looked_at)
        due = {group.group_id for group, _ in found}
        kinds = self._machine.expirable_of_kinds(self._now_ms, self._retention_ms, looked_at)
        due.update(group_id for group_id, _ in kinds)
        if deleted:
            due.update(one for one in looked_at if offsets.in_partitions(one, deleted))
        if due:
            self._expire(sorted(due))

    def _expire(self, group_ids: list[str]) -> None:
        self._propose(
            commands.ExpireOffsetsOf(group_ids, self._retention_ms, self._deleted, self._now_ms)
        )
