"""Reads from disk, for one replica's followers, of entries that are no longer in memory.

A follower that is behind is fed when the throttle of its server admits it. The read begins only if
the core still waits for these entries: a reset link or an ended leadership makes a request
outdated.

Does not depend on messages, applied state, or how a throttle decides.
"""

from __future__ import annotations

from collections.abc import Callable

import segments.api as storage
from ids import NodeId
from raft.node import RawNode
from raft.types import ColdRead
from vdl.logstream.group.feed_throttle import FeedThrottle, Gain
from vdl.logstream.group.storage import as_entry


class Feeding:
    """Cold reads of one replica for its followers.

    Use: (this object, follower) is the key of a read at a throttle.
    """

    __slots__ = ("_gain", "_log", "_node", "_store", "cold_first", "throttle")

    def __init__(
        self,
        node: RawNode,
        log: storage.Log,
        store: storage.Store,
        throttle: FeedThrottle,
    ) -> None:
        self._node = node
        self._log = log
        self._store = store
        self.throttle = throttle
        self._gain = Gain()
        self.cold_first: dict[NodeId, int] = {}
        """First index of the pending read, by peer."""

    def feed(self, want: ColdRead, fed: Callable[[], None]) -> None:
        """Read entries for a peer when the throttle admits it, if they are still needed then.

        `fed` is called once the core has them.
        """
        peer = want.peer
        key = (self, peer)
        throttle = self.throttle
        began_ns = 0

        def done(found: list[storage.StoredEntry] | storage.StorageError) -> None:
            if isinstance(found, storage.StorageError):
                found = []  # requested again at the peer's next message
            self._gain.fed(peer, len(found), began_ns)
            self._node.entries_ready(peer, [as_entry(stored) for stored in found])
            self.withdraw_unwanted()
            throttle.ended(key, want.bytes_max - sum(len(stored.data) for stored in found))
            fed()

        def read() -> None:
            nonlocal began_ns
            began_ns = throttle.now_ns()
            if self._is_wanted(peer, want.first):
                self._store.entries_cold(self._log, want.first, want.end, want.bytes_max, done)
            else:
                self.cold_first.pop(peer, None)
                throttle.ended(key, want.bytes_max)

        self.cold_first[peer] = want.first
        due_ns = self._gain.due_ns(peer, self._node.last_index, throttle.now_ns())
        throttle.run(key, want.bytes_max, read, due_ns=due_ns)

    def _is_wanted(self, peer: NodeId, first: int) -> bool:
        """Return True if the core still waits for these entries.

        It does not if the peer is probed anew, as after a reset of its link, or if this replica
        does not lead any more.
        """
        progress = self._node.raft.progress.get(peer)
        return self._node.is_leader and progress is not None and progress.cold_read_first == first

    def withdraw_unwanted(self) -> None:
        """Withdraw the reads that the core does not wait for any more."""
        for peer, first in list(self.cold_first.items()):
            if not self._is_wanted(peer, first):
                self.throttle.withdraw((self, peer))
                if peer not in self._node.raft.progress:
                    self._gain.forget(peer)
                del self.cold_first[peer]

    def stop(self) -> None:
        """Withdraw all reads: the replica is taken out of service."""
        for peer in self.cold_first:
            self.throttle.withdraw((self, peer))
        self.cold_first.clear()
