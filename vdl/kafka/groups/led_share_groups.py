"""The share groups of one coordinator while this server leads it: sessions and topic changes
(KIP-932).

A member that sends no heartbeat within the group's session timeout is removed by a command. A
group's topics are those of the applied catalog at each heartbeat that finds them changed.

Does not depend on requests, share-partitions or other kinds of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vdl.clock import Clock
from vdl.kafka.configs.group_configs import BY_NAME
from vdl.kafka.groups.member_sessions import MemberSessions
from vdl.state.catalog import Catalog
from vdl.state.commands import LeaveShareGroup, ShareTopic
from vdl.state.resource_configs import ResourceType
from vdl.state.share_groups import ShareGroup, ShareGroups

MEMBERS_MAX = 200
"""`group.share.max.size`: members of one group."""


class LedShareGroups:
    """Leader's state of the share groups: see the module."""

    __slots__ = ("_catalog", "_groups", "_propose", "_sessions")

    def __init__(
        self,
        groups: ShareGroups,
        clock: Clock,
        catalog: Catalog,
        propose: Callable[[Any], None],
    ) -> None:
        """`propose`: called by a timer, which tries again."""
        self._groups = groups
        self._catalog = catalog
        self._propose = propose
        self._sessions = MemberSessions(clock, self._over)
        for group in groups.groups.values():
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

    def topics_of(self, names: Iterable[str]) -> list[ShareTopic]:
        """Return those of the topics that exist, by name."""
        topics = self._catalog.topics
        return [
            ShareTopic(name, topics[name].topic_id, list(topics[name].partitions))
            for name in sorted(set(names))
            if name in topics
        ]

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
            name
            for member in group.members.values()
            if member.member_id not in gone
            for name in member.topic_names
        )
