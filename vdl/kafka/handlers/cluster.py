"""Servers of the cluster: DescribeCluster (key 60), DescribeQuorum (55), UnregisterBroker (64).

DescribeCluster (KIP-700): the servers, the cluster's id, and the catalog's leader. v1: brokers or
controllers (KIP-919); there is no separate controller to describe here. v2: servers that are
registered but not reachable, as fenced (KIP-1073).

DescribeQuorum (KIP-595): the members of the catalog, under the name of Kafka's metadata log. v1 the
times when they were last heard from and caught up (KIP-836), v2 directories and addresses of the
members (KIP-853). The catalog's leader is queried. An offset here is the index of a Raft entry: the
log's end is the index after the last, the high watermark that after the last committed one.

UnregisterBroker (KIP-631) removes a server that has no replica of a partition; `vdl member remove`
also moves the partitions, and the votes of a server that holds the catalog and the coordinators.
Such a voter is refused here.
"""

from __future__ import annotations

from enum import IntEnum

from ids import ServerId
from rpc.queries import Quorum, QuorumMember
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.metadata import CLUSTER_OPERATIONS, View
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.wire.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from vdl.kafka.wire.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)
from vdl.kafka.wire.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import DecommissionServer

_DIRECTORIES_FROM = 2
_METADATA_TOPIC = "__cluster_metadata"
"""Kafka's name of the log that all servers follow; its one partition is 0."""


class EndpointType(IntEnum):
    """Kind of endpoint that a client requests."""

    BROKERS = 1
    CONTROLLERS = 2


def handle_describe_cluster(
    ctx: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Return all servers to which clients of this listener may connect."""
    view = View(ctx)
    host = ctx.server.host
    response = DescribeClusterResponse(cluster_id=host.cluster_id)
    if request.endpoint_type != EndpointType.BROKERS:
        known = request.endpoint_type == EndpointType.CONTROLLERS
        response.error_code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        response.error_message = "only brokers can be described"
        return response
    response.controller_id = view.controller_id()
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    for server_id, server in sorted(host.catalog.servers.items()):
        address = server.listeners.get(ctx.connection.listener)
        fenced = not view.may_be_alive(server_id)
        if address is None or (fenced and not request.include_fenced_brokers):
            continue
        response.brokers.append(
            DescribeClusterBroker(server_id, address[0], address[1], server.rack or None, fenced)
        )
    return response


def handle_describe_quorum(
    ctx: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse | Later:
    """Return the catalog's members; any other topic has no quorum to describe."""
    asked = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if asked != [(_METADATA_TOPIC, [0])]:
        return DescribeQuorumResponse(
            topics=[
                TopicDataResponse(
                    name,
                    [
                        PartitionDataResponse(
                            index,
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            f"only {_METADATA_TOPIC}-0 has a quorum",
                        )
                        for index in indexes
                    ],
                )
                for name, indexes in asked
            ]
        )
    later = Later()

    def found(quorum: Quorum | None) -> None:
        later.run(lambda: later.complete(_description(ctx, quorum)))

    deadline_ns = ctx.received_ns + ctx.server.config.read_timeout_ms * MS
    ctx.server.host.describe_quorum(deadline_ns=deadline_ns, done=found)
    return later


def _description(ctx: RequestContext, quorum: Quorum | None) -> DescribeQuorumResponse:
    host = ctx.server.host
    partition = PartitionDataResponse(error_message=None)
    response = DescribeQuorumResponse(
        error_message=None, topics=[TopicDataResponse(_METADATA_TOPIC, [partition])]
    )
    if quorum is None:
        partition.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.error_message = "the leader of the catalog is currently unknown; retry"
        return response
    partition.leader_id = quorum.leader
    partition.leader_epoch = quorum.term
    partition.high_watermark = quorum.commit + 1
    for member in quorum.members:
        state = _replica_state(ctx, member)
        (partition.observers if member.is_learner else partition.current_voters).append(state)
    if ctx.api_version < _DIRECTORIES_FROM:
        return response
    for server_id in sorted(member.server_id for member in quorum.members):
        server = host.catalog.servers.get(server_id)
        if server is not None:
            listeners = [Listener(n, h, p) for n, (h, p) in sorted(server.listeners.items())]
            response.nodes.append(Node(server_id, listeners))
    return response


def _replica_state(ctx: RequestContext, member: QuorumMember) -> ReplicaState:
    directory_id: bytes | None = ctx.server.host.catalog.directory_of(member.server_id)
    if directory_id is None or ctx.api_version < _DIRECTORIES_FROM:
        directory_id = bytes(16)
    return ReplicaState(
        replica_id=member.server_id,
        replica_directory_id=directory_id,
        log_end_offset=member.last + 1,
        last_fetch_timestamp=member.heard_ms,
        last_caught_up_timestamp=member.caught_up_ms,
    )


def handle_unregister_broker(
    ctx: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse | Later:
    """Have an added server removed; the catalog's leader does it within a second or two."""
    server_id = ServerId(request.broker_id)
    host = ctx.server.host
    error, complaint = host.catalog.why_no_removal(server_id)
    if error is not ErrorCode.NONE:
        return UnregisterBrokerResponse(error_code=error, error_message=complaint)
    if server_id not in host.catalog.added or host.catalog.has_votes(server_id):
        return UnregisterBrokerResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=(
                f"server {server_id} votes in the catalog and the coordinators: use vdl member "
                "remove"
            ),
        )
    if held := host.catalog.held_by(server_id):
        return UnregisterBrokerResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=(
                f"server {server_id} has replicas of {len(held)} partitions, such as "
                f"{held[0].topic}-{held[0].partition}: move them first, or use vdl member remove"
            ),
        )
    later = Later()

    def decided(outcome: Outcome) -> None:
        response = UnregisterBrokerResponse(error_message=None)
        if outcome.kind is OutcomeKind.APPLIED:
            response.error_code = outcome.result.error
            response.error_message = outcome.result.message or None
        else:
            response.error_code, response.error_message = undecided(outcome)
        later.complete(response)

    host.propose_catalog(
        DecommissionServer(server_id, host.catalog.added[server_id].directory_id),
        deadline_ns=ctx.received_ns + ctx.server.config.read_timeout_ms * MS,
        done=lambda outcome: later.run(lambda: decided(outcome)),
    )
    return later
