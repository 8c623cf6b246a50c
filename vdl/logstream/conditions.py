"""Which servers can take new entries: a full disk is told to everybody.

A server whose disk is full goes on reading, voting and following what it can; it refuses new
records, and gives its leaderships to servers that have room. They say so of themselves, so that
leaderships do not wander among servers that are all full.

Must not know: what a disk is, who leads what.
"""

from __future__ import annotations

from collections.abc import Mapping

import segments.api as storage
from rpc.condition import decode_condition, encode_condition
from rpc.hello import Hello
from rpc.peer import FrameType
from rpc.streams import Transport
from vdl.log import Log


class Conditions:
    """This server's condition and its peers'. `alive` is the host's own, read only."""

    __slots__ = ("_alive", "_full", "_log", "_store", "_told", "_transport")

    def __init__(
        self, *, store: storage.Store, alive: Mapping[int, Hello], transport: Transport, log: Log
    ) -> None:
        self._store = store
        self._alive = alive
        self._transport = transport
        self._log = log
        self._told = False
        """What the peers were told last."""
        self._full: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether this server takes no new entries."""
        return not self._store.accepts_appends

    def can_lead(self, server_id: int) -> bool:
        """Whether a peer is there and has room."""
        return server_id in self._alive and server_id not in self._full

    def look(self) -> None:
        """Tell everybody when it has changed."""
        full = self.is_full
        if full is self._told:
            return
        self._told = full
        if full:
            self._log.error("disk_full", meaning="new records are refused until there is room")
        else:
            self._log.info("disk_has_room")
        for server_id in sorted(self._alive):
            self._tell(server_id)

    def link_up(self, server_id: int) -> None:
        """A new session, which knows nothing yet."""
        if self._told:
            self._tell(server_id)

    def link_down(self, server_id: int) -> None:
        """What it said is not known to hold any more."""
        self._full.discard(server_id)

    def told(self, server_id: int, payload: memoryview) -> None:
        """A peer's condition. Raises MalformedFrame."""
        if decode_condition(payload):
            self._full.add(server_id)
        else:
            self._full.discard(server_id)

    def _tell(self, server_id: int) -> None:
        frame = encode_condition(disk_full=self._told)
        self._transport.send(server_id, FrameType.CONDITION, frame)
