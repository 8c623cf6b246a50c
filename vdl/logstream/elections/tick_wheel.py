"""Schedule of groups by tick, so that only groups with work to do are called.

It has a list of groups for each tick, and a heap of the ticks that have one. A group has one live
entry; when its due tick moves later, the old entry is left in place and put back when it comes up,
so that the common case, an election timeout that is postponed repeatedly, costs nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from vdl.logstream.group.group import Group


class TickWheel:
    """Groups by the tick at which they are due."""

    __slots__ = ("_at", "ticks")

    def __init__(self) -> None:
        self._at: dict[int, list[Group]] = {}
        self.ticks: list[int] = []
        """Keys of `_at`, a heap; read only. A group is due at the first or later."""

    def schedule(self, group: Group, tick: int) -> None:
        """Schedule `group` at `tick`.

        Invariant: `entry_tick` is the tick of its one live entry, at or before its due tick.
        """
        group.due_tick = tick
        if group.entry_tick == 0 or tick < group.entry_tick:
            self._push(group, tick)

    def take_due(self, tick: int) -> list[Group]:
        """Return groups due at or before `tick`, each once; they must be scheduled again."""
        due: list[Group] = []
        ticks = self.ticks
        while ticks and ticks[0] <= tick:
            at = heappop(ticks)
            for group in self._at.pop(at):
                if at != group.entry_tick:
                    continue  # left behind when the group became due earlier
                group.entry_tick = 0
                if group.due_tick > tick:
                    self._push(group, group.due_tick)
                elif group.due_tick:
                    group.due_tick = 0
                    due.append(group)
        return due

    def _push(self, group: Group, tick: int) -> None:
        group.entry_tick = tick
        groups = self._at.get(tick)
        if groups is None:
            self._at[tick] = [group]
            heappush(self.ticks, tick)
        else:
            groups.append(group)
