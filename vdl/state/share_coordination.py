"""What a coordinator does for share groups: their members, and the share-partitions they read
(KIP-932).

A group has a share-partition for every partition that a member ever subscribed to, from then on,
whether or not anybody reads it now. It goes with the group, with the partition, or by an
administrator's wish.

Must not know: groups of other kinds, requests, timers.
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
    """Answer to AlterShareOffsets and DeleteShareOffsets: an error of the group, or one for each
    partition or topic that was named."""

    error: ErrorCode
    errors: list[ErrorCode] = field(default_factory=list)
    events: list[GroupEvent] = field(default_factory=list)


class ShareCoordination:
    """See the module. A `GroupTable`."""

    def __init__(self) -> None:
        self.groups = ShareGroups()
        self.states = ShareStates()
        self.bytes_max = 1 << 62

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups.groups

    def __len__(self) -> int:
        """How many groups, members and share-partitions there are."""
        return len(self.groups) + len(self.states)

    def ids(self) -> list[str]:
        """The groups, in order."""
        return sorted(self.groups.groups)

    @property
    def bytes_held(self) -> int:
        """What all of it takes in a snapshot, about."""
        return self.groups.bytes_held + self.states.bytes

    @property
    def _room(self) -> int:
        """What it may take more than it does."""
        return self.bytes_max - self.bytes_held

    def is_empty(self, group_id: str) -> bool:
        """Whether a group that exists has no members."""
        return not self.groups.groups[group_id].members

    def subscribes(self, group_id: str, topic: str) -> bool:
        """Whether a member of the group subscribes to the topic."""
        group = self.groups.groups.get(group_id)
        return group is not None and topic in group.topic_names

    def drop(self, group_id: str) -> None:
        """Forget a group that has no members, with all it was given."""
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
        """Make the share-partitions of what the group subscribes to, as far as there is room. One
        that could not be made cannot be claimed."""
        group = self.groups.groups.get(group_id)
        if changed.error is not ErrorCode.NONE or group is None:
            return changed
        known = {topic_id for topic_id, _ in self.states.of(group_id)}
        for topic_id, index, partition_group in group.partitions:
            if self.states.get(group_id, topic_id, index) is not None:
                continue
            if self._room < self.states.size_of(group_id):
                break
            # What was added to a topic that the group reads already is read from its beginning, as
            # in Kafka from KAFKA-20742 on. Before (4.3.1), `share.auto.offset.reset` decided there,
            # and a group that begins at the end missed what had come before it looked.
            offset = 0 if topic_id in known else UNSET_OFFSET
            key = (group_id, topic_id, index)
            self.states.put(ShareState(key, partition_group, group.epoch, offset))
        return changed

    # --- leaders of partitions -----------------------------------------------------------------
    def claim(self, command: commands.ClaimSharePartition, now_ms: int) -> CommandAnswer:
        """The data of the answer is a `ClaimedShareState`."""
        if command.group_id not in self:
            return CommandAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
        claimed = self.states.claim(command)
        if not isinstance(claimed, ClaimedShareState):
            return CommandAnswer(claimed)
        return CommandAnswer(ErrorCode.NONE, encode_value(claimed))

    def write(self, command: commands.WriteShareState, now_ms: int) -> CommandAnswer:
        """The data of the answer are `WrittenShareStates`."""
        errors: list[int] = [self.states.write(write, self._room) for write in command.writes]
        return CommandAnswer(ErrorCode.NONE, encode_value(WrittenShareStates(errors)))

    # --- administrators ----------------------------------------------------------------------
    def _idle(self, group_id: str) -> ShareGroup | ErrorCode:
        """The group, if it has no members."""
        group = self.groups.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if group.members else group

    def alter(self, command: commands.AlterShareOffsets, now_ms: int) -> ShareOffsetsAnswer:
        """A share-partition begins anew at the offset, with a new epoch: nobody who claimed it
        before writes to it. Without an offset `share.auto.offset.reset` decides again."""
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
        """Make the other share-partitions of a topic of which some were set. They begin where
        `share.auto.offset.reset` says; made later, they would be taken for added to the topic."""
        for index, partition_group in enumerate(partition_groups):
            if self.states.get(group.group_id, topic_id, index) is not None:
                continue
            if self._room < self.states.size_of(group.group_id):
                break
            key = (group.group_id, topic_id, index)
            self.states.put(ShareState(key, partition_group, group.epoch, UNSET_OFFSET))

    def delete(self, command: commands.DeleteShareOffsets, now_ms: int) -> ShareOffsetsAnswer:
        """Share-partitions of topics go; the next member that subscribes begins anew."""
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
        """(key, value) of what changed and was not taken since, None where it went."""
        dirty = self.groups.take_dirty(limit)
        return dirty + self.states.take_dirty(limit - len(dirty))

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in key order."""
        return sorted(self.groups.items() + self.states.items())

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        yield from self.groups.scan()
        yield from self.states.scan()

    def load(self, values: list[bytes]) -> None:
        """Replace all groups; `states` are loaded by themselves. Raises msgspec.DecodeError."""
        self.groups.load(values)
