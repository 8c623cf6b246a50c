"""In-memory `Storage`: the smallest correct one, for tests, tools and simulations.

It keeps what a host has made durable. `window` moves entries to a simulated disk, to exercise the
NotInMemory path.
"""

from __future__ import annotations

from ids import NO_INDEX, Index, Offset, Term
from raft.errors import Compacted, NotInMemory, SnapshotOutOfDate, Unavailable
from raft.log import limited
from raft.types import ConfState, Entry, HardState, Snapshot


class MemoryStorage:
    """In-memory `raft.types.Storage`. The other methods are called by the host."""

    __slots__ = ("_entries", "_hard_state", "_snapshot", "_window_start", "newest_snapshot")

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._hard_state = HardState()
        self._snapshot = snapshot or Snapshot()
        """Snapshot after which the log starts."""
        self.newest_snapshot: Snapshot | None = None
        """Newer snapshot for `snapshot()` to return, if the host has one."""
        self._entries: list[Entry] = []
        self._window_start: Index = NO_INDEX

    # --- The Storage protocol ------------------------------------------------------------------

    def initial_state(self) -> tuple[HardState, ConfState]:
        """Return the persisted hard state and membership."""
        return self._hard_state, self._snapshot.conf_state

    def first_index(self) -> Index:
        """Return the index of the first entry held."""
        return self._snapshot.index + 1

    def last_index(self) -> Index:
        """Return the index of the last entry."""
        return self._snapshot.index + len(self._entries)

    def term(self, index: Index) -> Term:
        """Return the term of an entry. Raises Compacted, Unavailable."""
        base = self._snapshot.index
        if index < base:
            raise Compacted
        if index == base:
            return self._snapshot.term
        if index > self.last_index():
            raise Unavailable
        return self._entries[index - base - 1].term

    def entries(self, lo: Index, hi: Index, bytes_max: int) -> list[Entry]:
        """Return entries [lo, hi) up to `bytes_max`.

        Raises Compacted, Unavailable, NotInMemory.
        """
        first = self.first_index()
        if lo < first:
            raise Compacted
        if hi > self.last_index() + 1:
            raise Unavailable
        if lo < self._window_start:
            raise NotInMemory(lo, min(hi, self._window_start))
        return limited(self._entries[lo - first : hi - first], bytes_max)

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot."""
        return self.newest_snapshot or self._snapshot

    def next_offset(self, index: Index) -> Offset:
        """Return the offset after the entry at `index`. Raises Compacted, Unavailable."""
        self.term(index)
        if index == self._snapshot.index:
            return self._snapshot.next_offset
        entry = self._entries[index - self.first_index()]
        return entry.base_offset + entry.records

    # --- Methods for the host ------------------------------------------------------------------

    def set_hard_state(self, hard_state: HardState) -> None:
        """Persist term, vote and commit."""
        self._hard_state = hard_state

    def append(self, entries: list[Entry]) -> None:
        """Persist entries, replacing existing ones from the first one's index on."""
        if not entries:
            return
        first = entries[0].index
        if first > self.last_index() + 1:
            raise Unavailable
        if first <= self._snapshot.index:
            raise Compacted
        self._entries[first - self.first_index() :] = entries

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot. Raises SnapshotOutOfDate."""
        if snapshot.index <= self._snapshot.index and self._snapshot.index:
            raise SnapshotOutOfDate
        self._snapshot = snapshot
        self._entries = []

    def compact(self, index: Index, *, conf_state: ConfState) -> None:
        """Drop entries up to and including `index`. Raises Compacted, Unavailable."""
        if index <= self._snapshot.index:
            raise Compacted
        base = Snapshot(index, self.term(index), conf_state, self.next_offset(index))
        del self._entries[: index - self._snapshot.index]
        self._snapshot = base

    def window(self, start: Index) -> None:
        """Make entries before `start` available on disk only."""
        self._window_start = start

    def read_from_disk(self, lo: Index, hi: Index, bytes_max: int) -> list[Entry]:
        """Return entries [lo, hi), in memory or on disk."""
        first = self.first_index()
        return limited(self._entries[lo - first : hi - first], bytes_max)
