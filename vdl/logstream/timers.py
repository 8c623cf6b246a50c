"""When which group is due: ticks are counted only for groups that have something to do.

One heap of (tick, order, group). A group has one live entry; when its due tick moves
later, the old entry is left in place and put back when it comes up, so that the common case, an
election timeout that is pushed away again and again, costs nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from vdl.logstream.group import Group


class DueGroups:
    """Groups by the tick at which they want to be called."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Group]] = []
        self._order = 0

    @property
    def next_tick(self) -> int | None:
        """The earliest tick at which somebody may be due."""
        return self._heap[0][0] if self._heap else None

    def schedule(self, group: Group, tick: int) -> None:
        """`group` is due at `tick`. Invariant: `heap_tick` is where its one live entry lies, at or
        before its due tick."""
        group.due_tick = tick
        if group.heap_tick == 0 or tick < group.heap_tick:
            self._push(group, tick)

    def take_due(self, tick: int) -> list[Group]:
        """Groups due at or before `tick`, each once; they must be scheduled again."""
        due: list[Group] = []
        heap = self._heap
        while heap and heap[0][0] <= tick:
            at, _, group = heappop(heap)
            if at != group.heap_tick:
                continue  # left behind when the group became due earlier
            group.heap_tick = 0
            if group.due_tick > tick:
                self._push(group, group.due_tick)
            elif group.due_tick:
                group.due_tick = 0
                due.append(group)
        return due

    def _push(self, group: Group, tick: int) -> None:
        group.heap_tick = tick
        self._order += 1
        heappush(self._heap, (tick, self._order, group))
