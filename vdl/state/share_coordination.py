"""Share groups of one coordinator: their members and their share-partitions (KIP-932).

A group has a share-partition for every partition that a member ever subscribed to, from then on,
even without current readers. It is removed with the group, with the partition, or by an
administrator.

Does not depend on groups of other kinds, requests, or timers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ids import GroupId, Offset
from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.answer import CommandAnswer
from vdl.state.consumer_groups import GroupEvent
from vdl.state.group_kinds import COORDINATOR_IS_FULL
from vdl.state.share_groups import ShareGroup, ShareGroupChanged, ShareGroups
from vdl.state.share_states import (
    UNSET_OFFSET,
    ClaimedShareState,
    ShareState,
    ShareStates,
    WrittenShareStates,
)
from vdl.state.table import ALL, encode_value


@dataclass(slots=True)
class ShareOffsetsAnswer:
    """Answer to AlterShareOffsets and DeleteShareOffsets.

    It carries an error of the group, or one error for each named partition or topic.
    """

    error: ErrorCode
    errors: list[ErrorCode] = field(default_factory=list)
    events: list[GroupEvent] = field(default_factory=list)


class ShareCoordination:
    """Share groups and their share-partitions; see the module. A `GroupTable`."""

    def __init__(self) -> None:
        self.groups = ShareGroups()
        self.states = ShareStates()
        self.bytes_max = 1 << 62

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups.groups

    def __len__(self) -> int:
        """Return the number of groups, members and share-partitions."""
        return len(self.groups) + len(self.states)

    def ids(self) -> list[str]:
        """Return the group ids, in order."""
        return sorted(self.groups.groups)

    @property
    def bytes_held(self) -> int:
        """Estimated size of everything in a snapshot."""
        return self.groups.bytes_held + self.states.bytes

    @property
    def _room(self) -> int:
        """Number of bytes that may still be added."""
        return self.bytes_max - self.bytes_held

    def is_empty(self, group_id: str) -> bool:
        """Return True if an existing group has no members."""
        return not self.groups.groups[group_id].members

    def subscribes(self, group_id: str, topic: str) -> bool:
        """Return True if a member of the group subscribes to the topic."""
        group = self.groups.groups.get(group_id)
        return group is not None and topic in group.topic_names

    def drop(self, group_id: str) -> None:
        """Remove a group that has no members, with its share-partitions."""
        self.groups.drop(group_id)
        self.states.remove_group(group_id)

    # --- members -----------------------------------------------------------------------------
    def join(self, command: commands.JoinShareGroup, now_ms: int) -> ShareGroupChanged:
        """See `ShareGroups.join`."""
        self.groups.bytes_max = self.groups.bytes_held + self._room
        return self._ensured(command.group_id, self.groups.join(command, now_ms))

    def leave(self, command: commands.LeaveShareGroup, now_ms: int) -> ShareGroupChanged:
        """See `ShareGroups.leave`."""
        return self._ensured(command.group_id, self.groups.leave(command, now_ms))

    def refresh(self, command: commands.RefreshShareGroup, now_ms: int) -> ShareGroupChanged:
        """See `ShareGroups.refresh`."""
        self.groups.bytes_max = self.groups.bytes_held + self._room
        return self._ensured(command.group_id, self.groups.refresh(command, now_ms))

    def _ensured(self, group_id: str, changed: ShareGroupChanged) -> ShareGroupChanged:
        """Create missing share-partitions of the group's topics, as far as there is room.

        A share-partition that could not be created cannot be claimed.
        """
        group = self.groups.groups.get(group_id)
        if changed.error is not ErrorCode.NONE or group is None:
            return changed
        known = {topic_id for topic_id, _ in self.states.of(group_id)}
        for topic_id, index, partition_group in group.partitions:
            if self.states.get(group_id, topic_id, index) is not None:
                continue
            if self._room < self.states.size_of(group_id):
                break
            # A partition added to a topic that the group already reads is read from its beginning,
            # as in Kafka since KAFKA-20742. Before (4.3.1), `share.auto.offset.reset` decided, and
            # a group that begins at the end missed the records written before it noticed the
            # partition.
            offset = 0 if topic_id in known else UNSET_OFFSET
            key = (group_id, topic_id, index)
            self.states.put(ShareState(key, partition_group, group.epoch, offset))
        return changed

    def bytes_of_topic(self, group_id: str, topic_id: bytes, partitions: int) -> int:
        """Return the size of the share-partitions that a topic new to the group needs.

        0 if the group has share-partitions of it.
        """
        if any(known == topic_id for known, _ in self.states.of(group_id)):
            return 0
        return partitions * self.states.size_of(group_id)

    # --- leaders of partitions -----------------------------------------------------------------
    def claim(self, command: commands.ClaimSharePartition, now_ms: int) -> CommandAnswer:
        """Claim a share-partition for a leader. The answer's data is a `ClaimedShareState`."""
        if command.group_id not in self:
            return CommandAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
        claimed = self.states.claim(command)
        if not isinstance(claimed, ClaimedShareState):
            return CommandAnswer(claimed)
        return CommandAnswer(ErrorCode.NONE, encode_value(claimed))

    def write(self, command: commands.WriteShareState, now_ms: int) -> CommandAnswer:
        """Apply the writes of leaders. The answer's data is a `WrittenShareStates`."""
        errors: list[int] = [self.states.write(write, self._room) for write in command.writes]
        return CommandAnswer(ErrorCode.NONE, encode_value(WrittenShareStates(errors)))

    # --- administrators ----------------------------------------------------------------------
    def _idle(self, group_id: str) -> ShareGroup | ErrorCode:
        """Return the group if it has no members, else an error."""
        group = self.groups.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if group.members else group

    def alter(self, command: commands.AlterShareOffsets, now_ms: int) -> ShareOffsetsAnswer:
        """Set the start offsets of share-partitions.

        Each gets a new state epoch, which fences all earlier claims. Without an offset,
        `share.auto.offset.reset` decides again.
        """
        answer = ShareOffsetsAnswer(ErrorCode.NONE)
        if command.as_kafka and command.group_id not in self:
            if not command.offsets:
                return answer
            self.groups.bytes_max = self.groups.bytes_held + self._room
            made = self.groups.make(command.group_id)
            if made.error is not ErrorCode.NONE:
                return ShareOffsetsAnswer(made.error)
            answer.events += made.events
        group = self._idle(command.group_id)
        if not isinstance(group, ShareGroup):
            return ShareOffsetsAnswer(group)
        known = {topic_id for topic_id, _ in self.states.of(command.group_id)}
        for topic_id, index, partition_group, offset in command.offsets:
            key = (command.group_id, topic_id, index)
            before = self.states.get(*key)
            if before is None and self._room < self.states.size_of(command.group_id):
                answer.errors.append(COORDINATOR_IS_FULL)
                continue
            epoch = group.epoch if before is None else before.state_epoch + 1
            if offset < 0:
                offset = Offset(UNSET_OFFSET if command.as_kafka else 0)
            self.states.put(ShareState(key, partition_group, epoch, offset))
            answer.errors.append(ErrorCode.NONE)
        for topic_id, partition_groups in command.topics:
            if topic_id not in known:
                self._make_unset(group, topic_id, partition_groups)
        return answer

    def _make_unset(
        self, group: ShareGroup, topic_id: bytes, partition_groups: list[GroupId]
    ) -> None:
        """Create the other share-partitions of a topic, of which some were set.

        They begin as `share.auto.offset.reset` says. Created later, they would be taken for
        partitions added to the topic.
        """
        for index, partition_group in enumerate(partition_groups):
            if self.states.get(group.group_id, topic_id, index) is not None:
                continue
            if self._room < self.states.size_of(group.group_id):
                break
            key = (group.group_id, topic_id, index)
            self.states.put(ShareState(key, partition_group, group.epoch, UNSET_OFFSET))

    def delete(self, command: commands.DeleteShareOffsets, now_ms: int) -> ShareOffsetsAnswer:
        """Remove the share-partitions of topics; the next subscription creates new ones."""
        group = self._idle(command.group_id)
        if not isinstance(group, ShareGroup):
            return ShareOffsetsAnswer(group)
        answer = ShareOffsetsAnswer(ErrorCode.NONE)
        for topic_id in command.topic_ids:
            states = self.states.of(command.group_id).values()
            gone = [state.key for state in states if state.key[1] == topic_id]
            self.states.remove(gone)
            found = ErrorCode.NONE if gone else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answer.errors.append(found)
        return answer

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed key."""
        dirty = self.groups.take_dirty(limit)
        return dirty + self.states.take_dirty(limit - len(dirty))

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        return sorted(self.groups.items() + self.states.items())

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        yield from self.groups.scan()
        yield from self.states.scan()

    def load(self, values: list[bytes]) -> None:
        """Replace all groups; `states` are loaded separately.

        Raise msgspec.DecodeError for a value that was never stored.
        """
        self.groups.load(values)
