"""Whether this server takes another large batch, for all its groups together.

Large batches stay in memory until a segment holds them, which comes after the commit. So a leader
appends none beyond a bound; a follower's is higher, and beyond it it takes one of each other server
at a time: two that are full of what they lead would else wait for each other for ever.

One that is staged and finds no room on the disk holds up what comes behind it, votes too: so it is
looked at before, with what was taken in this turn and is not staged yet.

Must not know: messages, clients.
"""

from __future__ import annotations

import segments.api as storage
from ids import ServerId
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import server_of
from vdl.logstream.options import LARGE_LED_BYTES_MAX
from vdl.logstream.stats import HostStats

TAKEN_BYTES_MAX = 256 << 20
"""Of large batches in memory and in no segment, with one more that a follower takes."""


class LargeRoom:
    """Of one server."""

    __slots__ = ("_beyond", "_stats", "_store", "_taken_bytes", "_taken_turn")

    def __init__(self, store: storage.Store, stats: HostStats) -> None:
        self._store = store
        self._stats = stats
        self._beyond: dict[ServerId, tuple[Group, int]] = {}
        """Of each leading server: where the last one beyond the bound went, in which turn."""
        self._taken_bytes = 0
        """Of what is not staged yet: since turn `_taken_turn`."""
        self._taken_turn = -1

    def may_append(self, size: int) -> bool:
        """Whether a leader here appends one more of so many bytes."""
        return self._is_within(size, LARGE_LED_BYTES_MAX) and self._fits_disk(size)

    def may_take(self, size: int, group: Group, server_id: ServerId) -> bool:
        """Whether a follower takes one more of so many bytes from the server that leads. It is to
        be taken then."""
        if not self._fits_disk(size):
            return False
        if self._is_within(size, TAKEN_BYTES_MAX):
            return True
        if self._has_beyond(server_id):
            return False
        self._beyond[server_id] = group, self._stats.turns
        return True

    def _has_beyond(self, server_id: ServerId) -> bool:
        """Whether what was last taken beyond the bound may still be in memory, and the server leads
        its group, so that its commit is to come."""
        found = self._beyond.get(server_id)
        if found is None:
            return False
        group, turn = found
        is_held = turn == self._stats.turns or group.log.large_bytes > 0
        return is_held and server_of(group.node.lead) == server_id

    def _is_within(self, size: int, bytes_max: int) -> bool:
        held = self._store.large_bytes + self._taken()
        return not held or held + size <= bytes_max

    def _fits_disk(self, size: int) -> bool:
        return self._store.has_room_for(self._taken() + size)

    def take(self, size: int) -> None:
        """One of so many bytes is taken, and staged at the end of the turn."""
        self._taken_bytes = self._taken() + size

    def _taken(self) -> int:
        turns = self._stats.turns
        if self._taken_turn != turns:
            self._taken_turn = turns
            self._taken_bytes = 0
        return self._taken_bytes
