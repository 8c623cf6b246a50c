"""Raft messages that arrive before their group is here.

A leader may be faster than the catalog entry of its group, and a replica takes a moment to open.
Dropping its first messages would cost an election timeout, so a bounded number is kept here.
Appends with data are not kept: they pin their receive buffer, and the leader probes again after
a response. Nor are heartbeats, which are repeated. The empty entry that begins a term is kept: with
it this server knows the leader of a new partition, and is in sync, as soon as the replica is open.

Does not depend on the content of messages.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import GroupId
from raft.messages import MsgApp, MsgCommit, MsgHeartbeat, MsgSnap, PeerMessage


class EarlyMessages:
    """Messages by group, in order of arrival.

    At most `messages_max` in all, with snapshots of `snapshot_bytes_max` in all.
    """

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
        """Keep a message. Return False if it is not kept."""
        if isinstance(message, MsgHeartbeat | MsgCommit):
            return False
        limit = self._messages_max
        if isinstance(message, MsgApp) and message.entries:
            if _has_data(message):
                return False
            limit //= 2  # votes come before: without them a group has no leader at all
        if self._count >= limit:
            return False
        size = _snapshot_bytes(message)
        if size and self._snapshot_bytes + size > self._snapshot_bytes_max:
            return False
        self._snapshot_bytes += size
        self._count += 1
        self._by_group.setdefault(group_id, []).append(message)
        return True

    def take(self, group_id: GroupId) -> list[PeerMessage]:
        """Remove and return the messages of a group that is here, or never will be."""
        messages = self._by_group.pop(group_id, [])
        self._count -= len(messages)
        self._snapshot_bytes -= sum(map(_snapshot_bytes, messages))
        return messages

    def drop_unless(self, is_expected: Callable[[GroupId], bool]) -> None:
        """Drop the messages of groups that turned out to have no replica here."""
        for group_id in [group_id for group_id in self._by_group if not is_expected(group_id)]:
            self.take(group_id)


def _has_data(message: MsgApp) -> bool:
    """Return True for an append with more than one empty entry."""
    entries = message.entries
    return len(entries) > 1 or (bool(entries) and len(entries[0].data) > 0)


def _snapshot_bytes(message: PeerMessage) -> int:
    """Return the size of a message's snapshot. Other parts of messages are small."""
    return len(message.snapshot.data) if type(message) is MsgSnap else 0
