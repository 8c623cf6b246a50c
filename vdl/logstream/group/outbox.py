"""What one turn of the loop gathers over all groups before it leaves in one go.

One journal block and one frame a peer per turn, however many groups were dirty: batching comes
from the loop, not from timers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raft.messages import Message, MsgStorageApply, PeerMessage
    from vdl.logstream.group.group import Group

SERVER_SHIFT = 16
"""A Raft id is `server_id << 16 | replica_number`."""


def server_of(replica_id: int) -> int:
    """The server a Raft id lives on; 0 for no replica."""
    return replica_id >> SERVER_SHIFT


def replica_id_of(server_id: int, replica_number: int) -> int:
    """The Raft id of a server's replica; replica numbers are given out by the catalog."""
    assert 0 < replica_number < 1 << SERVER_SHIFT, replica_number
    return server_id << SERVER_SHIFT | replica_number


class Turn:
    """The outgoing messages and the journal wishes of one turn."""

    __slots__ = ("after_append", "applies", "out", "staged", "urgent", "wake")

    def __init__(self, wake: Callable[[Group], None]) -> None:
        self.wake = wake
        """Makes a group dirty again, from a callback outside the turn."""
        self.out: dict[int, list[tuple[int, PeerMessage]]] = {}
        """Messages by server, in the order they were produced."""
        self.after_append: list[tuple[Group, bool, Sequence[Message]]] = []
        """(group, whether it staged something that must be synced, answers that wait for it)."""
        self.applies: list[tuple[Group, MsgStorageApply]] = []
        """What is committed and can be applied, once everything that is waited for has left."""
        self.staged = False
        self.urgent = False

    def take_applies(self) -> list[tuple[Group, MsgStorageApply]]:
        """What is to be applied now; whoever takes it does."""
        taken, self.applies = self.applies, []
        return taken

    def send(self, group_id: int, message: Message) -> None:
        """Queue a message for another server's replica."""
        server = message.to >> SERVER_SHIFT
        assert server > 0, message  # a message to a local thread has a negative address
        queue = self.out.get(server)
        if queue is None:
            self.out[server] = [(group_id, message)]  # type: ignore[list-item]  # see assert
        else:
            queue.append((group_id, message))  # type: ignore[arg-type]  # see assert
