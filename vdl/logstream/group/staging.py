"""Staging of what one node asks its storage to write, in order, behind large entries.

A large entry is written to its place before it is staged (`Store.append_ahead`), so that the blocks
of other groups do not wait for it. What the node gives out meanwhile is held, because a log is
written in order. Its hard state is not: votes wait for no entry. The commit index that is staged,
and acknowledged to clients, stays below the first entry that is held, because the log may still
have another one at that index.

Does not depend on the content of entries or on who gets a response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec import structs

import segments.api as storage
from ids import NO_INDEX, NO_TERM, Index
from raft.messages import (
    Message,
    MsgPreVoteResp,
    MsgStorageAppend,
    MsgStorageAppendResp,
    MsgVote,
    MsgVoteResp,
)
from raft.types import Entry, Snapshot
from vdl.logstream.group.outbox import Outbox

_OF_VOTES = (MsgVote, MsgVoteResp, MsgPreVoteResp)
"""Messages that wait for the hard state only, not for entries."""

AfterAppend = Callable[[Outbox, bool, list[Message]], None]
"""(outbox, True if what was staged must be synced, the responses that wait for it)."""


class Staging:
    """Writes of one group, in order.

    `install` stages a snapshot. `after_append` takes responses that wait for what is staged.
    """

    __slots__ = (
        "_after_append", "_ahead_min", "_behind_bytes", "_held", "_install", "_is_writing", "_log",
        "_outbox", "_store", "_wake",
    )  # fmt: skip

    def __init__(
        self,
        store: storage.Store,
        log: storage.Log,
        *,
        install: Callable[[Snapshot, Outbox], None],
        after_append: AfterAppend,
        wake: Callable[[Outbox], None],
    ) -> None:
        self._store = store
        self._log = log
        self._install = install
        self._after_append = after_append
        self._wake = wake
        self._ahead_min = store.ahead_bytes_min
        self._held: deque[MsgStorageAppend] = deque()
        """Oldest first; the first lacks the entries of it that are staged or being written.
        Invariant: empty, or a large entry before its entries is being written or was staged in
        this turn."""
        self._is_writing = False
        self._behind_bytes = 0
        """Bytes of large entries in `_held`; a part of the outbox's."""
        self._outbox: Outbox | None = None

    @property
    def is_held(self) -> bool:
        return bool(self._held)

    @property
    def committed_max(self) -> Index:
        """Highest commit index that the log can take: entries up to it stay as they are."""
        firsts = [message.entries[0].index for message in self._held if message.entries]
        return min(self._log.last_index, min(firsts, default=self._log.last_index + 1) - 1)

    def stage(self, message: MsgStorageAppend, outbox: Outbox) -> None:
        """Stage the message, or hold it."""
        if self._held:
            self._hold(message, outbox)
            return
        ahead_min = self._ahead_min
        for entry in message.entries:  # without a call: this runs for each append
            if len(entry.data) >= ahead_min:
                self._hold(message, outbox)
                return
        if message.snapshot is not None:
            self._install(message.snapshot, outbox)
            outbox.urgent = True
        if message.entries:
            self._store.append(self._log, message.entries)
            outbox.urgent = True
        if message.term:
            state = storage.HardState(message.term, message.vote, message.commit)
            self._store.set_hard_state(self._log, state)
        outbox.staged = True
        if message.must_sync:
            outbox.urgent = True
        self._after_append(outbox, message.must_sync, message.responses)

    def _hold(self, message: MsgStorageAppend, outbox: Outbox) -> None:
        self._outbox = outbox
        self._held.append(message)
        self._count_behind(outbox, sum(map(self._large_bytes, message.entries)))
        self._stage_hard_state(message, outbox)
        self.go_on(outbox)

    def _large_bytes(self, entry: Entry) -> int:
        size = len(entry.data)
        return size if size >= self._ahead_min else 0

    def _count_behind(self, outbox: Outbox, change: int) -> None:
        self._behind_bytes += change
        outbox.large_behind_bytes += change

    def _stage_hard_state(self, message: MsgStorageAppend, outbox: Outbox) -> None:
        """Stage the hard state of a held message, and release what waits for that only."""
        known, is_vote = self._log.hard_state, False
        if message.term:
            is_vote = (message.term, message.vote) != (known.term, known.vote)
            commit = max(known.commit, min(message.commit, self.committed_max))
            state = storage.HardState(message.term, message.vote, commit)
            self._store.set_hard_state(self._log, state)
            outbox.staged = True
            if is_vote:
                outbox.urgent = True
        early: list[Message] = []
        late: list[Message] = []
        for response in message.responses:
            if isinstance(response, _OF_VOTES):
                early.append(response)
                continue
            if isinstance(response, MsgStorageAppendResp) and response.vote:
                early.append(
                    structs.replace(response, index=NO_INDEX, log_term=NO_TERM, snapshot=None)
                )
            late.append(response)
        message.responses = late
        if is_vote or early:
            self._after_append(outbox, is_vote, early)

    def go_on(self, outbox: Outbox) -> None:
        """Stage what is held, up to the next large entry that is written ahead."""
        while self._held and not self._is_writing:
            message = self._held[0]
            if message.snapshot is not None:
                self._install(message.snapshot, outbox)
                outbox.urgent = True
            if not self._stage_entries(message, outbox):
                return
            self._held.popleft()
            if message.term:
                known = self._log.hard_state  # the message's own or later, and already staged
                commit = max(known.commit, message.commit)
                state = storage.HardState(known.term, known.vote, commit)
                self._store.set_hard_state(self._log, state)
            outbox.staged = True
            if message.must_sync:
                outbox.urgent = True
            self._after_append(outbox, message.must_sync, message.responses)

    def _stage_entries(self, message: MsgStorageAppend, outbox: Outbox) -> bool:
        """Stage entries of the message; return False if the next one is being written ahead."""
        while entries := message.entries:
            sizes = map(self._large_bytes, entries)
            at = next((n for n, size in enumerate(sizes) if size), len(entries))
            if not at:
                self._count_behind(outbox, -len(entries[0].data))
                message.entries = entries[1:]
                if self._write_ahead(entries[0], outbox):
                    return False
                at = 1
            self._store.append(self._log, entries[:at])
            outbox.staged = outbox.urgent = True
            message.entries = entries[at:]
        return True

    def _write_ahead(self, entry: Entry, outbox: Outbox) -> bool:
        staged = partial(self._staged, outbox)
        self._is_writing = self._store.append_ahead(self._log, entry, staged)
        return self._is_writing

    def _staged(self, outbox: Outbox) -> None:
        """Go on in the next turn: a large entry is staged."""
        self._is_writing = False
        outbox.staged = outbox.urgent = True
        self._wake(outbox)

    def stop(self) -> None:
        """Drop what is held: the replica is taken out of service."""
        self._held.clear()
        if self._outbox is not None:
            self._count_behind(self._outbox, -self._behind_bytes)
