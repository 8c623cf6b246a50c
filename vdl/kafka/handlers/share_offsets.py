"""Start offsets of share groups in partitions (KIP-932, KIP-1226).

DescribeShareGroupOffsets (key 90) v0–1, AlterShareGroupOffsets (91) v0, DeleteShareGroupOffsets
(92) v0.

AlterShareGroupOffsets creates a group that does not exist. An offset of -1 unsets it:
`share.auto.offset.reset` decides again where the group begins.

v1 of the first API has the lag: the number of records at or above the start offset that are not
completed. The answering server knows it if it has a replica of the partition; otherwise it is -1.
The other two APIs require a group without members.

Does not depend on members' sessions or locks.
"""

from __future__ import annotations

from functools import partial

from ids import GroupId, Offset
from vdl.errors import ErrorCode
from vdl.kafka.answer import Gathering, Later
from vdl.kafka.context import RequestContext
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.kafka.handlers.groups import group_coordinator
from vdl.kafka.handlers.share_fetch import share_groups_enabled
from vdl.kafka.lookup import Topic, find_topic
from vdl.kafka.wire.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from vdl.kafka.wire.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from vdl.kafka.wire.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from vdl.state.commands import AlterShareOffsets, DeleteShareOffsets
from vdl.state.coordinator import Coordinator
from vdl.state.group_kinds import COORDINATOR_IS_FULL, GroupKind
from vdl.state.share_coordination import ShareOffsetsAnswer
from vdl.state.share_states import UNSET_OFFSET, ShareState

_NO_TOPIC = "This server does not host this topic-partition."
_NOTHING_TO_DELETE = "There is no offset information to delete."


def _why(code: ErrorCode, group_id: str) -> str | None:
    """Return the message for a group that cannot be read or changed."""
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        return f"Group {group_id} not found."
    if code is ErrorCode.NON_EMPTY_GROUP:
        return f"Group {group_id} is not empty."
    if code is COORDINATOR_IS_FULL:
        return "The coordinator has no room for the topics' share-partitions."
    return None


