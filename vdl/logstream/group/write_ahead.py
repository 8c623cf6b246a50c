"""Large payloads of one group, written to their places before Raft gets their entries.

A journal block and its payloads are durable before the next block begins, so a large entry would
hold up all groups of this server. A leader therefore holds a large batch before it is proposed, and
a follower an append with a large entry before it is stepped, until the store has written it ahead
(`Store.write_ahead`). To Raft this is a slow client or a slow network. Nothing depends on it: if
anything else is appended meanwhile, or the leader changes, the entry is written with its block.

A follower holds small appends that follow it directly, copied and up to a bound. It drops all other
appends of that leader meanwhile, copies of the large one too: Raft sends them again. Votes and
heartbeats pass: the commit index of a heartbeat covers only what the follower has acknowledged.

Does not depend on batches or clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import segments.api as storage
from ids import NO_INDEX
from raft.log import payload_bytes
from raft.messages import MsgApp
from raft.node import RawNode
from raft.types import StateType

HELD_MAX = 512
"""Maximum number of appends that a follower holds. The leader's window is smaller."""
BEHIND_BYTES_MAX = 1 << 20
"""Maximum bytes of appends that a follower holds behind the large one."""


class HasBatch(Protocol):
    """An append of a client."""

    @property
    def batch(self) -> storage.Buffer: ...


