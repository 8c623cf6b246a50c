"""Whether this server takes another large batch, for all its groups together.

One that is staged and finds no room on the disk holds up what comes behind it, votes too: so it is
looked at before, with what was taken in this turn and is not staged yet.

Must not know: groups, who sends.
"""

from __future__ import annotations

import segments.api as storage
from vdl.logstream.stats import HostStats


class LargeRoom:
    """Of one server."""

    __slots__ = ("_stats", "_store", "_taken_bytes", "_taken_turn")

    def __init__(self, store: storage.Store, stats: HostStats) -> None:
        self._store = store
        self._stats = stats
        self._taken_bytes = 0
        """Of what is not staged yet: since turn `_taken_turn`."""
        self._taken_turn = -1

    def fits_disk(self, size: int) -> bool:
        """Whether the disk has room for one more of so many bytes."""
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
