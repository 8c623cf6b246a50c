"""Campaigns of one replica before its election timeout, because its leader is certainly gone.

Simultaneous candidates split the vote, so the replicas that are left campaign one after another, in
order of preference. A losing candidate retries after a growing random delay, until the election
timeout applies again.

Does not depend on the group's log or entries, or on how the loss of a leader is detected. Callers
must have counted the ticks that have passed (`Group.catch_up`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence, Set

from ids import NodeId, ServerId
from raft.node import RawNode
from vdl.clock import MS
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.options import HostOptions

CAMPAIGNS_PER_TICK = 10
"""Number of leaderless groups whose campaigns end within one tick, at 1 ms each."""

_LATELY_NS = 1_000 * MS
"""Time for which the loss of a leader is reported to clients."""
_NO_LOSS = (0, ServerId(0))


class Campaigning:
    """Early campaigns of one replica, and the last loss of its group's leader."""

    __slots__ = (
        "_node", "_options", "_rng", "before", "gone_tick", "lost_leader", "reason",
    )  # fmt: skip

    def __init__(self, node: RawNode, options: HostOptions, rng: random.Random) -> None:
        self._node = node
        self._options = options
        self._rng = rng
        self.gone_tick = 0
        """Tick at which the leader's process was proved gone; 0 once there is a leader, or once the
        election timeout applies again."""
        self.lost_leader = _NO_LOSS
        """Time of the last loss of the leader's server (monotonic ns), and that server."""
        self.reason = ""
        """Reason of the next election, should this replica win it; empty: no leader was known."""
        self.before = ServerId(0)
        """The leader's server until then; 0: unknown."""

    def because(self, reason: str, leader: NodeId) -> None:
        """Note why an election is due, and the replica that led until then, 0 if unknown."""
        self.reason, self.before = reason, server_of(leader)

    def is_leaderless(self, servers: Set[ServerId]) -> bool:
        """Return True if the group has no leader, though most voters are on these servers."""
        node = self._node
        voters = node.membership.incoming
        reachable = [replica for replica in voters if server_of(replica) in servers]
        return not (node.lead or node.is_leader or len(reachable) * 2 <= len(voters))

    def take_turn(
        self,
        placement: Sequence[NodeId],
        servers: Mapping[ServerId, bool],
        tick: int,
        *,
        leaderless: int,
    ) -> None:
        """Campaign soon, because the leader's process is gone, unless another replica wins first.

        Replicas on `servers`, those alive, campaign one after another in order of preference:
        simultaneous candidates split the vote. Those marked there as servers that should not lead
        come last. A candidate that lacks entries loses its turn.

        `leaderless`: number of groups that lost their leader together. If they are many, the
        campaigns of the first replicas take longer, so the others wait longer, an election timeout
        at most.
        """
        options, node = self._options, self._node
        # Leader lists prove that a leader is alive, and are looked up only when the election timer
        # is due: with this it may be due now, for all remaining replicas.
        node.leader_heard(0)
        self.because("process_ended", node.lead)
        node.forget_leader()
        # If none is there, the replicas are about to be moved away; they still exist.
        members = sorted(node.membership.members())
        alive = _in_turn(placement, servers) or _in_turn(members, servers)
        last = max(0, len(alive) - 1)
        turn = alive.index(node.id) if node.id in alive else last
        spread = max(
            options.failover_ticks_max - options.failover_ticks_min,
            min(leaderless // CAMPAIGNS_PER_TICK, options.election_ticks),
        )
        node.campaign_soon(options.failover_ticks_min + spread * turn // max(1, last))
        self.gone_tick = tick

    def leader_resigned(self) -> None:
        """Restart the election timer: the leader was alive until now, and has resigned.

        The timer starts with a random part of the election timeout already elapsed, as if the
        leader had been heard that long ago.
        """
        node = self._node
        node.leader_heard(self._rng.randrange(node.raft.randomized_election_timeout))

    def leader_gave_up(
        self, placement: Sequence[NodeId], servers: Mapping[ServerId, bool], tick: int
    ) -> None:
        """React to a leader of this term that resigned because it does not hear a quorum.

        The preferred replica among those on `servers`, the servers alive except the leader's own,
        campaigns soon. The others wait as after a resignation, because two candidates on slow
        disks would use up terms. See `take_turn`.
        """
        node = self._node
        self.leader_resigned()
        self.because("gave_up", node.lead)
        node.forget_leader()
        alive = _in_turn(placement, servers)
        if alive and alive[0] == node.id:
            node.campaign_soon(self._options.failover_ticks_min)
            self.gone_tick = tick

    def retry(self, tick: int) -> None:
        """Campaign again before the election timeout while there is no leader.

        Use: in each turn, while `gone_tick` is set. Votes may have been split, or a request may
        have come before its receiver knew of the loss. The delay grows, because a slow disk needs
        time. It ends with the election timeout: there may be no majority.
        """
        node, options = self._node, self._options
        ticks = max(2 * options.failover_ticks_max, tick - self.gone_tick)
        if node.lead or ticks >= options.election_ticks:
            self.gone_tick = 0
        elif not node.raft.campaign_due:
            node.campaign_soon(self._rng.randint(ticks, 2 * ticks))

    def lately_lost_leader(self, now_ns: int) -> tuple[int, ServerId]:
        """Return when the group lost its leader together with the leader's server, and that server.

        (0, 0) if there was no recent loss.
        """
        return self.lost_leader if now_ns - self.lost_leader[0] <= _LATELY_NS else _NO_LOSS


def _in_turn(replicas: Iterable[NodeId], servers: Mapping[ServerId, bool]) -> list[NodeId]:
    """Return the replicas on these servers, those that should lead first."""
    alive = [replica for replica in replicas if server_of(replica) in servers]
    return sorted(alive, key=lambda replica: not servers[server_of(replica)])