# --- DescribeShareGroupOffsets -------------------------------------------------------------------
def handle_describe_share_group_offsets(
    ctx: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse | Later:
    """Return the start offsets of the named share-partitions, or of all.

    A group whose whole state is requested too often gets INVALID_REQUEST.
    """
    if not share_groups_enabled(ctx):
        return fail_describe_share_group_offsets(
            request, ctx.api_version, ErrorCode.UNSUPPORTED_VERSION
        )
    groups = group_coordinator(ctx)
    parts = Gathering(DescribeShareGroupOffsetsResponse())

    def read(
        asked: DescribeShareGroupOffsetsRequestGroup,
        target: DescribeShareGroupOffsetsResponseGroup,
        error: ErrorCode,
        machine: Coordinator | None,
    ) -> None:
        if machine is None:
            target.error_code = error
        elif machine.kind_of(asked.group_id) is not GroupKind.SHARE:
            target.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            target.error_message = _why(ErrorCode.GROUP_ID_NOT_FOUND, asked.group_id)
        else:
            target.topics = _describe(ctx, asked, machine)
        parts.arrived()

    repeats = ctx.repeats("group")
    for asked in request.groups:
        target = DescribeShareGroupOffsetsResponseGroup(asked.group_id)
        parts.response.groups.append(target)
        if asked.topics is None and repeats.refuses(asked.group_id):
            target.error_code = ErrorCode.INVALID_REQUEST
            continue
        parts.expect()
        groups.read(asked.group_id, parts.later.step(partial(read, asked, target)))
    return parts.result()


def fail_describe_share_group_offsets(
    request: DescribeShareGroupOffsetsRequest, _version: int, code: ErrorCode
) -> DescribeShareGroupOffsetsResponse:
    """Return `code` for each group."""
    return DescribeShareGroupOffsetsResponse(
        groups=[
            DescribeShareGroupOffsetsResponseGroup(group.group_id, error_code=code)
            for group in request.groups
        ]
    )


def _describe(
    ctx: RequestContext, asked: DescribeShareGroupOffsetsRequestGroup, machine: Coordinator
) -> list[DescribeShareGroupOffsetsResponseTopic]:
    states = machine.share.states.of(asked.group_id)
    if asked.topics is None:
        indexes: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(states):
            indexes.setdefault(topic_id, []).append(index)
        wanted = [
            (topic, indexes[topic_id])
            for topic_id in indexes
            if (topic := find_topic(ctx, topic_id)) is not None
        ]
        unknown = []
    else:
        found = [(one, find_topic(ctx, one.topic_name)) for one in asked.topics]
        wanted = [(topic, one.partitions) for one, topic in found if topic is not None]
        unknown = [one for one, topic in found if topic is None]
    described = [
        DescribeShareGroupOffsetsResponseTopic(
            topic.name,
            topic.topic_id,
            [_one(ctx, topic, index, states.get((topic.topic_id, index))) for index in partitions],
        )
        for topic, partitions in wanted
    ]
    described += [
        DescribeShareGroupOffsetsResponseTopic(
            one.topic_name,
            partitions=[
                DescribeShareGroupOffsetsResponsePartition(
                    index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=_NO_TOPIC,
                )
                for index in one.partitions
            ],
        )
        for one in unknown
    ]
    return described


def _one(
    ctx: RequestContext, topic: Topic, index: int, state: ShareState | None
) -> DescribeShareGroupOffsetsResponsePartition:
    if state is None or state.start_offset == UNSET_OFFSET:
        return DescribeShareGroupOffsetsResponsePartition(index, UNSET_OFFSET)
    answer = DescribeShareGroupOffsetsResponsePartition(
        index, state.start_offset, max(0, state.leader_epoch)
    )
    if 0 <= index < len(topic.partitions):
        stream = ctx.server.host.stream(topic.partitions[index])
        if stream is not None:
            left = stream.high_watermark - state.start_offset - state.done_count
            answer.lag = max(0, left)
    return answer


# --- AlterShareGroupOffsets ----------------------------------------------------------------------
def handle_alter_share_group_offsets(
    ctx: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse | Later:
    """Set the start offsets of a group without members."""
    if not share_groups_enabled(ctx):
        return AlterShareGroupOffsetsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not request.group_id:
        return AlterShareGroupOffsetsResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    response = AlterShareGroupOffsetsResponse()
    changes: list[tuple[bytes, int, GroupId, Offset]] = []
    changed: list[AlterShareGroupOffsetsResponsePartition] = []
    named: dict[bytes, list[GroupId]] = {}
    for asked in request.topics:
        topic = find_topic(ctx, asked.topic_name)
        answer = AlterShareGroupOffsetsResponseTopic(asked.topic_name)
        response.responses.append(answer)
        if topic is not None:
            answer.topic_id = topic.topic_id
        for one in asked.partitions:
            target = AlterShareGroupOffsetsResponsePartition(one.partition_index)
            answer.partitions.append(target)
            if topic is None or not 0 <= one.partition_index < len(topic.partitions):
                target.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                target.error_message = _NO_TOPIC
                continue
            group = topic.partitions[one.partition_index]
            changes.append((topic.topic_id, one.partition_index, group, Offset(one.start_offset)))
            changed.append(target)
            named[topic.topic_id] = list(topic.partitions)
    later = Later()

    def done(error: ErrorCode, answer: ShareOffsetsAnswer | None) -> None:
        code = error if answer is None else answer.error
        if answer is None or code is not ErrorCode.NONE:
            later.complete(
                AlterShareGroupOffsetsResponse(
                    error_code=code, error_message=_why(code, request.group_id)
                )
            )
            return
        for target, one in zip(changed, answer.errors, strict=True):
            target.error_code = one
        later.complete(response)

    led = group_coordinator(ctx).find(request.group_id)
    if isinstance(led, LedCoordinator) and not led.share.has_room(request.group_id, named.items()):
        # If only some were created, the others would be read from their beginning.
        return AlterShareGroupOffsetsResponse(
            error_code=COORDINATOR_IS_FULL, error_message=_why(COORDINATOR_IS_FULL, "")
        )
    command = AlterShareOffsets(request.group_id, changes, list(named.items()), as_kafka=True)
    group_coordinator(ctx).propose(request.group_id, command, later.step(done))
    return later


# --- DeleteShareGroupOffsets ---------------------------------------------------------------------
def handle_delete_share_group_offsets(
    ctx: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse | Later:
    """Delete the state of topics of a group without members.

    As in Kafka, a topic that is named twice is deleted once. Each topic is searched in all of the
    group's state, on every replica.
    """
    if not share_groups_enabled(ctx):
        return DeleteShareGroupOffsetsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not request.group_id:
        return DeleteShareGroupOffsetsResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    response = DeleteShareGroupOffsetsResponse()
    targets: list[DeleteShareGroupOffsetsResponseTopic] = []
    for name in dict.fromkeys(asked.topic_name for asked in request.topics):
        topic = find_topic(ctx, name)
        target = DeleteShareGroupOffsetsResponseTopic(name)
        response.responses.append(target)
        if topic is None:
            target.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            target.error_message = _NO_TOPIC
        else:
            target.topic_id = topic.topic_id
            targets.append(target)
    later = Later()

    def done(error: ErrorCode, answer: ShareOffsetsAnswer | None) -> None:
        code = error if answer is None else answer.error
        if answer is None or code is not ErrorCode.NONE:
            later.complete(
                DeleteShareGroupOffsetsResponse(
                    error_code=code, error_message=_why(code, request.group_id)
                )
            )
            return
        for target, one in zip(targets, answer.errors, strict=True):
            target.error_code = one
            if one is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                target.error_message = _NOTHING_TO_DELETE
        later.complete(response)

    command = DeleteShareOffsets(request.group_id, [target.topic_id for target in targets])
    group_coordinator(ctx).propose(request.group_id, command, later.step(done))
    return later
