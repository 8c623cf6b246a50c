"""DescribeCluster (key 60): the servers, the cluster's id, who leads the catalog. KIP-700.

v1: brokers or controllers (KIP-919); there is no separate controller to describe here. v2: servers
that are registered but not reachable, as fenced (KIP-1073).
"""

from __future__ import annotations

from enum import IntEnum

from vdl.errors import ErrorCode
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.metadata import CLUSTER_OPERATIONS, View
from vdl.kafka.wire.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


class EndpointType(IntEnum):
    """Which kind of endpoint a client wants to know."""

    BROKERS = 1
    CONTROLLERS = 2


def handle_describe_cluster(
    ctx: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """All servers that clients of this listener may connect to."""
    view = View(ctx)
    host = ctx.server.host
    response = DescribeClusterResponse(cluster_id=host.cluster_id)
    if request.endpoint_type != EndpointType.BROKERS:
        known = request.endpoint_type == EndpointType.CONTROLLERS
        response.error_code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        response.error_message = "only brokers can be described here"
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
