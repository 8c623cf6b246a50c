"""Reads from followers (KIP-392): the choice of a replica, and the conditions for serving.

A consumer that names its rack may read from a replica there instead of the leader. The leader
chooses: of the replicas in that rack that are in sync, by its own progress, and hold the requested
offset, the one that holds most. A replica with damaged entries is not chosen until they are
repaired: its consumers would return to the leader again and again.

A follower serves records that it knows to be committed while the leader, as heard of within an
election timeout, lists it as in sync. It learns commit indexes up to 50 ms late
(`commit_propagation.py`). In case of doubt the consumer returns to the leader, which decides.

Does not depend on requests, sessions or readers.
"""

from __future__ import annotations

from ids import GroupId, NodeId, Offset, ServerId
from raft.errors import Compacted, NotInMemory
from raft.progress import ProgressState
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.options import TICK_NS
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState


class FollowerReads:
    """Follower reads on one server."""

    __slots__ = ("_liveness", "_state", "_status", "_within_ns")

    def __init__(self, state: HostState, liveness: Liveness, status: ServerStatus) -> None:
        self._state = state
        self._liveness = liveness
        self._status = status
        self._within_ns = state.options.election_ticks * TICK_NS

    def may_serve(self, group_id: GroupId) -> bool:
        """Return True if the replica here, which does not lead, may be read from.

        It must be a voter that stays, whole, and listed as in sync by its present leader.
        """
        state = self._state
        group = state.groups.get(group_id)
        if group is None or group.node.is_leader or not group.is_whole:
            return False
        node, replica = group.node, group.replica_id
        if replica not in group.placement or replica not in node.membership.incoming:
            return False
        heard = self._liveness.leader_heard(group_id)
        if heard is None:
            return False
        term, leader, ago_ns = heard
        is_followed = (term, leader) == (node.term, node.lead) and ago_ns < self._within_ns
        return is_followed and state.server_id in self._liveness.in_sync_of(group_id)

    def replica_for(self, group_id: GroupId, rack: str, offset: Offset) -> ServerId:
        """Return the server from which consumers in a rack should read a led group; -1: this one.

        `offset`: the first one they read, which is not above the high watermark.
        """
        state = self._state
        servers = state.catalog.servers
        own, in_sync = servers.get(state.server_id), state.in_sync.get(group_id)
        if in_sync is None or own is None or own.rack == rack:
            return ServerId(-1)
        group, best, best_match = in_sync.group, ServerId(-1), -1
        for replica in group.placement:
            server = server_of(replica)
            info = servers.get(server)
            if info is None or info.rack != rack or server not in state.alive:
                continue
            if self._status.has_damage(server, group_id):
                continue
            if replica in in_sync.replicas and _holds(group, replica, offset):
                progress = group.node.progress(replica)
                assert progress is not None, replica
                if progress.match > best_match:
                    best, best_match = server, progress.match
        return best


def _holds(group: Group, replica: NodeId, offset: Offset) -> bool:
    """Return True if a led group's replica has shown that it holds all records before `offset`."""
    node = group.node
    progress = node.progress(replica)
    if progress is None or progress.state is not ProgressState.REPLICATE:
        return False
    if progress.match >= node.commit:
        return True
    try:
        missing = node.raft.log.slice(progress.match + 1, progress.match + 2, 0)
    except (Compacted, NotInMemory):
        return False
    return missing[0].base_offset >= offset
