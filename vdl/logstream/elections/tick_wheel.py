"""When which group is due: ticks are counted only for groups that have something to do.

A list of groups for each tick, and a heap of the ticks that have one. A group has one live entry;
when its due tick moves later, the old entry is left in place and put back when it comes up, so that
the common case, an election timeout that is pushed away again and again, costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from vdl.clock import Clock
from vdl.logstream.group.group import Group
from vdl.logstream.time.loop_time import LoopTime


class DueGroups:
    """Groups by the tick at which they want to be called, and the one timer that calls them."""

    __slots__ = ("_armed_tick", "_at", "_clock", "_closed", "_fall_due", "_ticks", "_time")

    def __init__(
        self, clock: Clock, time: LoopTime, fall_due: Callable[[Group, int], None]
    ) -> None:
        """`fall_due(group, tick)`: the group is due, and must be scheduled again."""
        self._clock = clock
        self._time = time
        self._fall_due = fall_due
        self._at: dict[int, list[Group]] = {}
        self._ticks: list[int] = []
        """The keys of `_at`, a heap."""
        self._armed_tick = 0
        self._closed = False

    def tick(self) -> int:
        """The present tick."""
        return self._time.tick()

    def close(self) -> None:
        """Nobody is called any more."""
        self._closed = True

    def arm(self) -> None:
        """Set the timer for the earliest group that may be due."""
        if not self._ticks:
            return
        tick = self._ticks[0]
        if self._armed_tick and self._armed_tick <= tick:
            return
        self._armed_tick = tick
        self._clock.call_later(self._time.delay_ns(tick), lambda: self._run(tick))

    def _run(self, armed: int) -> None:
        if self._armed_tick != armed or self._closed:
            return
        self._armed_tick = 0
        tick = self.tick()
        for group in self.take_due(tick):
            self._fall_due(group, tick)
        self.arm()

    def schedule(self, group: Group, tick: int) -> None:
        """`group` is due at `tick`. Invariant: `entry_tick` is where its one live entry lies, at or
        before its due tick."""
        group.due_tick = tick
        if group.entry_tick == 0 or tick < group.entry_tick:
            self._push(group, tick)

    def take_due(self, tick: int) -> list[Group]:
        """Groups due at or before `tick`, each once; they must be scheduled again."""
        due: list[Group] = []
        ticks = self._ticks
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
            heappush(self._ticks, tick)
        else:
            groups.append(group)
