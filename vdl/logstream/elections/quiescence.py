"""Groups at rest, whose timers need not run while all servers are heard.

A group's timers check that its leader, or its followers, are alive. The lists that servers exchange
answer that for all groups of a server at once. So a group without work, whose timer has just found
everything in order, rests: its timers are checked only every `REST_TICKS`.

When a linked server was not heard for `SILENT_NS`, or before a link is dropped, all resting groups
are woken, and use their own timers until all servers are heard again. A woken group counts from
when its leader was last heard, so that resting changes no election timeout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ids import GroupId
from vdl.clock import MS
from vdl.logstream.group.group import Group

REST_TICKS: Final = 1_000
"""Ten seconds."""
SILENT_NS: Final = 250 * MS
"""Silence of a server that sends every tenth of a second; far below an election timeout."""


class Quiescence:
    """The groups at rest of one server."""

    __slots__ = ("_groups", "_is_calm")

    def __init__(self) -> None:
        self._groups: dict[GroupId, Group] = {}
        self._is_calm = False

    @property
    def is_calm(self) -> bool:
        """True if groups may rest."""
        return self._is_calm

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: GroupId) -> bool:
        """Return True if a group rests."""
        return group_id in self._groups

    def begin(self, group: Group) -> None:
        """Put the group to rest."""
        self._groups[group.group_id] = group

    def forget(self, group_id: GroupId) -> None:
        """Forget a replica that is not here any more."""
        self._groups.pop(group_id, None)

    def look(self, silences_ns: Iterable[int]) -> list[Group]:
        """Check the silence of each linked server. Use: some ten times a second.

        The silence is the longer of the times since its last message and since the last one that it
        acknowledged. Return all resting groups if a server is silent: they must use their timers.
        """
        self._is_calm = all(silent_ns < SILENT_NS for silent_ns in silences_ns)
        return [] if self._is_calm else self.take_all()

    def take_all(self) -> list[Group]:
        """Return all resting groups, which may not rest any longer."""
        groups, self._groups = self._groups, {}
        return list(groups.values())
