"""The commit index of partitions, sent to followers without haste.

Only consumers wait for it there that read from a follower in their rack, and they can: a new
leader's own first entry tells it what is committed. So it travels with the next entries, and where
none follow for a while, in messages without answers, those of all groups together. Sent by itself,
for each commit, it would cost a leader with many groups as much as the entries do.

State groups do not come here: a command that another server has proposed is answered there, once
it is applied.

Must not know: what a commit means.
"""

from __future__ import annotations

from ids import GroupId
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.state import HostState

PATIENCE_NS = 50 * MS
"""How long a commit index may wait for entries to travel with."""


class CommitPropagation:
    """Groups whose commit index moved, and the one timer for all of them."""

    __slots__ = ("_due", "_groups", "_outbox", "_state")

    def __init__(self, state: HostState) -> None:
        self._state = state
        self._groups = state.groups
        self._outbox = state.outbox
        self._due: dict[GroupId, Group] = {}

    def stepped(self, group: Group) -> None:
        """A message was stepped into `group`, or it has applied something: it is pumped if there
        is anything to do. Often there is not; or only a commit index to send, which has time."""
        if group.needs_pump:
            self._outbox.mark_dirty(group)
        elif group.node.raft.commit_news_due:
            self.due(group)

    def due(self, group: Group) -> None:
        """The group leads, and its followers may lack its commit index."""
        if not self._due:
            self._state.clock.call_later(PATIENCE_NS, self._send)
        self._due[group.group_id] = group

    def _send(self) -> None:
        due, self._due = self._due, {}
        for group_id, group in due.items():
            if self._groups.get(group_id) is group:  # else it was deleted meanwhile
                for message in group.node.tell_commit():
                    self._outbox.send(group_id, message)
        if self._outbox.out:
            self._outbox.schedule()
