"""Delayed propagation of partitions' commit indexes to followers.

On a follower only consumers that read from a replica in their rack wait for the commit index, and
they can wait: a new leader learns it from its own first entry. So it travels with the next entries;
if none follow for a while, in messages without responses, for all groups together. Sent separately
for each commit, it would cost a leader with many groups as much as the entries do.

State groups are not handled here: a command that another server proposed is answered there, once it
is applied.
"""

from __future__ import annotations

from ids import GroupId
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.state import HostState

PATIENCE_NS = 50 * MS
"""Time for which a commit index may wait for entries to travel with."""


class CommitPropagation:
    """Groups whose commit index moved, and the one timer for all of them."""

    __slots__ = ("_due", "_groups", "_outbox", "_state")

    def __init__(self, state: HostState) -> None:
        self._state = state
        self._groups = state.groups
        self._outbox = state.outbox
        self._due: dict[GroupId, Group] = {}

    def stepped(self, group: Group) -> None:
        """Have `group` pumped if needed, after a message was stepped or entries were applied.

        Often it is not needed, or only a commit index is to be sent, which can wait.
        """
        if group.dirty:
            return  # its pump looks at all of it
        if group.needs_pump:
            self._outbox.mark_dirty(group)
        elif group.node.raft.commit_news_due:
            self.due(group)

    def due(self, group: Group) -> None:
        """Note that the group leads, and its followers may lack its commit index."""
        if not self._due:
            self._state.clock.call_later(PATIENCE_NS, self._send)
        self._due[group.group_id] = group

    def _send(self) -> None:
        due, self._due = self._due, {}
        for group_id, group in due.items():
            if self._groups.get(group_id) is group:  # otherwise it was deleted in the meantime
                for message in group.node.tell_commit():
                    self._outbox.send(group_id, message)
        if self._outbox.out:
            self._outbox.schedule()
