"""ApiVersions (key 18): APIs and versions of this server, from the API table. KIP-35, KIP-511.

The answer's header is always version 0: a client that does not yet know the server's versions must
be able to read it. A request of an unknown version is answered in version 0 with
UNSUPPORTED_VERSION and the range of ApiVersions alone, so that the client can retry; the connection
stays.

v3 features: those this server supports, and those the cluster has finalised (KIP-584). v4 also
features that begin at level 0 (KAFKA-17011). v5 a client names the server it means to reach:
another server, or one of another cluster, at that address answers that it must rebootstrap
(KIP-1242).

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
"""KIP-511: first version in which clients name their software."""

SOFTWARE_CHARS_MAX = 100
"""Maximum length that is kept of a client's software name and version."""

_LEVEL_0_FROM = 4
"""Older clients refuse a feature whose lowest level is 0, so it is left out of their answers."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Allowed form of a client software's name and version (KIP-511)."""


def handle_api_versions(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Return every API and version that this server answers."""
    if ctx.api_version >= _SOFTWARE_FROM:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        # Kept as long as the connection, and shown in metrics and the log.
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
    """Return the answer, in version 0, to an ApiVersions request of an unknown version."""
    own = API[API_KEY]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(API_KEY, own.min_version, own.max_version)],
    )
