"""ElectLeaders (key 43): elect the preferred leaders of partitions (KIP-183).

v1 names the kind of election (KIP-460), v2 is flexible. The preferred leader is the first replica
of the placement. It is elected by a leadership transfer, which this server requests from the
leader. The leader may refuse: the replica is not there, has not caught up, or is damaged. A
partition is answered when this server sees the preferred replica lead.

An unclean election would lose acknowledged records. No replica here is eligible for one, so such a
request gets an error and has no effect. As in Kafka, the answer to a request for all partitions
leaves out those that need no election.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from ids import NO_LEADER, GroupId, ServerId
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.leaders import when_led_by
from vdl.kafka.wire.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_REQUEST_ERROR_FROM = 1
_PATIENCE_NS = 10_000 * MS
"""Time after which a transfer has failed."""


class ElectionType(IntEnum):
    """Kind of election, by the replicas that are eligible."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class _Awaited:
    """A partition whose leader was requested to transfer its leadership."""

    group_id: GroupId
    preferred: ServerId
    result: PartitionResult


def handle_elect_leaders(
    ctx: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse | Later:
    """Elect leaders; each partition has its own answer. Null means all partitions."""
    if request.election_type not in ElectionType.__members__.values():
        return fail_elect_leaders(request, ctx.api_version, ErrorCode.INVALID_REQUEST)
    kind = ElectionType(request.election_type)
    response = ElectLeadersResponse()
    by_leader: dict[ServerId, list[_Awaited]] = {}
    for name, indexes in _asked(ctx, request):
        answered = ReplicaElectionResult(topic=name)
        response.replica_election_results.append(answered)
        for index in indexes:
            result = PartitionResult(index, ErrorCode.NONE, None)
            leader, awaited = _begin(ctx, kind, name, result)
            if request.topic_partitions is None and result.error_code == (
                ErrorCode.ELECTION_NOT_NEEDED
            ):
                continue
            answered.partition_result.append(result)
            if awaited is not None:
                by_leader.setdefault(leader, []).append(awaited)
    if not by_leader:
        return response
    later = Later()
    _ask_leaders(ctx, request, response, by_leader, later)
    return later


def fail_elect_leaders(
    request: ElectLeadersRequest, version: int, code: ErrorCode
) -> ElectLeadersResponse:
    """Return `code` for each partition, and for the request in versions that have a field for
    it."""
    return ElectLeadersResponse(
        error_code=code if version >= _REQUEST_ERROR_FROM else ErrorCode.NONE,
        replica_election_results=[
            ReplicaElectionResult(
                topic.topic, [PartitionResult(index, code, None) for index in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _asked(
    ctx: RequestContext, request: ElectLeadersRequest
) -> Iterator[tuple[str, list[int] | range]]:
    if request.topic_partitions is not None:
        yield from ((topic.topic, topic.partitions) for topic in request.topic_partitions)
        return
    for name, topic in sorted(ctx.server.host.catalog.topics.items()):
        yield name, range(len(topic.partitions))


def _begin(
    ctx: RequestContext, kind: ElectionType, name: str, result: PartitionResult
) -> tuple[ServerId, _Awaited | None]:
    """Return the present leader, and the partition if that leader should transfer its leadership.

    Otherwise `result` has the reason why not.
    """
    host = ctx.server.host
    index = result.partition_id
    topic = host.catalog.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result.error_message = f"partition {index} of topic '{name}' does not exist"
        return NO_LEADER[0], None
    group_id = topic.partitions[index]
    leader, _term = host.leader_of(group_id)
    preferred = host.catalog.groups[group_id].replicas[0].server_id
    if leader == preferred or (kind is ElectionType.UNCLEAN and leader >= 0):
        result.error_code = ErrorCode.ELECTION_NOT_NEEDED
        result.error_message = f"server {leader} is already the leader"
    elif kind is ElectionType.UNCLEAN:
        result.error_code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        result.error_message = (
            "unclean elections are not supported: they would lose acknowledged records"
        )
    elif leader < 0 or preferred not in host.in_sync_of(group_id):
        _refuse(result, preferred)
    else:
        return leader, _Awaited(group_id, preferred, result)
    return leader, None


def _refuse(result: PartitionResult, preferred: ServerId) -> None:
    result.error_code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    result.error_message = (
        f"server {preferred} cannot take over: it is not in sync, or does not serve clients"
    )


def _ask_leaders(
    ctx: RequestContext,
    request: ElectLeadersRequest,
    response: ElectLeadersResponse,
    by_leader: dict[ServerId, list[_Awaited]],
    later: Later,
) -> None:
    server = ctx.server
    deadline_ns = min(ctx.deadline_ns(request.timeout_ms), ctx.received_ns + _PATIENCE_NS)
    waiting: list[_Awaited] = []
    unasked = set(by_leader)

    def leads(one: _Awaited) -> bool:
        return server.host.leader_of(one.group_id)[0] == one.preferred

    def asked(leader: ServerId, refused: frozenset[GroupId] | None) -> None:
        for one in by_leader[leader]:
            if refused is None or one.group_id not in refused:
                waiting.append(one)
            elif not leads(one):
                _refuse(one.result, one.preferred)
        unasked.discard(leader)
        if not unasked:
            wanted = [(one.group_id, one.preferred) for one in waiting]
            when_led_by(server, wanted, deadline_ns=deadline_ns, later=later, done=finish)

    def asked_in_a_step(leader: ServerId, refused: frozenset[GroupId] | None) -> None:
        later.run(partial(asked, leader, refused))

    def finish() -> None:
        for one in waiting:
            if not leads(one):
                one.result.error_code = ErrorCode.REQUEST_TIMED_OUT
                one.result.error_message = (
                    f"server {one.preferred} has not become the leader in time"
                )
        later.complete(response)

    for leader, awaited in sorted(by_leader.items()):
        server.host.elect_preferred(
            leader,
            [one.group_id for one in awaited],
            deadline_ns=deadline_ns,
            done=partial(asked_in_a_step, leader),
        )
