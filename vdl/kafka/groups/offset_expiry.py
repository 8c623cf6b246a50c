"""Expiry of committed offsets, a few groups at a time.

A coordinator may have a million positions (committed offsets), and a scan of all of them takes a
third of a second. So its leader scans the groups over many turns. Each turn's finds are removed by
a command for the groups of that turn; the next turn follows once the command is decided. A group
that changes in between is judged when the command is applied.

The commands count the time of a group of the newer protocol from its commits. Such a group may have
had members for longer than offsets are kept, without a new commit. So a group that lost its last
member less than that time ago is not named, and keeps its offsets until its next members come.

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

FOREVER_MS = 1 << 60
"""Retention in a command that only removes what deleted partitions have."""
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
        kept = {
            group_id
            for group_id in due
            if was_just_left(self._machine, group_id, self._retention_ms, self._now_ms)
        }
        steps = [(sorted(due - kept), self._retention_ms)]
        if deleted:
            steps.append((sorted(kept), FOREVER_MS))
        steps = [(group_ids, retention_ms) for group_ids, retention_ms in steps if group_ids]
        if deleted and self._is_first and not steps:
            # The first command also removes what deleted partitions have besides positions.
            steps = [([], self._retention_ms)]
        self._is_first = False
        if steps:
            self._expire(steps)
        elif looked_at:
            self._look_on()
        else:
            self._is_looking = False

    def _look_on(self) -> None:
        if self._is_looking:
            self._timer = self._clock.call_later(PAUSE_NS, self._look)

    def _expire(self, steps: list[tuple[list[str], int]]) -> None:
        """Propose to remove offsets of the groups of each step, with its retention.

        If that fails, the next check retries.
        """
        (group_ids, retention_ms), *others = steps

        def decided(_: Outcome) -> None:
            if others and self._is_looking:
                self._expire(others)
            else:
                self._look_on()

        self._propose(
            commands.ExpireOffsetsOf(group_ids, retention_ms, self._deleted, self._now_ms), decided
        )


def was_just_left(machine: Coordinator, group_id: str, retention_ms: int, now_ms: int) -> bool:
    """Return True if a group of the newer protocol lost its last member within that time."""
    group = machine.consumer.groups.get(group_id)
    if group is None or group.members:
        return False
    return group.changed_ms + retention_ms > now_ms
