"""Groups at rest, whose timers need not run: while the servers are heard, time says nothing.

A group's timers watch whether its leader, or its followers, live. The lists that servers exchange
answer that for all groups of a server at once. So a group for which nothing is to be done, and
whose timer has just found all well, rests: its timers are looked at once in `REST_TICKS` only.

As soon as a server that is linked was not heard for `SILENT_NS`, or before a link is dropped, all
that rest are woken, and go by their own timers again, until all servers are heard. What a woken
group finds is how long ago its leader was heard, so that nobody is replaced sooner or later.

Must not know: timers, what a group does when it is due.
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
"""Of a server that says something each tenth of a second; far below an election timeout."""


class Quiescence:
    """The groups at rest of one server."""

    __slots__ = ("_groups", "_is_calm")

    def __init__(self) -> None:
        self._groups: dict[GroupId, Group] = {}
        self._is_calm = False

    @property
    def is_calm(self) -> bool:
        """Whether groups may rest."""
        return self._is_calm

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: GroupId) -> bool:
        """Whether a group rests."""
        return group_id in self._groups

    def begin(self, group: Group) -> None:
        """The group rests from now on."""
        self._groups[group.group_id] = group

    def forget(self, group_id: GroupId) -> None:
        """The replica is not here any more."""
        self._groups.pop(group_id, None)

    def look(self, silences_ns: Iterable[int]) -> list[Group]:
        """How long ago each server that is linked was last heard: the longer of the two, since its
        last word and since what it last answered. All groups, if one is silent: they are to go by
        their timers. Some ten times a second."""
        self._is_calm = all(silent_ns < SILENT_NS for silent_ns in silences_ns)
        return [] if self._is_calm else self.take_all()

    def take_all(self) -> list[Group]:
        """What rests may not go on to."""
        groups, self._groups = self._groups, {}
        return list(groups.values())
