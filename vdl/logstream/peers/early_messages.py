"""Raft messages that came before the group they are for.

A leader may be quicker than the catalog entry of its group, and a replica takes a moment to open.
Dropping its first messages would cost an election timeout, so they wait here, bounded. Appends with
entries do not: they pin what they were received in, and the leader probes again after an answer.
Nor do heartbeats: there is always another one.

Must not know: what the messages say.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import GroupId
from raft.messages import MsgApp, MsgCommit, MsgHeartbeat, MsgSnap, PeerMessage


class EarlyMessages:
    """Messages by group, in the order they came; at most `messages_max` in all, with snapshots of
    `snapshot_bytes_max` in all."""

    __slots__ = ("_by_group", "_count", "_messages_max", "_snapshot_bytes", "_snapshot_bytes_max")

    def __init__(self, messages_max: int, snapshot_bytes_max: int) -> None:
        self._messages_max = messages_max
        self._snapshot_bytes_max = snapshot_bytes_max
        self._by_group: dict[GroupId, list[PeerMessage]] = {}
        self._count = 0
        self._snapshot_bytes = 0

    def __len__(self) -> int:
        return self._count

    def keep(self, group_id: GroupId, message: PeerMessage) -> bool:
        """False when it is not kept."""
        is_repeated = (isinstance(message, MsgApp) and message.entries) or isinstance(
            message, MsgHeartbeat | MsgCommit
        )
        if self._count >= self._messages_max or is_repeated:
            return False
        size = _snapshot_bytes(message)
        if size and self._snapshot_bytes + size > self._snapshot_bytes_max:
            return False
        self._snapshot_bytes += size
        self._count += 1
        self._by_group.setdefault(group_id, []).append(message)
        return True

    def take(self, group_id: GroupId) -> list[PeerMessage]:
        """The group is here, or never will be."""
        messages = self._by_group.pop(group_id, [])
        self._count -= len(messages)
        self._snapshot_bytes -= sum(map(_snapshot_bytes, messages))
        return messages

    def drop_unless(self, is_expected: Callable[[GroupId], bool]) -> None:
        """Forget the messages of groups that turned out not to be for this server."""
        for group_id in [group_id for group_id in self._by_group if not is_expected(group_id)]:
            self.take(group_id)


def _snapshot_bytes(message: PeerMessage) -> int:
    """What else there is in a message is small."""
    return len(message.snapshot.data) if type(message) is MsgSnap else 0
