"""Admission of large batches, for all groups of this server together.

Large batches stay in memory until a segment holds them, which is after the commit. A leader
therefore appends none beyond a bound. A follower's bound is higher, and beyond it the follower
takes one at a time from each other server. Otherwise two servers that are full of batches which
they lead would wait for each other for ever.

A staged batch that finds no space on the disk would block everything behind it, votes too. So the
space is checked before, including batches that were taken in this turn and are not staged yet. A
batch that is written ahead counts until it is staged or dropped.

Does not depend on messages or clients.
"""

from __future__ import annotations

import segments.api as storage
from ids import ServerId
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.write_ahead import WriteAhead
from vdl.logstream.options import LARGE_LED_BYTES_MAX
from vdl.logstream.stats import HostStats

TAKEN_BYTES_MAX = 256 << 20
"""Maximum bytes of large batches in memory and in no segment, including the next one a follower
takes."""


class LargeRoom:
    """Admission of large batches on one server."""

    __slots__ = ("_ahead", "_beyond", "_stats", "_store", "_taken_bytes", "_taken_turn")

    def __init__(self, store: storage.Store, stats: HostStats) -> None:
        self._store = store
        self._stats = stats
        self._beyond: dict[ServerId, tuple[Group, int]] = {}
        """By leading server: the group and turn of its last batch beyond the bound."""
        self._taken_bytes = 0
        """Bytes taken since turn `_taken_turn`, which are not staged yet."""
        self._taken_turn = -1
        self._ahead: list[WriteAhead] = []
        """Groups that may have payloads written ahead."""

    def may_append(self, batch: storage.Buffer, ahead: WriteAhead) -> bool:
        """Return True if a leader here may append one more batch.

        One that was written ahead has its room in memory.
        """
        size = len(batch)
        if ahead.is_written(batch):
            return self.fits_disk(0)
        return self._is_within(size, LARGE_LED_BYTES_MAX) and self.fits_disk(size)

    def may_take(self, size: int, group: Group, server_id: ServerId) -> bool:
        """Return True if a follower may take one more batch of `size` bytes from a leading server.

        The caller must then take it.
        """
        if not self.fits_disk(size):
            return False
        if self._is_within(size, TAKEN_BYTES_MAX):
            return True
        if self._has_beyond(server_id):
            return False
        self._beyond[server_id] = group, self._stats.turns
        return True

    def _has_beyond(self, server_id: ServerId) -> bool:
        """Return True if the server's last batch beyond the bound may still be in memory.

        The server must still lead the batch's group, so that its commit will come.
        """
        found = self._beyond.get(server_id)
        if found is None:
            return False
        group, turn = found
        is_staged = turn == self._stats.turns or group.log.large_bytes > 0
        is_held = is_staged or group.ahead.is_writing
        return is_held and server_of(group.node.lead) == server_id

    def _is_within(self, size: int, bytes_max: int) -> bool:
        held = self.bytes + self._taken()
        return not held or held + size <= bytes_max

    def fits_disk(self, size: int) -> bool:
        """Return True if the disk has room for `size` more bytes than those that are counted."""
        return self._store.has_room_for(self._ahead_bytes() + self._taken() + size)

    def take(self, size: int) -> None:
        """Count a batch of `size` bytes, which is staged at the end of the turn."""
        self._taken_bytes = self._taken() + size

    def note_ahead(self, ahead: WriteAhead, taken: int = 0) -> None:
        """Count what is written ahead there until it is staged or dropped.

        `taken`: bytes of it that were counted in this turn.
        """
        if ahead not in self._ahead:
            self._ahead.append(ahead)
        self._taken_bytes = self._taken() - taken

    @property
    def bytes(self) -> int:
        """Bytes of large batches here that are in no segment yet, without those of this turn."""
        return self._store.large_bytes + self._ahead_bytes()

    def _ahead_bytes(self) -> int:
        if not self._ahead:
            return 0
        self._ahead = [ahead for ahead in self._ahead if ahead.bytes]
        return sum(ahead.bytes for ahead in self._ahead)

    def _taken(self) -> int:
        turns = self._stats.turns
        if self._taken_turn != turns:
            self._taken_turn = turns
            self._taken_bytes = 0
        return self._taken_bytes
