"""Raft ids of replicas: the server and the number of the replica on it, in one number."""

from __future__ import annotations

from ids import NodeId, ReplicaNumber, ServerId

SERVER_SHIFT = 16
"""A Raft id is `server_id << 16 | replica_number`."""


def server_of(replica_id: NodeId) -> ServerId:
    """Return the server of a Raft id; 0 for no replica."""
    return replica_id >> SERVER_SHIFT


def replica_id_of(server_id: ServerId, replica_number: ReplicaNumber) -> NodeId:
    """Return the Raft id of a server's replica. The catalog assigns replica numbers."""
    assert 0 < replica_number < 1 << SERVER_SHIFT, replica_number
    return NodeId(server_id << SERVER_SHIFT | replica_number)
