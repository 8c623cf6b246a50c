"""Counts of the groups with a replica on this server, by their condition.

With thousands of partitions a count takes milliseconds, so it is done in steps. It is nearly of one
moment: a group that changes meanwhile counts as it was when its step came.

Does not depend on how counts are shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from vdl.kafka.configs.topic_configs import MIN_IN_SYNC_REPLICAS
from vdl.logstream.group.group import Group
from vdl.logstream.host import Host
from vdl.state.catalog import GroupInfo

STEP_GROUPS: Final = 250
"""Groups counted in one step, which takes about half a millisecond."""


@dataclass(slots=True)
class PartitionCounts:
    """Numbers of groups, the catalog and the coordinators included, and of partitions led here."""

    groups: int = 0
    leading: int = 0
    """Groups led from here."""
    leaderless: int = 0
    """Groups of which no leader is known here."""
    replaced: int = 0
    """Groups led here that get a replica in place of a lost one; `moved`: on request."""
    moved: int = 0
    under_replicated: int = 0
    """Partitions led here with fewer replicas in sync than they have."""
    under_min: int = 0
    """Partitions led here with fewer replicas in sync than `min.insync.replicas`; `at_min`: with
    exactly that many."""
    at_min: int = 0

    def counting(self, host: Host, min_in_sync_default: int) -> Iterator[None]:
        """Yield after each step of the count, which is added to these numbers."""
        wanted_by_topic: dict[str, int] = {}
        # Groups may come and go between two steps.
        groups = list(host.groups.values())
        for start in range(0, len(groups), STEP_GROUPS):
            if start:
                yield
            step = groups[start : start + STEP_GROUPS]
            self.groups += len(step)
            self.leaderless += host.liveness.leaderless(step)
            for group in step:
                if group.node.is_leader:
                    self._count_led(host, group, wanted_by_topic, min_in_sync_default)

    def _count_led(
        self, host: Host, group: Group, wanted_by_topic: dict[str, int], default: int
    ) -> None:
        """Add a group led here. `wanted_by_topic`: what is known of `min.insync.replicas`."""
        self.leading += 1
        self.replaced += is_being_replaced(group)
        self.moved += is_being_moved(group)
        in_sync, info = host.in_sync.get(group.group_id), host.catalog.groups.get(group.group_id)
        if in_sync is None or info is None:
            return
        wanted = wanted_by_topic.get(info.topic)
        if wanted is None:
            wanted = wanted_by_topic[info.topic] = _wanted(host, info, default)
        replicas = len(info.replicas)
        count, wanted = len(in_sync.replicas), min(wanted, replicas)
        self.under_replicated += count < replicas
        self.under_min += count < wanted
        self.at_min += count == wanted


def min_in_sync(host: Host, info: GroupInfo, default: int) -> int:
    """Return the replicas that a partition must have in sync, at most all of them."""
    return min(_wanted(host, info, default), len(info.replicas))


def _wanted(host: Host, info: GroupInfo, default: int) -> int:
    return int(host.catalog.topics[info.topic].configs.get(MIN_IN_SYNC_REPLICAS, default))


def is_being_moved(group: Group) -> bool:
    """Return True if a group that is led here gets other replicas on request."""
    return group.serving and bool(group.to_finish)


def is_being_replaced(group: Group) -> bool:
    """Return True if a group that is led here gets a replica in place of a lost one."""
    return group.serving and not group.to_finish and not group.is_settled
