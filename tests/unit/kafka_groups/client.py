"""Short helpers for group requests, and a member that behaves as Kafka's consumers do."""

from __future__ import annotations

from typing import Any

from tests.unit.kafka_groups.cluster import Call, Cluster
from vdl.errors import ErrorCode
from vdl.kafka.wire import heartbeat as heartbeat_wire
from vdl.kafka.wire import join_group as join_wire
from vdl.kafka.wire import leave_group as leave_wire
from vdl.kafka.wire import sync_group as sync_wire

GROUP = "group"
JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14


def join(
    cluster: Cluster, member_id: str = "", *, version: int = 9, server: int = 1, **fields: Any
) -> Call:
    protocols = fields.pop("protocols", {"range": b"r"})
    user = fields.pop("user", "")
    request = join_wire.JoinGroupRequest(
        group_id=fields.pop("group_id", GROUP),
        session_timeout_ms=fields.pop("session_timeout_ms", 10_000),
        rebalance_timeout_ms=fields.pop("rebalance_timeout_ms", 60_000) if version else -1,
        member_id=member_id,
        protocol_type=fields.pop("protocol_type", "consumer"),
        protocols=[join_wire.JoinGroupRequestProtocol(n, d) for n, d in protocols.items()],
        **fields,
    )
    return cluster.call(JOIN, version, request, server=server, user=user)


def sync(
    cluster: Cluster,
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    version: int = 5,
    server: int = 1,
    **fields: Any,
) -> Call:
    if version >= 5:
        fields = {"protocol_type": "consumer", "protocol_name": "range"} | fields
    user = fields.pop("user", "")
    request = sync_wire.SyncGroupRequest(
        group_id=fields.pop("group_id", GROUP),
        generation_id=generation,
        member_id=member_id,
        assignments=[
            sync_wire.SyncGroupRequestAssignment(m, a) for m, a in (assignments or {}).items()
        ],
        **fields,
    )
    return cluster.call(SYNC, version, request, server=server, user=user)


def heartbeat(
    cluster: Cluster, member_id: str, generation: int, *, server: int = 1, **fields: Any
) -> ErrorCode:
    group_id = fields.pop("group_id", GROUP)
    request = heartbeat_wire.HeartbeatRequest(group_id, generation, member_id, **fields)
    return ErrorCode(cluster.call(HEARTBEAT, 4, request, server=server).response.error_code)


def leave(
    cluster: Cluster, *members: tuple[str, str | None], version: int = 5, server: int = 1
) -> Call:
    request = leave_wire.LeaveGroupRequest(group_id=GROUP)
    if version < 3:
        request.member_id = members[0][0]
    else:
        request.members = [leave_wire.MemberIdentity(m, i) for m, i in members]
    return cluster.call(LEAVE, version, request, server=server)


def new_member(cluster: Cluster, *, server: int = 1, **fields: Any) -> tuple[str, Call]:
    """Send a dynamic member's two requests; return (its id, the second call)."""
    first = join(cluster, server=server, **fields).response
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return first.member_id, join(cluster, first.member_id, server=server, **fields)


def stable_group(cluster: Cluster, count: int = 2) -> tuple[list[str], int]:
    """Return (member ids, the first one leads; generation) of a stable group."""
    ids: list[str] = []
    for _ in range(count):
        member_id, newest = new_member(cluster)
        ids.append(member_id)
        joins = [join(cluster, other) for other in ids[:-1]]
        generation = newest.response.generation_id
        assert all(call.response.generation_id == generation for call in joins)
        assignments = {member: member.encode() for member in ids}
        assert sync(cluster, ids[0], generation, assignments).response.error_code == 0
        for member in ids[1:]:
            assert sync(cluster, member, generation).response.assignment == member.encode()
    return ids, generation
