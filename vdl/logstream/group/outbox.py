"""What waits for the next turn of the loop: the one queue through which things go up.

Groups that are dirty, what they want to send, stage and apply, and the long polls to be woken. A
turn makes one journal block and one frame a peer of it, however many groups were dirty: batching
comes from the loop, not from timers.

Must not know: what a turn does, what a message says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ids import GroupId, NodeId, ReplicaNumber, ServerId
from vdl.clock import Clock

if TYPE_CHECKING:
    from raft.messages import Message, MsgStorageApply, PeerMessage
    from vdl.logstream.group.group import Group

SERVER_SHIFT = 16
"""A Raft id is `server_id << 16 | replica_number`."""


def server_of(replica_id: NodeId) -> ServerId:
    """The server a Raft id lives on; 0 for no replica."""
    return replica_id >> SERVER_SHIFT


def replica_id_of(server_id: ServerId, replica_number: ReplicaNumber) -> NodeId:
    """The Raft id of a server's replica; replica numbers are given out by the catalog."""
    assert 0 < replica_number < 1 << SERVER_SHIFT, replica_number
    return NodeId(server_id << SERVER_SHIFT | replica_number)


class Waking(Protocol):
    """A partition, as far as it counts here."""

    @property
    def group_id(self) -> GroupId: ...

    def wake(self) -> None:
        """Run the long polls that have something to read."""


class Outbox:
    """What is to be done in the next turn, or in the one that runs. One a server.

    Whatever goes up goes through here: a collaborator never calls the host, it leaves something and
    has a turn scheduled. Invariant: when the loop is left while anything is in `dirty`, `to_wake`
    or `out`, or `catalog_changed`, a turn is scheduled, unless the server is closed.
    """

    __slots__ = (
        "_clock", "after_append", "applies", "catalog_changed", "dirty", "is_closed",
        "is_scheduled", "out", "run_turn", "staged", "to_wake", "urgent",
        "urgent_token",
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.run_turn: Callable[[], None] = _nothing
        """What a turn does; set once, by the host."""
        self.is_scheduled = False
        """A turn will come, or runs."""
        self.is_closed = False
        """No turn comes any more."""
        self.dirty: list[Group] = []
        """To be pumped, in this order. Invariant: each of them is `dirty`, no other group is."""
        self.out: dict[ServerId, list[tuple[GroupId, PeerMessage]]] = {}
        """Messages by server, in the order they were produced."""
        self.after_append: list[tuple[Group, bool, Sequence[Message]]] = []
        """(group, whether it staged something that must be synced, responses that wait for it)."""
        self.applies: list[tuple[Group, MsgStorageApply]] = []
        """What is committed and can be applied, once everything that is waited for has left."""
        self.to_wake: dict[GroupId, Waking] = {}
        """Partitions whose long polls are to be run once, at the end of the turn; by group id."""
        self.staged = False
        """Something is staged in the store that the turn's journal block takes along."""
        self.urgent = False
        """Somebody waits for that block."""
        self.urgent_token = 0
        """The journal token of the newest block that somebody waits for."""
        self.catalog_changed = False
        """The applied catalog is another one than the host has acted on."""

    def schedule(self) -> None:
        """Have what is here dealt with soon."""
        if not self.is_scheduled and not self.is_closed:
            self.is_scheduled = True
            self._clock.call_soon(self.run_turn)

    def mark_dirty(self, group: Group) -> None:
        """Have `group` pumped in this turn."""
        if not group.dirty and not self.is_closed:
            group.dirty = True
            self.dirty.append(group)
            if not self.is_scheduled:
                self.schedule()

    def note_staged(self, group: Group) -> None:
        """Something of the group was staged outside its pump: it leaves with this turn."""
        self.staged = True
        self.mark_dirty(group)

    def note_catalog(self) -> None:
        """A command of the catalog was applied: looked at once a turn, however many there were."""
        self.catalog_changed = True
        self.schedule()

    def wake(self, stream: Waking) -> None:
        """Run the stream's long polls once, at the end of the turn."""
        self.to_wake[stream.group_id] = stream
        self.schedule()

    def send(self, group_id: GroupId, message: Message) -> None:
        """Queue a message for another server's replica."""
        server = message.to >> SERVER_SHIFT
        assert server > 0, message  # a message to a local thread has a negative address
        queue = self.out.get(server)
        if queue is None:
            self.out[server] = [(group_id, message)]  # type: ignore[list-item]  # see assert
        else:
            queue.append((group_id, message))  # type: ignore[arg-type]  # see assert

    def take_applies(self) -> list[tuple[Group, MsgStorageApply]]:
        """What is to be applied now; whoever takes it does."""
        taken, self.applies = self.applies, []
        return taken


def _nothing() -> None:
    """No host yet."""
