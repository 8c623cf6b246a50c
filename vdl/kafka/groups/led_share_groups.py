"""The share groups of one coordinator while this server leads it: sessions and topic changes
(KIP-932).

A member that sends no heartbeat within the group's session timeout is removed by a command. A
group's topics are those of the applied catalog at each heartbeat that finds them changed.

A topic that is new to the group is left out until all of its share-partitions have room. If only
some were created, the others would later be taken for partitions added to the topic, and would be
read from their beginning. Topics of commands that are not decided yet count as well.

Does not depend on requests, share-partitions or other kinds of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ids import GroupId
from vdl.clock import Clock
from vdl.kafka.configs.group_configs import BY_NAME
from vdl.kafka.groups.member_sessions import MemberSessions
from vdl.state.catalog import Catalog
from vdl.state.commands import AlterShareOffsets, JoinShareGroup, LeaveShareGroup, ShareTopic
from vdl.state.coordinator import Coordinator
from vdl.state.resource_configs import ResourceType
from vdl.state.share_groups import ShareGroup

MEMBERS_MAX = 200
"""`group.share.max.size`: members of one group."""
SPARE_BYTES = 64 << 10
"""Room that a topic new to a group must leave: for commands that are decided before its own, other
than those of share groups."""

Topics = list[tuple[str, bytes]]
"""Topics that a command adds: group id and topic id of each."""


class LedShareGroups:
    """Leader's state of the share groups: see the module."""

    __slots__ = (
        "_catalog", "_groups", "_machine", "_propose", "_sessions", "_tell_full", "_undecided",
        "_undecided_bytes",
    )  # fmt: skip

    def __init__(
        self,
        machine: Coordinator,
        clock: Clock,
        catalog: Catalog,
        propose: Callable[[Any], None],
        tell_full: Callable[[], None],
    ) -> None:
        """`propose`: called by a timer, which tries again. `tell_full`: called when a topic finds
        no room."""
        self._machine = machine
        self._groups = machine.share.groups
        self._catalog = catalog
        self._propose = propose
        self._tell_full = tell_full
        self._undecided: dict[tuple[str, bytes], list[int]] = {}
        """Number of undecided commands that add a topic to a group, and the bytes it needs."""
        self._undecided_bytes = 0
        """Invariant: the sum of the bytes in `_undecided`."""
        self._sessions = MemberSessions(clock, self._over)
        for group in self._groups.groups.values():
            for member_id in group.members:
                self.renew(group.group_id, member_id)

    def setting(self, group_id: str, name: str) -> int:
        """Return an integer setting of a group; its text was checked when it was set."""
        configs = self._catalog.resources.of(ResourceType.GROUP, group_id)
        return int(configs.get(name, BY_NAME[name].default))

    def renew(self, group_id: str, member_id: str) -> None:
        """Renew the member's session."""
        period_ms = self.setting(group_id, "share.session.timeout.ms")
        self._sessions.renew(group_id, member_id, period_ms)

    def touched(self, group_id: str) -> None:
        """Note that the group has changed, or is gone. The session of a new member begins here: its
        client may be gone before its request is answered."""
        group = self._groups.groups.get(group_id)
        members = {} if group is None else group.members
        self._sessions.end_others(group_id, members)
        for member_id in members:
            if (group_id, member_id) not in self._sessions:
                self.renew(group_id, member_id)

    def begin(self, command: Any) -> Topics:
        """Count the topics that a command adds, before it is proposed. Return them, to be passed to
        `end`."""
        match command:
            case JoinShareGroup() | LeaveShareGroup():
                named = [(one.topic_id, one.partition_groups) for one in command.topics]
            case AlterShareOffsets():
                named = command.topics
            case _:
                return []
        added: Topics = []
        for topic_id, partitions in named:
            key = command.group_id, topic_id
            before = self._undecided.get(key)
            if before is not None:
                before[0] += 1
            elif needed := self._needed(command.group_id, topic_id, partitions):
                self._undecided[key] = [1, needed]
                self._undecided_bytes += needed
            else:
                continue
            added.append(key)
        return added

    def end(self, added: Topics) -> None:
        """End a command that is decided, or never will be here."""
        for key in added:
            undecided = self._undecided[key]
            undecided[0] -= 1
            if not undecided[0]:
                self._undecided_bytes -= undecided[1]
                del self._undecided[key]

    def topics_of(self, group_id: str, names: Iterable[str]) -> list[ShareTopic]:
        """Return those of the topics that exist and have room, by name."""
        topics = self._catalog.topics
        group = self._groups.groups.get(group_id)
        known = {} if group is None else group.topics
        found: list[ShareTopic] = []
        more = 0
        for name in sorted(set(names)):
            topic = topics.get(name)
            if topic is None:
                continue
            before = known.get(name)
            if before is None or before.topic_id != topic.topic_id:
                needed = self._needed(group_id, topic.topic_id, topic.partitions)
                if needed and not self._has_room(more + needed):
                    self._tell_full()
                    continue
                more += needed
            found.append(ShareTopic(name, topic.topic_id, list(topic.partitions)))
        return found

    def has_room(self, group_id: str, topics: Iterable[tuple[bytes, list[GroupId]]]) -> bool:
        """Return True if all share-partitions of topics that the group does not read have room."""
        needed = sum(self._needed(group_id, topic_id, groups) for topic_id, groups in topics)
        return not needed or self._has_room(needed)

    def _needed(self, group_id: str, topic_id: bytes, partitions: Sequence[GroupId]) -> int:
        """Return the bytes that a topic needs; 0 if the group has them, or an undecided command
        takes them."""
        if (group_id, topic_id) in self._undecided:
            return 0
        return self._machine.share.bytes_of_topic(group_id, topic_id, len(partitions))

    def _has_room(self, needed: int) -> bool:
        return self._undecided_bytes + needed + SPARE_BYTES <= self._machine.free_bytes

    def close(self) -> None:
        """Stop because the server no longer leads the coordinator."""
        self._sessions.close()

    def _over(self, group_id: str, member_ids: list[str]) -> None:
        group = self._groups.groups.get(group_id)
        if group is not None:
            self._propose(
                LeaveShareGroup(group_id, member_ids, self.topics_without(group, member_ids))
            )

    def topics_without(self, group: ShareGroup, member_ids: Iterable[str]) -> list[ShareTopic]:
        """Return the subscribed topics without these members."""
        gone = set(member_ids)
        return self.topics_of(
            group.group_id,
            (
                name
                for member in group.members.values()
                if member.member_id not in gone
                for name in member.topic_names
            ),
        )
