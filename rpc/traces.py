"""Traced requests: where the time of one request went, as the admin plane sends it.

The messages are plain dataclasses whose fields have the names of `proto/admin.proto`, as in
`admin.py`. A server fills them in where its requests end.

Does not depend on gRPC, or on the choice of the requests that are traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ids import NO_TERM, ServerId, Term

PARTITIONS_NAMED: Final = 8
"""Partitions that a traced request names."""
TOPICS_NAMED: Final = 100
"""Topics by which a traced request is found."""
TRACE_NAMES_MAX: Final = 100
"""Names in the filter of a trace, of at most `TRACE_NAME_CHARS_MAX` characters."""
TRACE_NAME_CHARS_MAX: Final = 256


@dataclass(slots=True)
class Stage:
    """One stage of a request. Stages do not overlap; their sum is the time of the request."""

    name: str
    start_ns: int
    """Counted from the beginning of the request."""
    duration_ns: int


@dataclass(slots=True)
class TracedRequest:
    """One request that was answered. Names of clients are cut, and may hold any character."""

    number: int = 0
    """Number of the request among those of its server, ascending in the order of the answers."""
    server_id: ServerId = ServerId(0)
    api: str = ""
    version: int = 0
    correlation_id: int = 0
    client_id: str = ""
    principal: str = ""
    listener: str = ""
    peer: str = ""
    """Address and port of the client."""
    connection_id: int = 0
    began_ms: int = 0
    """Milliseconds since 1970 at which its first bytes were read, by the server's clock."""
    total_ns: int = 0
    """Time from its first bytes until its answer was given to the socket."""
    busy_ns: int = 0
    """The same without the time that the client asked the server to wait for records."""
    request_bytes: int = 0
    response_bytes: int = 0
    partitions: list[str] = field(default_factory=list)
    """Topics or partitions that the request named, the first few."""
    partition_count: int = 0
    topics: frozenset[str] = frozenset()
    """Topics that it named, the first hundred, until filters have seen them. Not sent."""
    group: str = ""
    """Consumer group, share group or transactional id that it named."""
    slowest: str = ""
    """Produce: the partition whose batch was acknowledged last."""
    term: Term = NO_TERM
    """Term of that partition's leader, which is also its leader epoch."""
    acked_by: ServerId = ServerId(0)
    """Server whose acknowledgement that batch waited for last; 0: none, or not known."""
    stages: list[Stage] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Upper bound of the memory that it takes."""
        names = self.client_id, self.principal, self.peer, self.group, self.slowest
        return _FIXED_BYTES + 4 * sum(map(len, (*names, *self.partitions)))


_FIXED_BYTES = 2_400
"""Memory of a traced request with its stages, without the characters of its names."""


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Requests to be traced. An empty list selects all."""

    apis: Sequence[str] = ()
    topics: Sequence[str] = ()
    client_ids: Sequence[str] = ()
    slower_than_ns: int = 0
    """Compared with `TracedRequest.busy_ns`."""
    duration_ns: int = 0
    requests_max: int = 0

    def takes(self, request: TracedRequest) -> bool:
        """Return True if it selects this request."""
        return (
            request.busy_ns >= self.slower_than_ns
            and (not self.apis or request.api in self.apis)
            and (not self.client_ids or request.client_id in self.client_ids)
            and (not self.topics or not request.topics.isdisjoint(self.topics))
        )


@dataclass(slots=True)
class TracedRequests:
    """Requests that a server has traced.

    `ended`: reason why nothing follows; empty while a trace runs.
    """

    requests: list[TracedRequest] = field(default_factory=list)
    ended: str = ""
