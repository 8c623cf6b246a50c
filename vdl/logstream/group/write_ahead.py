"""Large payloads of one group, written to their places before Raft gets their entries.

A journal block and its payloads are durable before the next block begins, so a large entry would
hold up all groups of this server. A leader therefore holds a large batch before it is proposed, and
a follower an append with a large entry before it is stepped, until the store has written it ahead
(`Store.write_ahead`). To Raft this is a slow client or a slow network. Nothing depends on it: if
anything else is appended meanwhile, or the leader changes, the entry is written with its block.

A follower holds all later appends of the same term behind it, in order. Votes and heartbeats pass:
the commit index of a heartbeat covers only what the follower has acknowledged.

Does not depend on batches or clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import segments.api as storage
from raft.messages import MsgApp
from raft.node import RawNode
from raft.types import StateType

HELD_MAX = 512
"""Maximum number of appends that a follower holds. The leader sends dropped ones again. Its window
is smaller; empty ones that ask for the follower's progress come in addition."""


class WriteAhead:
    """The payload that one group writes ahead, and the appends that wait for it."""

    __slots__ = (
        "_is_forgotten", "_log", "_node", "_store", "_wake", "_writing", "_written",
        "bytes_min", "held", "on_release", "wanted",
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
        self._is_forgotten = False
        """True if nothing waits any more for what is being written."""
        self._written: storage.Buffer | None = None
        """The last payload that was written ahead, or could not be: it may be appended."""
        self.held: deque[MsgApp] = deque()
        """Appends of one leader and term, in order of arrival. Invariant: if there are any, a
        payload is wanted or being written, and `on_release` follows."""
        self.on_release: Callable[[], None] | None = None
        """Steps the held appends; set while there are any."""

    @property
    def is_writing(self) -> bool:
        """True if a payload is wanted or being written."""
        return self.wanted is not None or self._writing is not None

    def is_held(self, data: storage.Buffer) -> bool:
        """Return True if this payload is wanted or being written."""
        return self._writing is data or (self.wanted is not None and self.wanted[0] is data)

    def begin(self, data: storage.Buffer, timestamp: int) -> bool:
        """Return True if the payload is to wait; the caller then has the group pumped.

        Return False if it is small, or was written ahead.
        """
        if len(data) < self.bytes_min or self._written is data:
            return False
        self.wanted, self._written = (data, timestamp), None
        return True

    def go_on(self, wake: Callable[[], None]) -> None:
        """Begin what is wanted once everything before it is staged. Use: at the end of a pump.

        `wake` has the group pumped when that is done.
        """
        if self.wanted is None or self._writing is not None:
            return
        if self._log.last_index != self._node.raft.log.last_index:
            return  # the next pump stages it
        self._wake, self._is_forgotten = wake, False
        (self._writing, timestamp), self.wanted = self.wanted, None
        self._store.write_ahead(self._log, self._writing, timestamp=timestamp, done=self._ended)

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
    def holds(self, message: MsgApp) -> bool:
        """Hold a leader's append, if others are held or its entry is to be written ahead.

        Return False if it is to be stepped.
        """
        if self.held:
            if message.term != self.held[0].term:
                return False
            if len(self.held) < HELD_MAX:
                self.held.append(message)
            return True
        if len(message.entries) != 1:
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

    def take_held(self) -> deque[MsgApp]:
        """Take the appends that are to be stepped now."""
        held, self.held, self.on_release = self.held, deque(), None
        return held

    def stop(self) -> None:
        """Drop everything: the replica is taken out of service."""
        self.take_held()
        self.forget()
        self._wake = None
