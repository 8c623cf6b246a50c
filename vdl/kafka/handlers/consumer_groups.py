"""Groups whose assignments the coordinator computes (KIP-848).

ConsumerGroupHeartbeat (key 68) v0–1, ConsumerGroupDescribe (69) v0–1.

ConsumerGroupHeartbeat: v1 a pattern to subscribe by, matched here; clients draw member ids.
ConsumerGroupDescribe: v1 the protocol of each member.

A heartbeat has the changes since the member's last one, and None for unchanged fields. The answer
has the assignment if it changed, or if the member sent all fields, because then it may have missed
one.

Does not depend on how assignments are computed.
"""

from __future__ import annotations

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import InParts, Later
from vdl.kafka.context import RequestContext
from vdl.kafka.groups.assignors import ASSIGNORS
from vdl.kafka.groups.led_consumer_groups import Heartbeated, refusal_text
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.kafka.groups.pattern_subscriptions import Sender
from vdl.kafka.groups.target_computation import assignor_of
from vdl.kafka.handlers.groups import (
    GROUP_OPERATIONS,
    Members,
    describe_groups,
    described,
    group_coordinator,
)
from vdl.kafka.lookup import find_topic
from vdl.kafka.security.authorizer import TopicViewer
from vdl.kafka.wire import consumer_group_describe as describe_wire
from vdl.kafka.wire import consumer_group_heartbeat as heartbeat_wire
from vdl.state import commands
from vdl.state.coordinator import Coordinator
from vdl.state.features import GROUP_VERSION
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ModernMember,
)
from vdl.state.modern.partitions import Partitions, partitions_of

_CLIENT_DRAWS_ID_FROM = 1
_MEMBER_TYPES_FROM = 1
_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1

# --- ConsumerGroupHeartbeat ----------------------------------------------------------------------


def handle_consumer_group_heartbeat(
    ctx: RequestContext, request: heartbeat_wire.ConsumerGroupHeartbeatRequest
) -> Later | heartbeat_wire.ConsumerGroupHeartbeatResponse:
    """Process a heartbeat, and answer at once while nothing changes.

    A joining member is answered when it has an assignment. A pattern that was not used before is
    compiled first, so that no invalid pattern is written to the log.
    """
    try:
        _check(ctx, request)
    except KafkaError as error:
        return heartbeat_wire.ConsumerGroupHeartbeatResponse(
            error_code=error.code, error_message=error.message
        )
    groups = group_coordinator(ctx)
    led = groups.find(request.group_id)
    if not isinstance(led, LedCoordinator):
        return heartbeat_wire.ConsumerGroupHeartbeatResponse(error_code=led)
    later = Later()
    pattern = request.subscribed_topic_regex
    work = ctx.server.pattern_work
    if not pattern or work.knows(pattern):
        _take_heartbeat(ctx, request, led, later)
    elif not work.check(
        ctx.asker, (pattern,), later.step(lambda: _take_heartbeat(ctx, request, led, later))
    ):
        return heartbeat_wire.ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            error_message="Too many regular expressions are waiting to be checked; retry later.",
        )
    return later


def _take_heartbeat(
    ctx: RequestContext,
    request: heartbeat_wire.ConsumerGroupHeartbeatRequest,
    led: LedCoordinator,
    later: Later,
) -> None:
    """Pass a heartbeat to the coordinator. Its pattern, if it has one, was compiled."""
    pattern = request.subscribed_topic_regex
    refused = ctx.server.pattern_work.refusal(pattern) if pattern else None
    if refused is not None:
        later.complete(
            heartbeat_wire.ConsumerGroupHeartbeatResponse(
                error_code=ErrorCode.INVALID_REGULAR_EXPRESSION,
                error_message=refusal_text(refused),
            )
        )
        return
    if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
        _leave(led, request, later)
        return
    member_id = request.member_id or group_coordinator(ctx).random_id()

    def answer(outcome: Heartbeated) -> None:
        if not (later.done or later.cancelled):
            later.complete(_heartbeat_response(outcome))

    led.consumer.heartbeat(
        commands.ConsumerHeartbeat(
            group_id=request.group_id,
            member_id=member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            client_id=ctx.client_id,
            client_host=f"/{ctx.connection.peer_host}",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=request.subscribed_topic_names,
            pattern=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=_owned(request),
            members_max=ctx.server.config.group_consumer_max_size,
        ),
        is_full=request.member_epoch == JOINING_EPOCH
        or (
            request.rebalance_timeout_ms != -1
            and (
                request.subscribed_topic_names is not None
                or request.subscribed_topic_regex is not None
            )
            and request.topic_partitions is not None
        ),
        answer=answer,
        sender=Sender(ctx.asker, _viewer(ctx)),
    )


def _viewer(ctx: RequestContext) -> TopicViewer | None:
    """Return the client as a viewer if it may not see every topic; otherwise None."""
    authorizer = ctx.server.authorizer
    if authorizer is None or authorizer.is_super(ctx.principal):
        return None
    return TopicViewer(ctx.principal, ctx.client_host, authorizer)


