"""Groups at rest, whose timers need not run while all servers are heard.

A group's timers check that its leader, or its followers, are alive. The lists that servers exchange
answer that for all groups of a server at once. So a group without work, whose timer has just found
everything in order, rests: its timers are checked only every `REST_TICKS`.

A server that was not heard for a part of an election timeout (`SILENT_PARTS`) is silent. Only the
groups that need it are woken: those that it leads, and those led here that could lack a majority.
So servers that are slow, and late in hearing one another, do not also run the timers of all their
groups. When a link is dropped, all groups are woken. A woken group counts from when its leader was
last heard, so that resting changes no election timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ids import GroupId, NodeId, ServerId
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of

REST_TICKS: Final = 1_000
"""Ten seconds."""
SILENT_PARTS: Final = (3, 4)
"""Part of an election timeout. The rest is longer than the interval between two checks."""


class Quiescence:
    """The groups at rest of one server.

    A group is kept under what it needs: the server that leads it, or, negative, the number of
    servers that a majority of a group led here can do without.
    """

    __slots__ = (
        "_groups", "_heard", "_is_known", "_missing", "_needs", "_own", "_silent", "silent_ns",
    )  # fmt: skip

    def __init__(self, own: ServerId, timeout_ns: int) -> None:
        """Create it empty. `own`: this server; `timeout_ns`: the election timeout."""
        self._own = own
        self.silent_ns = timeout_ns * SILENT_PARTS[0] // SILENT_PARTS[1]
        self._groups: dict[int, dict[GroupId, Group]] = {}
        self._needs: dict[GroupId, int] = {}
        self._is_known = False
        self._silent: frozenset[ServerId] = frozenset()
        self._heard: frozenset[ServerId] = frozenset()
        self._missing = 0
        """Number of servers that are silent or not linked."""

    def __len__(self) -> int:
        return len(self._needs)

    def __contains__(self, group_id: GroupId) -> bool:
        """Return True if a group rests."""
        return group_id in self._needs

    def follow(self, group: Group, leader: ServerId) -> bool:
        """Put a group that another server leads to rest. Return False if it may not rest now."""
        return self._begin(group, leader, may_rest=leader not in self._silent)

    def lead(self, group: Group) -> bool:
        """Put a group that is led here to rest. Return False if it may not rest now."""
        spare = _spare(group)
        may_rest = self._missing <= spare or self._has_majority(group)
        return self._begin(group, -spare, may_rest=may_rest)

    def _begin(self, group: Group, need: int, *, may_rest: bool) -> bool:
        if not (self._is_known and may_rest):
            return False
        self.forget(group.group_id)
        self._needs[group.group_id] = need
        self._groups.setdefault(need, {})[group.group_id] = group
        return True

    def forget(self, group_id: GroupId) -> None:
        """Forget a replica that is not here any more."""
        need = self._needs.pop(group_id, None)
        if need is not None:
            del self._groups[need][group_id]

    def look(self, silences_ns: Mapping[ServerId, int], *, unlinked: int) -> list[Group]:
        """Check the silence of each linked server. Use: some ten times a second.

        The silence is the longer of the times since its last message and since the last one that it
        acknowledged. `unlinked`: number of other servers that are not linked. Return the groups
        that need a server which is silent: they must use their timers.
        """
        silent = {server for server, ns in silences_ns.items() if ns >= self.silent_ns}
        is_worse = not silent <= self._silent or len(silent) + unlinked > self._missing
        self._silent = frozenset(silent)
        self._heard = frozenset(silences_ns.keys() - silent | {self._own})
        self._missing = len(silent) + unlinked
        self._is_known = True
        if not is_worse:
            return []
        woken = [g for server in silent for g in self._groups.get(server, {}).values()]
        for need, groups in self._groups.items():
            if -self._missing < need <= 0:
                woken += [group for group in groups.values() if not self._has_majority(group)]
        for group in woken:
            self.forget(group.group_id)
        return woken

    def _has_majority(self, group: Group) -> bool:
        """Return True if most voters of a group are on servers that are heard."""
        return all(
            2 * sum(server_of(replica) in self._heard for replica in half) > len(half)
            for half in _halves(group)
        )

    def take_all(self) -> list[Group]:
        """Return all resting groups, which may not rest any longer."""
        groups = [group for groups in self._groups.values() for group in groups.values()]
        self._groups.clear()
        self._needs.clear()
        return groups


def _halves(group: Group) -> list[frozenset[NodeId]]:
    membership = group.node.raft.membership
    return [half for half in (membership.incoming, membership.outgoing) if half]


def _spare(group: Group) -> int:
    """Return how many voters a majority of the group can do without."""
    return min([(len(half) - 1) // 2 for half in _halves(group)], default=0)