class WriteAhead:
    """The payload that one group writes ahead, and the appends that wait for it."""

    __slots__ = (
        "_at", "_behind_bytes", "_is_forgotten", "_log", "_node", "_store", "_wake", "_writing",
        "_written", "bytes_min", "held", "on_release", "queued", "wanted",
    )  # fmt: skip

    def __init__(self, store: storage.Store, log: storage.Log, node: RawNode) -> None:
        self._store = store
        self._log = log
        self._node = node
        self._wake: Callable[[], None] | None = None
        """Has the group pumped."""
        self.bytes_min = store.ahead_bytes_min
        self.wanted: tuple[storage.Buffer, int] | None = None
        """Payload and timestamp to be written ahead once everything before it is staged."""
        self._writing: storage.Buffer | None = None
        self._at = NO_INDEX
        """Index of the last entry before it."""
        self._is_forgotten = False
        """True if nothing waits any more for what is being written."""
        self._written: storage.Buffer | None = None
        """The last payload that was written ahead, or could not be: it may be appended."""
        self.held: list[MsgApp] = []
        """Appends of one leader and term, each follows the one before. Invariant: if there are any,
        the first has a payload that is wanted or being written, and `on_release` follows."""
        self._behind_bytes = 0
        """Bytes of those held behind the first."""
        self.queued: Sequence[HasBatch] = ()
        """Appends that the leader holds, of which the large ones count here."""
        self.on_release: Callable[[], None] | None = None
        """Steps the held appends; set while there are any."""

    @property
    def is_writing(self) -> bool:
        """True if a payload is wanted or being written."""
        return self.wanted is not None or self._writing is not None

    @property
    def bytes(self) -> int:
        """Bytes of all that is held here, from the begin until it is appended or dropped."""
        wanted = None if self.wanted is None else self.wanted[0]
        payloads = [data for data in (wanted, self._writing, self._written) if data is not None]
        known = set(map(id, payloads))
        payloads += [one.batch for one in self.queued if id(one.batch) not in known]
        sizes = map(len, payloads)
        return self._behind_bytes + sum(size for size in sizes if size >= self.bytes_min)

    def is_written(self, data: storage.Buffer) -> bool:
        """Return True if this payload was written ahead, or could not be."""
        return self._written is data

    def is_held(self, data: storage.Buffer) -> bool:
        """Return True if this payload is wanted or being written."""
        return self._writing is data or (self.wanted is not None and self.wanted[0] is data)

    def begin(self, data: storage.Buffer, timestamp: int) -> bool:
        """Return True if the payload is to wait; the caller then has the group pumped.

        Return False if it is small, or was written ahead.
        """
        if len(data) < self.bytes_min or self._written is data:
            return False
        self.take_held()  # appends of an earlier term
        self.wanted, self._written = (data, timestamp), None
        self._is_forgotten = True  # another one that is still being written
        return True

    def go_on(self, wake: Callable[[], None]) -> None:
        """Begin what is wanted once everything before it is staged. Use: at the end of a pump.

        `wake` has the group pumped when that is done.
        """
        if self.wanted is None or self._writing is not None:
            return
        last_index = self._node.raft.log.last_index
        if self._log.last_index != last_index:
            return  # the next pump stages it
        self._at = last_index
        self._wake, self._is_forgotten = wake, False
        (self._writing, timestamp), self.wanted = self.wanted, None
        self._store.write_ahead(
            self._log,
            self._writing,
            timestamp=timestamp,
            is_wanted=self._is_wanted,
            done=self._ended,
        )

    def _is_wanted(self) -> bool:
        """Return True if what is being written may still be appended."""
        if self._is_forgotten or self._node.raft.log.last_index != self._at:
            return False
        return not self.held or self._node.raft.term == self.held[0].term

    def _ended(self) -> None:
        is_used = self.wanted is None and not self._is_forgotten
        self._writing, self._written = None, self._writing if is_used else None
        if self.wanted is None and self.on_release is not None:
            self.on_release()
        if self._wake is not None:
            self._wake()

    def forget(self) -> None:
        """Forget what a leader wanted or wrote, so that its memory is not kept."""
        if not self.held:
            self.wanted = self._written = None
            self._is_forgotten = True

    def drop(self, data: storage.Buffer) -> None:
        """Forget this payload, which will not be appended."""
        if self._written is data or self.is_held(data):
            self.forget()

    # --- followers -----------------------------------------------------------------------------
    def keeps_back(self, message: MsgApp) -> bool:
        """Return True if an append must not be stepped before those that are held.

        An append of a later term makes those useless: they are dropped.
        """
        if not self.held:
            return False
        first = self.held[0]
        if message.term > first.term:
            self.take_held()
            self.forget()
            return False
        return message.term == first.term and message.index + len(message.entries) > first.index

    def holds_behind(self, message: MsgApp) -> bool:
        """Hold an append that follows the last held one. Return False if it is to be dropped."""
        last, entries = self.held[-1], message.entries
        size = payload_bytes(entries) + storage.ENTRY_FRAME_BYTES * len(entries)
        if (
            not entries
            or message.index != last.index + len(last.entries)
            or message.log_term != last.entries[-1].term
            or len(self.held) >= HELD_MAX
            or self._behind_bytes + size > BEHIND_BYTES_MAX
        ):
            return False
        for entry in entries:
            entry.data = bytes(entry.data)  # not with the memory in which it was received
        self.held.append(message)
        self._behind_bytes += size
        return True

    def holds(self, message: MsgApp) -> bool:
        """Hold a leader's append if its entry is to be written ahead.

        Return False if it is to be stepped.
        """
        if self.held or len(message.entries) != 1:
            return False  # a large entry is sent alone
        entry, raft = message.entries[0], self._node.raft
        if (
            len(entry.data) < self.bytes_min
            or raft.state is not StateType.FOLLOWER
            or (raft.term, raft.lead) != (message.term, message.from_)
            or raft.log.last_index != message.index
            or raft.log.last_term != message.log_term
            or not self.begin(entry.data, entry.timestamp)
        ):
            return False
        self.held.append(message)
        return True

    def take_held(self) -> list[MsgApp]:
        """Take the appends that are to be stepped now."""
        held, self.held, self.on_release = self.held, [], None
        self._behind_bytes = 0
        return held

    def stop(self) -> None:
        """Drop everything: the replica is taken out of service."""
        self.take_held()
        self.forget()
        self._wake = None