def _check(ctx: RequestContext, request: heartbeat_wire.ConsumerGroupHeartbeatRequest) -> None:
    """Raise KafkaError for a heartbeat that no group would accept."""
    if not ctx.server.host.catalog.features.levels.get(GROUP_VERSION):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The consumer group protocol is not enabled; finalize group.version first.",
        )
    epoch = request.member_epoch
    draws_id = ctx.api_version >= _CLIENT_DRAWS_ID_FROM or epoch > 0 or epoch == LEAVING_EPOCH
    if not request.member_id and draws_id:
        raise _invalid("MemberId can't be empty.")
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    elif epoch == STATIC_LEAVING_EPOCH:
        if not request.member_id:
            raise _invalid("MemberId can't be empty.")
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(sorted(ASSIGNORS))}.",
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _owned(request: heartbeat_wire.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return partitions_of(
        (topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions
    )


def _leave(
    led: LedCoordinator,
    request: heartbeat_wire.ConsumerGroupHeartbeatRequest,
    later: Later,
) -> None:
    def answer(error: ErrorCode, message: str) -> None:
        response = heartbeat_wire.ConsumerGroupHeartbeatResponse(
            error_code=error, error_message=message or None
        )
        if error is ErrorCode.NONE:
            response.member_id = request.member_id
            response.member_epoch = request.member_epoch
        later.complete(response)

    led.consumer.leave(
        commands.LeaveConsumerGroup(
            request.group_id,
            request.member_id,
            request.instance_id,
            request.member_epoch == STATIC_LEAVING_EPOCH,
        ),
        answer,
    )


def _heartbeat_response(outcome: Heartbeated) -> heartbeat_wire.ConsumerGroupHeartbeatResponse:
    member = outcome.member
    if member is None:
        return heartbeat_wire.ConsumerGroupHeartbeatResponse(
            error_code=outcome.error, error_message=outcome.message or None
        )
    response = heartbeat_wire.ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=outcome.interval_ms,
    )
    if outcome.has_assignment:
        response.assignment = heartbeat_wire.Assignment(
            [
                heartbeat_wire.TopicPartitions(topic_id, list(indexes))
                for topic_id, indexes in member.assigned
            ]
        )
    return response


# --- ConsumerGroupDescribe -----------------------------------------------------------------------


def handle_consumer_group_describe(
    ctx: RequestContext, request: describe_wire.ConsumerGroupDescribeRequest
) -> describe_wire.ConsumerGroupDescribeResponse | InParts | Later:
    """Return state and members of each group."""

    def describe(target: describe_wire.DescribedGroup, machine: Coordinator) -> Members | None:
        members = _describe(ctx, target, machine)
        if request.include_authorized_operations and not target.error_code:
            target.authorized_operations = GROUP_OPERATIONS
        return members

    targets = described(describe_wire.DescribedGroup, request.group_ids)
    response = describe_wire.ConsumerGroupDescribeResponse(groups=targets)
    return describe_groups(ctx, response, targets, describe)


def fail_consumer_group_describe(
    request: describe_wire.ConsumerGroupDescribeRequest, _version: int, code: ErrorCode
) -> describe_wire.ConsumerGroupDescribeResponse:
    """Return `code` for each group."""
    return describe_wire.ConsumerGroupDescribeResponse(
        groups=described(describe_wire.DescribedGroup, request.group_ids, code)
    )


def _describe(
    ctx: RequestContext, target: describe_wire.DescribedGroup, machine: Coordinator
) -> Members | None:
    group = machine.consumer.groups.get(target.group_id)
    if group is None:
        target.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        is_other = machine.kind_of(target.group_id) is not None
        what = "is not a consumer group" if is_other else "not found"
        target.error_message = f"Group {target.group_id} {what}."
        return None
    target.group_state = group.state.value
    target.group_epoch = group.epoch
    target.assignment_epoch = group.assignment_epoch
    target.assignor_name = assignor_of(group)
    members = list(group.members.values())
    weights = [1 + len(member.assigned) + len(group.target(member.member_id)) for member in members]
    each = (
        (weight, _member(ctx, group, member))
        for weight, member in zip(weights, members, strict=True)
    )
    return Members(sum(weights), each)


def _member(ctx: RequestContext, group: ModernGroup, member: ModernMember) -> describe_wire.Member:
    described = describe_wire.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern or "",
        assignment=_assignment(ctx, member.assigned),
        target_assignment=_assignment(ctx, group.target(member.member_id)),
    )
    if ctx.api_version >= _MEMBER_TYPES_FROM:
        described.member_type = _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER
    return described


def _assignment(ctx: RequestContext, partitions: Partitions) -> describe_wire.Assignment:
    """Return an assignment by topic name. Topics that are deleted or unknown here are left out."""
    return describe_wire.Assignment(
        [
            describe_wire.TopicPartitions(topic_id, topic.name, list(indexes))
            for topic_id, indexes in partitions
            if (topic := find_topic(ctx, topic_id)) is not None
        ]
    )
