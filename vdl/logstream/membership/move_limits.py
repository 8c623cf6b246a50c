"""Throttled replicas of reassignments, and their limits.

Operators set them with Kafka's tools (KIP-73, KIP-455). `kafka-reassign-partitions --throttle` sets
two rates on servers, and on topics the replicas to which each applies: a server's
`leader.replication.throttled.rate` limits what it sends as the leader of replicas in
`leader.replication.throttled.replicas`, `follower.replication.throttled.rate` what it receives for
those in `follower.replication.throttled.replicas`. Here a limit applies only to replicas that a
reassignment adds, as long as they are learners. In Kafka it applies to all replicas that are not in
sync, for any reason.

A leader uses a fraction of a follower's limit that corresponds to its fraction of the moves to that
follower. A leader that does not know of the latest move is wrong by that one until it does.

Does not depend on how a limit is enforced, or how members change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from ids import GroupId, NodeId, ServerId
from vdl.logstream.group.feed_throttle import FeedThrottle
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.state import HostState
from vdl.state.catalog import GroupInfo
from vdl.state.resource_configs import ResourceConfigs, ResourceType

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
"""Kafka's settings of a server, or of all: bytes a second."""
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
"""Kafka's settings of a topic: `partition:server`, separated by commas; or all, `*`."""
UNTHROTTLED = (1 << 63) - 1
PIECE_MS = 100
"""A piece takes about this long at the limit."""
PIECE_BYTES_MIN = 16 << 10


class MoveLimits:
    """The limits of one server."""

    __slots__ = ("_paced", "_state", "_throttle")

    def __init__(self, state: HostState, throttle: FeedThrottle) -> None:
        self._state = state
        self._throttle = throttle
        self._paced: dict[GroupId, Group] = {}
        """Groups with throttled replicas."""

    def look(self) -> None:
        """Apply the limits that operators have set.

        Use: once a second, and when the catalog has changed.
        """
        catalog = self._state.catalog
        if not self._paced and not catalog.moves:
            return
        everybody: Counter[ServerId] = Counter()
        mine: Counter[ServerId] = Counter()
        found: dict[Group, dict[NodeId, tuple[Hashable, ...]]] = {}
        for group_id, known in catalog.moves.items():
            if not known.origin:
                continue  # most have ended
            move, info = catalog.reassignment(group_id), catalog.groups.get(group_id)
            if move is None or info is None or not move.adding:
                continue
            limited = [s for s in move.adding if self._is_listed(info, FOLLOWER_REPLICAS, s)]
            everybody.update(limited)
            group = self._state.groups.get(group_id)
            if group is None:
                continue
            if group.node.is_leader:
                mine.update(limited)
            # Also where another server leads: a new leader would otherwise feed unthrottled for a
            # second.
            limits = self._limits(group, info, move.adding, limited)
            if limits:
                found[group] = limits
        self._pace(found, everybody, mine)

    def _limits(
        self,
        group: Group,
        info: GroupInfo,
        adding: list[ServerId],
        limited: list[ServerId],
    ) -> dict[NodeId, tuple[Hashable, ...]]:
        """Return the limits that apply to each added replica."""
        own_id = self._state.server_id
        leads = (
            self._is_listed(info, LEADER_REPLICAS, own_id)
            and self._rate(own_id, LEADER_RATE) < UNTHROTTLED
        )
        limits: dict[NodeId, tuple[Hashable, ...]] = {}
        for replica in group.placement:
            server_id = server_of(replica)
            if server_id not in adding:
                continue
            is_limited = server_id in limited and self._rate(server_id, FOLLOWER_RATE) < UNTHROTTLED
            own: tuple[Hashable, ...] = (LEADER_RATE,) if leads else ()
            if is_limited:
                own = (*own, (FOLLOWER_RATE, server_id))
            if own:
                limits[replica] = own
        return limits

    def _pace(
        self,
        found: dict[Group, dict[NodeId, tuple[Hashable, ...]]],
        everybody: Counter[ServerId],
        mine: Counter[ServerId],
    ) -> None:
        rates: dict[Hashable, int] = {
            LEADER_RATE: max(1, self._rate(self._state.server_id, LEADER_RATE))
        }
        for server_id, count in sorted(everybody.items()):
            rate = self._rate(server_id, FOLLOWER_RATE)
            rates[FOLLOWER_RATE, server_id] = max(1, rate * max(1, mine[server_id]) // count)
        for group in self._paced.values():
            if group not in found:
                group.node.pace({})
        for group, limits in found.items():
            group.node.pace(
                {
                    replica: piece_bytes(min(rates[limit] for limit in own))
                    for replica, own in limits.items()
                }
            )
        self._paced = {group.group_id: group for group in found}
        self._throttle.limit_moves(
            rates,
            {
                (group.feeding, replica): own
                for group, limits in found.items()
                for replica, own in limits.items()
            },
        )

    def _rate(self, server_id: ServerId, name: str) -> int:
        """Return the rate set on a server, or on all."""
        return rate_of(self._state.catalog.resources, server_id, name)

    def _is_listed(self, info: GroupInfo, name: str, server_id: ServerId) -> bool:
        topic = self._state.catalog.topics.get(info.topic)
        listed = "" if topic is None else topic.configs.get(name, "")
        wanted = {"*", f"{info.partition}:{server_id}"}
        return any(part.strip() in wanted for part in listed.split(","))


def piece_bytes(limit: int) -> int:
    """Return the number of bytes to move at a time, for which others wait."""
    return max(PIECE_BYTES_MIN, limit * PIECE_MS // 1_000)


def rate_of(resources: ResourceConfigs, server_id: ServerId, name: str) -> int:
    """Return the bytes a second that an operator set for a server, or for all; or `UNTHROTTLED`."""
    for resource in (str(server_id), ""):
        text = resources.of(ResourceType.BROKER, resource).get(name)
        if text is not None:
            return int(text)
    return UNTHROTTLED
