"""A segments log as the storage of one Raft node.

The core asks for terms and entries in its own vocabulary and raises its own errors; the store has
neither. This adapter is the only place where the two meet. Must not know: roles, messages.
"""

from __future__ import annotations

from collections.abc import Callable

import raft.errors as raft_errors
import segments.api as storage
from ids import Index, Offset, Term
from raft.types import ConfState, Entry, EntryKind, HardState, Snapshot

KINDS = tuple(EntryKind)


def as_entry(stored: storage.EntryLike) -> Entry:
    """The entry itself when it still is the one that was appended, else a copy of what was
    stored (entries replayed by recovery)."""
    if isinstance(stored, Entry):
        return stored
    return Entry(
        term=stored.term,
        index=stored.index,
        kind=KINDS[stored.kind],
        data=stored.data,
        base_offset=stored.base_offset,
        records=stored.records,
        timestamp=stored.timestamp,
    )


class LogStorage:
    """`raft.log.Storage` over one `segments.api.Log`."""

    __slots__ = ("_applied", "_conf_state", "_log", "snapshot")

    def __init__(
        self,
        log: storage.Log,
        conf_state: ConfState,
        *,
        applied: Index,
        make_snapshot: Callable[[], Snapshot],
    ) -> None:
        self._log = log
        self._conf_state = conf_state
        self._applied = applied
        self.snapshot = make_snapshot

    def initial_state(self) -> tuple[HardState, ConfState]:
        """As recovered. What has been applied was committed, whether or not the commit index, which
        never forces a sync, reached the journal in time."""
        state = self._log.hard_state
        commit = max(state.commit, self._applied)
        return HardState(term=state.term, vote=state.vote, commit=commit), self._conf_state

    def first_index(self) -> Index:
        return self._log.first_index

    def last_index(self) -> Index:
        return self._log.last_index

    def next_offset(self, index: Index) -> Offset:
        """Offset that follows the entry at `index`."""
        return self._log.offset_after(index)

    def term(self, index: Index) -> Term:
        try:
            return self._log.term(index)
        except storage.Compacted:
            raise raft_errors.Compacted from None
        except storage.Unavailable:
            raise raft_errors.Unavailable from None

    def entries(self, lo: Index, hi: Index, bytes_max: int) -> list[Entry]:
        """Entries [lo, hi), at least one, then ≤ `bytes_max`, from memory."""
        try:
            found = self._log.entries(lo, hi, bytes_max)
        except storage.NotInMemory as missing:
            raise raft_errors.NotInMemory(missing.first, missing.end) from None
        except storage.Compacted:
            raise raft_errors.Compacted from None
        except storage.Unavailable:
            raise raft_errors.Unavailable from None
        return [as_entry(stored) for stored in found]
