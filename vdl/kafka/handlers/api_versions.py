"""ApiVersions (key 18): what this server speaks, from the one table. KIP-35, KIP-511.

The answer's header is always version 0, whatever the request's version: a client that does not yet
know what the server speaks must be able to read it. A request of a version this server does not
know is answered in version 0 with UNSUPPORTED_VERSION and the range of ApiVersions alone, so that
the client can ask again; the connection stays.

v3 features: what this server understands, and what the cluster has finalised (KIP-584). v4 also
those that begin at level 0 (KAFKA-17011). v5 a client says whom it means to ask: another server, or
one of another cluster, at that address tells it to begin anew (KIP-1242).

The APIs of clients' metrics are listed while there is a subscription (KIP-714).
"""

from __future__ import annotations

import re

from vdl.errors import ErrorCode
from vdl.kafka.api import API, advertised
from vdl.kafka.context import RequestContext
from vdl.kafka.wire.api_versions import (
    API_KEY,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from vdl.state.features import SUPPORTED

_ANY_NODE = -1
_SOFTWARE_FROM = 3
"""KIP-511: the version from which clients say what they are."""

SOFTWARE_CHARS_MAX = 100
"""Of what a client says it is, the rest is forgotten."""

_LEVEL_0_FROM = 4
"""Older clients refuse a feature whose lowest level is 0, and are not told of it."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What a client software's name and version may look like (KIP-511)."""


def handle_api_versions(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Every API and version this server answers."""
    if ctx.api_version >= _SOFTWARE_FROM:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        # Kept as long as the connection, and told in metrics and the log.
        ctx.connection.client_software_name = name[:SOFTWARE_CHARS_MAX]
        ctx.connection.client_software_version = version[:SOFTWARE_CHARS_MAX]
    host = ctx.server.host
    if request.cluster_id not in (None, host.cluster_id) or (
        request.node_id not in (_ANY_NODE, host.server_id)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    features = host.catalog.features
    lowest = 0 if ctx.api_version >= _LEVEL_0_FROM else 1
    has_telemetry = ctx.server.client_metrics.has_subscriptions(host.catalog.resources)
    return ApiVersionsResponse(
        api_keys=[ApiVersion(*row) for row in advertised(has_telemetry=has_telemetry)],
        supported_features=[
            SupportedFeatureKey(name, low, high)
            for name, (low, high, _) in SUPPORTED.items()
            if low >= lowest
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name, level, level)
            for name, level in sorted(features.levels.items())
        ],
    )


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to an ApiVersions of a version this server does not know."""
    own = API[API_KEY]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(API_KEY, own.min_version, own.max_version)],
    )
