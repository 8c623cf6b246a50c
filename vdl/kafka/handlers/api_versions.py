"""ApiVersions (key 18): what this server speaks, from the one table. KIP-35, KIP-511.

The answer's header is always version 0, whatever the request's version: a client that does not yet
know what the server speaks must be able to read it. A request of a version this server does not
know is answered in version 0 with UNSUPPORTED_VERSION and the range of ApiVersions alone, so that
the client can ask again; the connection stays.

No feature is listed as supported or finalised: none of Kafka's feature levels (`metadata.version`,
`group.version`, `transaction.version`) means here what it means there.
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
)

_SOFTWARE_FROM = 3
"""KIP-511: the version from which clients say what they are."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""What a client software's name and version may look like (KIP-511)."""


def handle_api_versions(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Every API and version this server answers."""
    if ctx.api_version >= _SOFTWARE_FROM:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        ctx.connection.client_software_name = name
        ctx.connection.client_software_version = version
    return ApiVersionsResponse(api_keys=[ApiVersion(*row) for row in advertised()])


def unsupported_version() -> ApiVersionsResponse:
    """The answer, in version 0, to an ApiVersions of a version this server does not know."""
    own = API[API_KEY]
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(API_KEY, own.min_version, own.max_version)],
    )
