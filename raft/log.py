"""The replicated log as seen by the core: a durable part in `Storage`, and a tail held here.

Order of the indexes; each one is only ever compared with its right neighbour::

    first … applied ≤ applying ≤ committed ≤ last
            stable ≤ in_progress ≤ last

- `stable`: everything up to here is durable and readable from storage.
- `in_progress`: everything up to here has been given out to be written.
- `applied`, `applying`: the same two steps towards the state machine.

`entries` holds every entry from `offset` on that is not yet both durable and given out to be
applied. Entries that a leader has just appended are therefore sent, committed and applied from the
objects that were proposed, without access to storage. It follows that `offset ≤ stable + 1`.

A conflicting suffix (§5.3) moves `stable` and `in_progress` back: writes in progress under those
indexes no longer count, even if the disk reports them as done.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ids import NO_INDEX, NO_TERM, Index, Offset, Term
from raft.errors import Compacted, Contradiction, NotInMemory, Unavailable
from raft.types import ENTRY_OVERHEAD_BYTES, Entry, Snapshot, Storage

_data = attrgetter("data")


class RaftLog:
    """Log of one replica. See the module docstring for the indexes."""

    __slots__ = (
        "applied",
        "applying",
        "applying_bytes",
        "applying_bytes_max",
        "applying_paused",
        "cold_committed",
        "cold_read_first",
        "committed",
        "entries",
        "in_progress",
        "lacks_to",
        "last_index",
        "last_term",
        "next_offset",
        "offset",
        "snapshot",
        "snapshot_in_progress",
        "stable",
        "storage",
    )

    def __init__(self, storage: Storage, *, applying_bytes_max: int) -> None:
        self.storage = storage
        last = storage.last_index()
        base = storage.first_index() - 1
        self.last_index: Index = last
        self.last_term: Term = storage.term(last)
        self.next_offset: Offset = storage.next_offset(last)
        """Kafka offset of the next entry."""
        self.stable: Index = last
        self.in_progress: Index = last
        self.offset: Index = last + 1
        self.entries: list[Entry] = []
        self.snapshot: Snapshot | None = None
        """Received snapshot that is not yet durable."""
        self.snapshot_in_progress = False
        self.lacks_to: Index = NO_INDEX
        """Highest index that was reported as committed while it was behind the end of this log."""
        # A log starts with what its snapshot covers. The host passes `applied` if it knows more.
        self.committed: Index = base
        self.applying: Index = base
        self.applied: Index = base
        self.applying_bytes = 0
        self.applying_bytes_max = applying_bytes_max
        self.applying_paused = False
        """True if nothing more may be given out before some of it is applied."""
        self.cold_read_first: Index = NO_INDEX
        """First index of the host's read from disk for applying; 0 if none is pending."""
        self.cold_committed: Sequence[Entry] = ()
        """Result of that read, for the next Ready."""

    # --- Queries -------------------------------------------------------------------------------

    def first_index(self) -> Index:
        """Return the index of the first entry that can be read."""
        if self.snapshot is not None:
            return self.snapshot.index + 1
        return self.storage.first_index()

    def term(self, index: Index) -> Term:
        """Return the term of the entry at `index`. Raises Compacted, Unavailable."""
        if index == self.last_index:
            return self.last_term
        if index >= self.offset:
            if index > self.last_index:
                raise Unavailable
            return self.entries[index - self.offset].term
        snapshot = self.snapshot
        if snapshot is not None:
            if index == snapshot.index:
                return snapshot.term
            raise Compacted
        return self.storage.term(index)

    def matches(self, *, index: Index, term: Term) -> bool:
        """Return True if the entry at `index` exists and has `term` (§5.3)."""
        if index == self.last_index:
            return self.last_term == term
        if index > self.last_index:
            return False
        try:
            return self.term(index) == term
        except Compacted:
            return False

    def is_up_to_date(self, *, index: Index, term: Term) -> bool:
        """Return True if a log ending there is at least as up to date as this one (§5.4.1)."""
        return term > self.last_term or (term == self.last_term and index >= self.last_index)

    def find_conflict(self, entries: list[Entry]) -> Index:
        """Return the first index whose entry differs or is missing here; 0 if none (§5.3)."""
        last = self.last_index
        for entry in entries:
            index = entry.index
            if index > last or not self.matches(index=index, term=entry.term):
                return index
        return NO_INDEX

    def find_conflict_by_term(self, *, index: Index, term: Term) -> tuple[Index, Term]:
        """Return the largest index ≤ `index` whose term is ≤ `term`, and its term.

        This is the last index at which two logs may agree if the other one has `term` at `index`
        (§5.3, last paragraph: skip a term at a time). Term 0 if the log does not reach back that
        far. Terms never decrease, so some twenty lookups suffice for any log.
        """
        oldest = self.first_index() - 1
        if not oldest <= index <= self.last_index:
            return index, NO_TERM
        if (own_term := self.term(index)) <= term:
            return index, own_term
        low, high = oldest, index  # the term at `high` is larger, the one before `low` is not
        while low < high:
            middle = (low + high) // 2
            if self.term(middle) > term:
                high = middle
            else:
                low = middle + 1
        if low == oldest:
            return max(oldest - 1, NO_INDEX), NO_TERM
        return low - 1, self.term(low - 1)

    def slice(self, lo: Index, hi: Index, bytes_max: int) -> list[Entry]:
        """Return entries [lo, hi) up to `bytes_max`, at least one if there is one.

        Raises Compacted, NotInMemory.
        """
        if lo >= hi:
            return []
        offset = self.offset
        if lo >= offset:
            found = self.entries[lo - offset : hi - offset]
            return found if len(found) < 2 else limited(found, bytes_max)
        if self.snapshot is not None:
            raise Compacted
        stored_end = min(hi, offset)
        stored = self.storage.entries(lo, stored_end, bytes_max)
        if hi <= offset or len(stored) < stored_end - lo:
            return stored
        room = bytes_max - size_of(stored)
        if room <= 0:
            return stored
        tail = limited(self.entries[: hi - offset], room)
        if len(tail) == 1 and size_of(tail) > room:
            return stored
        return stored + tail

    # --- Appending -----------------------------------------------------------------------------

    def append(self, entries: list[Entry]) -> None:
        """Append entries that continue the log, or replace its suffix from the first one on (§5.3).

        Raises Contradiction, then nothing has changed.
        """
        first = entries[0].index
        if first == self.last_index + 1:
            if entries[0].base_offset != self.next_offset:
                raise Contradiction(
                    f"entry {first} has base offset {entries[0].base_offset}, expected "
                    f"{self.next_offset}"
                )
            self.entries.extend(entries)
        else:
            self._replace_suffix(first, entries)
        last = entries[-1]
        self.last_index = last.index
        self.last_term = last.term
        self.next_offset = last.base_offset + last.records

    def _replace_suffix(self, first: Index, entries: list[Entry]) -> None:
        assert first <= self.last_index + 1, (first, self.last_index)
        if first <= self.committed:
            raise Contradiction(f"entry {first} conflicts with a committed entry")
        replaced = self.entries[first - self.offset] if first >= self.offset else None
        if replaced is not None and replaced.base_offset != entries[0].base_offset:
            raise Contradiction(
                f"entry {first} has another base offset than the entry that it replaces"
            )
        if first > self.offset:
            self.entries[first - self.offset :] = entries
        else:
            self.entries = list(entries)
            self.offset = first
        # The old suffix being durable proves nothing about the new one.
        self.stable = min(self.stable, first - 1)
        self.in_progress = min(self.in_progress, first - 1)

    def commit_to(self, index: Index) -> None:
        """Advance the commit index to `index`; never move it back.

        Raises Contradiction if the log ends before `index`: leaders report to a replica only
        commit indexes up to which it has acknowledged.
        """
        if index > self.committed:
            if index > self.last_index:
                self.lacks_to = max(self.lacks_to, index)
                raise Contradiction(
                    f"the commit index {index} is above the end of the log at {self.last_index}"
                )
            self.committed = index

    @property
    def lacks_committed(self) -> bool:
        """True if entries reported as committed are missing in this log.

        The replica may have acknowledged and lost them. With its vote a replica could win that
        never had them, so it takes no part in elections until it receives them again.
        """
        return self.last_index < self.lacks_to

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a snapshot (§7)."""
        index = snapshot.index
        assert index > self.committed, (index, self.committed)
        self.entries = []
        self.offset = index + 1
        self.last_index = index
        self.last_term = snapshot.term
        self.next_offset = snapshot.next_offset
        self.committed = index
        self.stable = index
        self.in_progress = index
        self.snapshot = snapshot
        self.snapshot_in_progress = False
        self.cold_read_first = NO_INDEX
        self.cold_committed = ()

    # --- Towards the disk ----------------------------------------------------------------------

    def take_unwritten(self) -> list[Entry]:
        """Return the entries not yet given out to be written, and count them as given out."""
        if self.in_progress == self.last_index:
            return []
        entries = self.entries[self.in_progress + 1 - self.offset :]
        self.in_progress = self.last_index
        return entries

    def stable_to(self, *, index: Index, term: Term) -> None:
        """Mark entries up to (`term`, `index`) as durable, unless overwritten since."""
        if index <= self.stable or index > self.last_index:
            return
        if self.entries[index - self.offset].term != term:
            return
        self.stable = index
        self.in_progress = max(self.in_progress, index)
        self._trim()

    def stable_snapshot_to(self, index: Index) -> None:
        """Mark the snapshot at `index` as durable."""
        if self.snapshot is not None and self.snapshot.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def _trim(self) -> None:
        """Drop entries that are both durable and given out to be applied."""
        done = min(self.stable, self.applying) + 1 - self.offset
        if done > 0:
            del self.entries[:done]
            self.offset += done

    # --- Towards the state machine -------------------------------------------------------------

    def has_committed(self, *, allow_unstable: bool) -> bool:
        """Return True if `take_committed` would return entries."""
        committed = self.committed
        return (
            self.applying < committed
            and (allow_unstable or self.applying < self.stable)
            and not self.applying_paused
            and self.snapshot is None
            and (self.cold_read_first == 0 or bool(self.cold_committed))
        )

    def take_committed(self, *, allow_unstable: bool) -> list[Entry]:
        """Return entries to apply next, within the limit on applying bytes; count them as given
        out.

        Without `allow_unstable` they are durable here. Raises NotInMemory.
        """
        if not self.has_committed(allow_unstable=allow_unstable):
            return []
        end = self.committed if allow_unstable else min(self.committed, self.stable)
        entries = list(self.cold_committed)
        if not entries:
            room = self.applying_bytes_max - self.applying_bytes
            assert room > 0, (self.applying_bytes, self.applying_bytes_max)
            first = self.applying + 1
            try:
                entries = self.slice(first, end + 1, room)
            except NotInMemory:
                self.cold_read_first = first
                raise
        last = entries[-1].index
        assert last <= self.committed, (last, self.committed)
        self.cold_read_first = NO_INDEX
        self.cold_committed = ()
        self.applying = last
        self.applying_bytes += size_of(entries)
        # Entries that stop short of the end mean that the limit was reached.
        self.applying_paused = self.applying_bytes >= self.applying_bytes_max or last < end
        self._trim()
        return entries

    def supply_committed(self, entries: list[Entry]) -> None:
        """Accept entries that `take_committed` did not find in memory; [] if the read failed."""
        if not self.cold_read_first:
            return
        if entries and entries[0].index == self.cold_read_first:
            room = min(self.committed, self.stable) + 1 - self.cold_read_first
            self.cold_committed = entries[:room]
        else:
            self.cold_read_first = NO_INDEX

    def applied_to(self, index: Index, bytes_applied: int) -> None:
        """Mark everything up to `index` as applied."""
        assert index <= self.committed, (index, self.committed)
        assert index >= self.applied, (index, self.applied)
        self.applied = index
        self.applying_bytes = max(self.applying_bytes - bytes_applied, 0)
        self.applying_paused = self.applying_bytes >= self.applying_bytes_max
        if index > self.applying:
            self.applying = index
            self._trim()


def payload_bytes(entries: list[Entry]) -> int:
    """Return the number of payload bytes."""
    if len(entries) == 1:
        return len(entries[0].data)
    return sum(map(len, map(_data, entries)))


def size_of(entries: list[Entry]) -> int:
    """Return the bytes that count towards message and apply limits."""
    return sum(map(len, map(_data, entries))) + ENTRY_OVERHEAD_BYTES * len(entries)


def limited(entries: list[Entry], bytes_max: int) -> list[Entry]:
    """Return the longest prefix of at most `bytes_max` bytes, at least one entry."""
    if len(entries) < 2 or size_of(entries) <= bytes_max:
        return entries
    room = bytes_max
    for position, entry in enumerate(entries):
        room -= len(entry.data) + ENTRY_OVERHEAD_BYTES
        if room < 0 and position:
            return entries[:position]
    return entries
