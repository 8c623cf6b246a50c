"""Work for the next turn of the loop: the one queue through which lower layers pass work up.

Holds dirty groups, their messages, staged and applicable entries, and the long polls to be woken. A
turn makes one journal block and one frame per peer of it, however many groups were dirty: batching
comes from the loop, not from timers.

Does not depend on what a turn does, or on the content of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ids import GroupId, ServerId
from vdl.clock import Clock
from vdl.logstream.group.replica_ids import SERVER_SHIFT

if TYPE_CHECKING:
    from raft.messages import Message, MsgStorageApply, PeerMessage
    from vdl.logstream.group.group import Group


class Waking(Protocol):
    """A partition whose long polls are run."""

    @property
    def group_id(self) -> GroupId: ...

    def wake(self) -> None:
        """Run the long polls that have something to read."""


class Outbox:
    """The work of the next turn, or of the running one. One per server.

    A collaborator never calls the host: it leaves work here and has a turn scheduled.

    Invariant: when the loop is left while anything is in `dirty`, `to_wake` or `out`, or
    `catalog_changed`, a turn is scheduled, unless the server is closed.
    """

    __slots__ = (
        "_clock", "after_append", "applies", "catalog_changed", "dirty", "is_closed",
        "is_scheduled", "large_behind_bytes", "out", "run_turn", "staged", "to_wake", "urgent",
        "urgent_token",
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.run_turn: Callable[[], None] = _nothing
        """The turn; set once, by the host."""
        self.is_scheduled = False
        """True if a turn will come, or runs."""
        self.is_closed = False
        """True if no turn comes any more."""
        self.dirty: list[Group] = []
        """Groups to be pumped, in this order. Invariant: each of them is `dirty`, no other group
        is."""
        self.out: dict[ServerId, list[tuple[GroupId, PeerMessage]]] = {}
        """Messages by server, in the order they were produced."""
        self.after_append: list[tuple[Group, bool, Sequence[Message]]] = []
        """(group, True if it staged something that must be synced, responses that wait for it)."""
        self.applies: list[tuple[Group, MsgStorageApply]] = []
        """Committed entries to apply, after the turn's messages, answers and journal block."""
        self.to_wake: dict[GroupId, Waking] = {}
        """Partitions whose long polls are to be run once, at the end of the turn; by group id."""
        self.staged = False
        """True if anything is staged in the store for the turn's journal block."""
        self.urgent = False
        """True if a response waits for that block."""
        self.large_behind_bytes = 0
        """Bytes of large entries of all groups that wait for an earlier entry of their log."""
        self.urgent_token = 0
        """Journal token of the newest block for which a response waits."""
        self.catalog_changed = False
        """True if the host has not yet acted on the last change of the applied catalog."""

    def schedule(self) -> None:
        """Have a turn run soon."""
        if not self.is_scheduled and not self.is_closed:
            self.is_scheduled = True
            self._clock.call_soon(self.run_turn)

    def mark_dirty(self, group: Group) -> None:
        """Have `group` pumped in this turn."""
        if not group.dirty and not self.is_closed:
            group.dirty = True
            self.dirty.append(group)
            if not self.is_scheduled:  # as `schedule`, without a call for each group
                self.is_scheduled = True
                self._clock.call_soon(self.run_turn)

    def note_staged(self, group: Group) -> None:
        """Note that data of the group were staged outside its pump: they leave with this turn."""
        self.staged = True
        self.mark_dirty(group)

    def note_catalog(self) -> None:
        """Note that a catalog command was applied.

        The host acts once a turn on any number of them.
        """
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


def _nothing() -> None:
    """Do nothing: there is no host yet."""
