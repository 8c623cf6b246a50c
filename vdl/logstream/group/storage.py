"""A log of `segments` as the storage of one Raft node.

The core has its own terms and errors, which the store does not know. This adapter is the only place
that translates between them. Does not depend on roles or messages.
"""

from __future__ import annotations

from collections.abc import Callable

import raft.errors as raft_errors
import segments.api as storage
from ids import Index, Offset, Term
from raft.types import ConfState, Entry, EntryKind, HardState, Snapshot

KINDS = tuple(EntryKind)


def as_entry(stored: storage.EntryLike) -> Entry:
    """Return the entry itself if it is the one that was appended, otherwise a copy.

    Entries replayed by recovery are copied.
    """
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
        """Return the recovered state.

        Applied entries were committed, even if the commit index, which never forces a sync, did not
        reach the journal in time.
        """
        state = self._log.hard_state
        commit = max(state.commit, self._applied)
        return HardState(term=state.term, vote=state.vote, commit=commit), self._conf_state

    def first_index(self) -> Index:
        return self._log.first_index

    def last_index(self) -> Index:
        return self._log.last_index

    def next_offset(self, index: Index) -> Offset:
        """Return the offset that follows the entry at `index`."""
        return self._log.offset_after(index)

    def term(self, index: Index) -> Term:
        try:
            return self._log.term(index)
        except storage.Compacted:
            raise raft_errors.Compacted from None
        except storage.Unavailable:
            raise raft_errors.Unavailable from None

    def entries(self, lo: Index, hi: Index, bytes_max: int) -> list[Entry]:
        """Return entries [lo, hi), at least one, then ≤ `bytes_max`, from memory."""
        try:
            found = self._log.entries(lo, hi, bytes_max)
        except storage.NotInMemory as missing:
            raise raft_errors.NotInMemory(missing.first, missing.end) from None
        except storage.Compacted:
            raise raft_errors.Compacted from None
        except storage.Unavailable:
            raise raft_errors.Unavailable from None
        return [as_entry(stored) for stored in found]
