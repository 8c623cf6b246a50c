"""The replicated log as the core sees it: a durable part in `Storage`, a tail held here.

Indexes, in order; each one only ever meets its right neighbour::

    first … applied ≤ applying ≤ committed ≤ last
            stable ≤ in_progress ≤ last

- `stable`: everything up to here is durable and readable from storage.
- `in_progress`: everything up to here has been given out to be written.
- `applied`, `applying`: the same two steps towards the state machine.

`entries` holds every entry from `offset` on that is not yet both durable and handed to the state
machine: what a leader has just appended is sent, committed and applied from the very objects that
were proposed, without a look into storage. With that, `offset ≤ stable + 1` always.

A conflicting suffix (§5.3) moves `stable` and `in_progress` back: what was on its way to the disk
under those indexes no longer counts, whatever the disk says about it.
"""

from __future__ import annotations

from ids import NO_INDEX, NO_TERM, Index, Offset, Term
from raft.errors import Compacted, Contradiction, NotInMemory, Unavailable
from raft.types import ENTRY_OVERHEAD_BYTES, Entry, Snapshot, Storage


class RaftLog:
    """The log of one replica. See the module's text for the indexes."""

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
        """Kafka offset the next entry gets."""
        self.stable: Index = last
        self.in_progress: Index = last
        self.offset: Index = last + 1
        self.entries: list[Entry] = []
        self.snapshot: Snapshot | None = None
        """A received snapshot that is not yet durable."""
        self.snapshot_in_progress = False
        self.lacks_to: Index = NO_INDEX
        """Highest index that somebody said is committed while it was behind the end."""
        # A log starts with what its snapshot covers; the host tells if it knows more.
        self.committed: Index = base
        self.applying: Index = base
        self.applied: Index = base
        self.applying_bytes = 0
        self.applying_bytes_max = applying_bytes_max
        self.applying_paused = False
        """Nothing more to apply before some of it is acknowledged."""
        self.cold_read_first: Index = NO_INDEX
        """First index of the host's read from disk for applying; 0: none pending."""
        self.cold_committed: list[Entry] = []
        """What that read brought, to go into the next Ready."""

    # --- Looking -------------------------------------------------------------------------------

    def first_index(self) -> Index:
        """Index of the first entry that can be read."""
        if self.snapshot is not None:
            return self.snapshot.index + 1
        return self.storage.first_index()

    def term(self, index: Index) -> Term:
        """Term of the entry at `index`. Raises Compacted, Unavailable."""
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
        """Whether the entry at `index` exists and has `term` (§5.3)."""
        if index == self.last_index:
            return self.last_term == term
        if index > self.last_index:
            return False
        try:
            return self.term(index) == term
        except Compacted:
            return False

    def is_up_to_date(self, *, index: Index, term: Term) -> bool:
        """Whether a log ending there is at least as up to date as this one (§5.4.1)."""
        return term > self.last_term or (term == self.last_term and index >= self.last_index)

    def find_conflict(self, entries: list[Entry]) -> Index:
        """First index whose entry differs from or is not in this log; 0 if none (§5.3)."""
        last = self.last_index
        for entry in entries:
            index = entry.index
            if index > last or not self.matches(index=index, term=entry.term):
                return index
        return NO_INDEX

    def find_conflict_by_term(self, *, index: Index, term: Term) -> tuple[Index, Term]:
        """The largest index ≤ `index` whose term is ≤ `term`, and its term.

        Up to which point two logs may agree, given that one has `term` at `index` (§5.3, last
        paragraph: skip a term at a time). Term 0 where the log no longer tells. Terms never sink,
        so some twenty look-ups find it in any log.
        """
        oldest = self.first_index() - 1
        if not oldest <= index <= self.last_index:
            return index, NO_TERM
        if (own_term := self.term(index)) <= term:
            return index, own_term
        low, high = oldest, index  # the term at `high` is above, that before `low` is not
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
        """Entries [lo, hi) up to `bytes_max`, one at least if there is one.

        Raises Compacted, NotInMemory.
        """
        if lo >= hi:
            return []
        offset = self.offset
        if lo >= offset:
            return limited(self.entries[lo - offset : hi - offset], bytes_max)
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
        """Add entries that continue the log, or replace its suffix from the first one on (§5.3).
        Raises Contradiction, then nothing changed."""
        first = entries[0].index
        if first == self.last_index + 1:
            if entries[0].base_offset != self.next_offset:
                raise Contradiction(f"entry {first} does not begin at offset {self.next_offset}")
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
            raise Contradiction(f"entry {first} is another one than what is committed there")
        replaced = self.entries[first - self.offset] if first >= self.offset else None
        if replaced is not None and replaced.base_offset != entries[0].base_offset:
            raise Contradiction(f"entry {first} begins at another offset than the one before ends")
        if first > self.offset:
            self.entries[first - self.offset :] = entries
        else:
            self.entries = list(entries)
            self.offset = first
        # Durability of the old suffix says nothing about the new one.
        self.stable = min(self.stable, first - 1)
        self.in_progress = min(self.in_progress, first - 1)

    def commit_to(self, index: Index) -> None:
        """Everything up to `index` is committed. Never moves back. Raises Contradiction: nobody
        says so before this replica has acknowledged it."""
        if index > self.committed:
            if index > self.last_index:
                self.lacks_to = max(self.lacks_to, index)
                raise Contradiction(f"{index} is committed, the log ends at {self.last_index}")
            self.committed = index

    @property
    def lacks_committed(self) -> bool:
        """Whether entries are said to be committed that this log has not got. The replica may have
        acknowledged and lost them: with its vote somebody could lead who never had them. So it has
        no part in elections until it is told of them again."""
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
        self.cold_committed = []

    # --- Towards the disk ----------------------------------------------------------------------

    def unwritten(self) -> list[Entry]:
        """Entries not yet given out to be written."""
        if self.in_progress == self.last_index:
            return []
        return self.entries[self.in_progress + 1 - self.offset :]

    @property
    def has_unstable(self) -> bool:
        """Whether entries are not yet durable."""
        return self.last_index > self.stable

    def accept_unwritten(self) -> None:
        """What `unwritten` and `snapshot` showed has been given out."""
        self.in_progress = self.last_index
        if self.snapshot is not None:
            self.snapshot_in_progress = True

    def stable_to(self, *, index: Index, term: Term) -> None:
        """Entries up to (`term`, `index`) are durable, unless overwritten since."""
        if index <= self.stable or index > self.last_index:
            return
        if self.entries[index - self.offset].term != term:
            return
        self.stable = index
        self.in_progress = max(self.in_progress, index)
        self._trim()

    def stable_snapshot_to(self, index: Index) -> None:
        """The snapshot at `index` is durable."""
        if self.snapshot is not None and self.snapshot.index == index:
            self.snapshot = None
            self.snapshot_in_progress = False

    def _trim(self) -> None:
        """Let go of what is both durable and given out to be applied."""
        done = min(self.stable, self.applying) + 1 - self.offset
        if done > 0:
            del self.entries[:done]
            self.offset += done

    # --- Towards the state machine -------------------------------------------------------------

    def appliable_end(self, *, allow_unstable: bool) -> Index:
        """Last index that may be applied now. Without storage's own word: only durable ones."""
        return self.committed if allow_unstable else min(self.committed, self.stable)

    def has_committed(self, *, allow_unstable: bool) -> bool:
        """Whether `next_committed` has something to give."""
        committed = self.committed
        return (
            self.applying < committed
            and (allow_unstable or self.applying < self.stable)
            and not self.applying_paused
            and self.snapshot is None
            and (self.cold_read_first == 0 or bool(self.cold_committed))
        )

    def next_committed(self, *, allow_unstable: bool) -> list[Entry]:
        """Entries to apply next, within the limit on what is being applied. Raises NotInMemory."""
        if not self.has_committed(allow_unstable=allow_unstable):
            return []
        if self.cold_committed:
            return self.cold_committed
        room = self.applying_bytes_max - self.applying_bytes
        assert room > 0, (self.applying_bytes, self.applying_bytes_max)
        first = self.applying + 1
        end = self.appliable_end(allow_unstable=allow_unstable) + 1
        try:
            return self.slice(first, end, room)
        except NotInMemory:
            self.cold_read_first = first
            raise

    def supply_committed(self, entries: list[Entry]) -> None:
        """The host read what `next_committed` did not find in memory; [] if it could not."""
        if not self.cold_read_first:
            return
        if entries and entries[0].index == self.cold_read_first:
            room = self.appliable_end(allow_unstable=False) + 1 - self.cold_read_first
            self.cold_committed = entries[:room]
        else:
            self.cold_read_first = NO_INDEX

    def accept_applying(self, entries: list[Entry], *, allow_unstable: bool) -> None:
        """What `next_committed` showed has been given out."""
        last = entries[-1].index
        assert last <= self.committed, (last, self.committed)
        self.cold_read_first = NO_INDEX
        self.cold_committed = []
        self.applying = last
        self.applying_bytes += size_of(entries)
        # Stopped short of the end means the limit was reached.
        self.applying_paused = (
            self.applying_bytes >= self.applying_bytes_max
            or last < self.appliable_end(allow_unstable=allow_unstable)
        )
        self._trim()

    def applied_to(self, index: Index, bytes_applied: int) -> None:
        """Everything up to `index` is applied."""
        assert index <= self.committed, (index, self.committed)
        assert index >= self.applied, (index, self.applied)
        self.applied = index
        self.applying_bytes = max(self.applying_bytes - bytes_applied, 0)
        self.applying_paused = self.applying_bytes >= self.applying_bytes_max
        if index > self.applying:
            self.applying = index
            self._trim()


def payload_bytes(entries: list[Entry]) -> int:
    """Bytes of payload."""
    if len(entries) == 1:
        return len(entries[0].data)
    return sum([len(entry.data) for entry in entries])


def size_of(entries: list[Entry]) -> int:
    """Bytes that count towards message and apply limits."""
    return payload_bytes(entries) + ENTRY_OVERHEAD_BYTES * len(entries)


def limited(entries: list[Entry], bytes_max: int) -> list[Entry]:
    """The longest prefix of at most `bytes_max`, one entry at least."""
    if len(entries) < 2 or size_of(entries) <= bytes_max:
        return entries
    room = bytes_max
    for position, entry in enumerate(entries):
        room -= len(entry.data) + ENTRY_OVERHEAD_BYTES
        if room < 0 and position:
            return entries[:position]
    return entries
