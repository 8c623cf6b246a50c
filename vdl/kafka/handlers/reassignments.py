"""Placement of partitions' replicas on servers (KIP-455).

AlterPartitionReassignments (key 45), ListPartitionReassignments (key 46).

45 v1: a change of the number of replicas can be forbidden (KIP-860).

A reassignment is sent to any server, decided by the catalog, and carried out by the partition's
group (`vdl/logstream/membership/reassignment.py`). The answer means that the catalog has decided,
as with Kafka; 46 and Metadata report the progress. While a reassignment is in progress they list
the replicas being added and removed. After a cancellation they list the former ones only, though
others may exist a moment longer. 46 is answered from this server's own applied catalog.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ids import GroupId, ServerId
from vdl.errors import ErrorCode
from vdl.kafka.answer import Gathering, Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.wire.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from vdl.kafka.wire.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.catalog import Catalog
from vdl.state.commands import AlterReassignments, Reassign
from vdl.state.topic_names import topic_name_complaint

CHANGES_PER_COMMAND = 1_000
"""Maximum number of changes in a command. A command is applied in one piece on every server, so
more changes are split into several."""

_Change = tuple[Reassign, ReassignablePartitionResponse]


def handle_alter_partition_reassignments(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse | Later:
    """Start or cancel reassignments; each partition has its own answer."""
    server = ctx.server
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
    )
    changes: list[_Change] = []
    for topic in request.topics:
        results = ReassignableTopicResponse(topic.name)
        response.responses.append(results)
        # A command repeats the topic name for each partition, so a name of 32 KiB must not get in.
        is_wrong = bool(topic_name_complaint(topic.name))
        for asked in topic.partitions:
            result = ReassignablePartitionResponse(asked.partition_index, error_message=None)
            results.partitions.append(result)
            if is_wrong:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                result.error_message = "the partition does not exist"
                continue
            replicas = asked.replicas
            servers = None if replicas is None else [ServerId(n) for n in replicas]
            changes.append((Reassign(topic.name, asked.partition_index, servers), result))
    parts = Gathering(response)
    deadline_ns = ctx.deadline_ns(request.timeout_ms)
    for start in range(0, len(changes), CHANGES_PER_COMMAND):
        some = changes[start : start + CHANGES_PER_COMMAND]
        parts.expect()
        server.host.propose_catalog(
            AlterReassignments(
                [change for change, _ in some],
                may_change_count=request.allow_replication_factor_change,
                replicas_per_server_max=server.config.replicas_per_server_max,
            ),
            deadline_ns=deadline_ns,
            done=partial(_decided, parts, some, is_all=len(some) == len(changes)),
        )
    return parts.result()


def _decided(
    parts: Gathering[AlterPartitionReassignmentsResponse],
    changes: list[_Change],
    outcome: Outcome,
    *,
    is_all: bool,
) -> None:
    def fill() -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            for (error, message), (_, result) in zip(outcome.result.errors, changes, strict=True):
                result.error_code, result.error_message = error, message or None
        else:
            code, text = undecided(outcome)
            if is_all:
                # Clients read the error there to decide on a retry.
                parts.response.error_code, parts.response.error_message = code, text
            for _, result in changes:
                result.error_code, result.error_message = code, text
        parts.arrived()

    parts.later.run(fill)


def handle_list_partition_reassignments(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Return the reassignments in progress, of the named partitions or of all."""
    catalog = ctx.server.host.catalog
    response = ListPartitionReassignmentsResponse(error_message=None)
    for name, partitions in sorted(_asked_for(catalog, request).items()):
        found = OngoingTopicReassignment(name)
        for index, group_id in sorted(partitions.items()):
            moving = catalog.reassignment(group_id)
            if moving is not None:
                found.partitions.append(
                    OngoingPartitionReassignment(
                        index, [*moving.replicas], [*moving.adding], [*moving.removing]
                    )
                )
        if found.partitions:
            response.topics.append(found)
    return response


def _asked_for(
    catalog: Catalog, request: ListPartitionReassignmentsRequest
) -> dict[str, dict[int, GroupId]]:
    """Return group ids by topic and partition, of the requested partitions that exist."""
    found: dict[str, dict[int, GroupId]] = {}
    if request.topics is None:
        for group_id in catalog.moves.keys() & catalog.groups.keys():
            info = catalog.groups[group_id]
            found.setdefault(info.topic, {})[info.partition] = group_id
        return found
    for asked in request.topics:
        topic = catalog.topics.get(asked.name)
        groups = [] if topic is None else topic.partitions
        indexes: Iterable[int] = asked.partition_indexes
        there = {index: groups[index] for index in indexes if 0 <= index < len(groups)}
        found.setdefault(asked.name, {}).update(there)
    return found
