"""Members of share groups (KIP-932): ShareGroupHeartbeat (key 76) v1, ShareGroupDescribe (77) v1.

A heartbeat with epoch 0 joins, with -1 leaves. It is answered from the applied state, unless the
member reports a change or a topic has changed. The assignment is in the answer if the member does
not have the group's present epoch, or describes itself in full.

Does not depend on records, or on sessions of fetches.
"""

from __future__ import annotations

from vdl.errors import ErrorCode
from vdl.kafka.answer import InParts, Later
from vdl.kafka.context import RequestContext
from vdl.kafka.groups.group_coordinator import GroupCoordinator
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.kafka.groups.led_share_groups import MEMBERS_MAX
from vdl.kafka.handlers.groups import (
    GROUP_OPERATIONS,
    Members,
    describe_groups,
    described,
    group_coordinator,
)
from vdl.kafka.handlers.share_fetch import share_groups_enabled
from vdl.kafka.wire import share_group_describe as describe_wire
from vdl.kafka.wire.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)
from vdl.state.commands import JoinShareGroup, LeaveShareGroup
from vdl.state.coordinator import Coordinator
from vdl.state.group_kinds import GroupKind
from vdl.state.share_groups import (
    Place,
    ShareGroup,
    ShareGroupChanged,
    ShareMember,
    topics_after,
)

_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
ASSIGNOR = "simple"
_DEAD = "Dead"


def _refused(code: ErrorCode, message: str = "") -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=code, error_message=message or None)


def _complaint(request: ShareGroupHeartbeatRequest) -> str:
    """Return the reason why a heartbeat is invalid; empty if it is valid."""
    if not request.member_id:
        return "MemberId can't be empty."
    if not request.group_id:
        return "GroupId can't be empty."
    if request.rack_id == "":
        return "RackId can't be empty."
    if request.member_epoch == _JOIN_EPOCH and not request.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    if request.member_epoch < _LEAVE_EPOCH:
        return "MemberEpoch is invalid."
    return ""


def handle_share_group_heartbeat(
    ctx: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Later:
    """Join, stay in or leave a group."""
    if not share_groups_enabled(ctx):
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    complaint = _complaint(request)
    if complaint:
        return _refused(ErrorCode.INVALID_REQUEST, complaint)
    groups = group_coordinator(ctx)
    led = groups.find(request.group_id)
    if not isinstance(led, LedCoordinator):
        return _refused(led)
    group = led.machine.share.groups.groups.get(request.group_id)
    error, message = _check(request, led, group)
    if error is not ErrorCode.NONE:
        return _refused(error, message)
    if request.member_epoch == _LEAVE_EPOCH:
        assert group is not None, request.group_id
        return _leave(request, groups, led, group)
    return _stay(ctx, request, groups, led, group)


def _check(
    request: ShareGroupHeartbeatRequest, led: LedCoordinator, group: ShareGroup | None
) -> tuple[ErrorCode, str]:
    """Return the error of a heartbeat, as far as is known now; NONE if there is none."""
    group_id, member_id = request.group_id, request.member_id
    if led.machine.is_barred(group_id, GroupKind.SHARE):
        return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group."
    if request.member_epoch == _JOIN_EPOCH:
        return ErrorCode.NONE, ""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found."
    if member_id not in group.members:
        return (
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {group_id}.",
        )
    if request.member_epoch > group.epoch:
        return (
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The share group member has a greater member epoch "
            f"({request.member_epoch}) than the one known by the group coordinator "
            f"({group.epoch}). The member must abandon all its partitions and rejoin.",
        )
    return ErrorCode.NONE, ""


def _leave(
    request: ShareGroupHeartbeatRequest,
    groups: GroupCoordinator,
    led: LedCoordinator,
    group: ShareGroup,
) -> Later:
    later = Later()

    def done(error: ErrorCode, answer: ShareGroupChanged | None) -> None:
        code = error if answer is None else answer.error
        later.complete(
            ShareGroupHeartbeatResponse(
                error_code=code, member_id=request.member_id, member_epoch=_LEAVE_EPOCH
            )
        )

    topics = led.share.topics_without(group, [request.member_id])
    command = LeaveShareGroup(request.group_id, [request.member_id], topics)
    groups.propose(request.group_id, command, later.step(done))
    return later


def _stay(
    ctx: RequestContext,
    request: ShareGroupHeartbeatRequest,
    groups: GroupCoordinator,
    led: LedCoordinator,
    group: ShareGroup | None,
) -> ShareGroupHeartbeatResponse | Later:
    group_id, member_id = request.group_id, request.member_id
    member = None if group is None else group.members.get(member_id)
    names = request.subscribed_topic_names
    if names is None:
        names = [] if member is None else list(member.topic_names)
    rack = request.rack_id
    if rack is None:
        rack = "" if member is None else member.rack_id
    others = () if group is None else group.topic_names
    topics = led.share.topics_of(group_id, {*others, *names})
    command = JoinShareGroup(
        group_id,
        member_id,
        rack,
        ctx.client_id or "",
        f"/{ctx.connection.peer_host}",
        sorted(set(names)),
        topics,
        MEMBERS_MAX,
    )
    if group is not None and member is not None:
        led.share.renew(group_id, member_id)
        if not _says_something_new(group, command):
            return _answer(request, led, group)
    later = Later()

    def done(error: ErrorCode, answer: ShareGroupChanged | None) -> None:
        code = error if answer is None else answer.error
        changed = led.machine.share.groups.groups.get(group_id)
        if code is not ErrorCode.NONE or changed is None:
            later.complete(_refused(code or ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        later.complete(_answer(request, led, changed))

    groups.propose(group_id, command, later.step(done), asker=ctx.asker)
    return later


def _says_something_new(group: ShareGroup, command: JoinShareGroup) -> bool:
    """Return True if the command would change the group."""
    member = group.members[command.member_id]
    described = (command.rack_id, command.client_id, command.client_host)
    if described != (member.rack_id, member.client_id, member.client_host):
        return True
    if tuple(command.topic_names) != member.topic_names:
        return True
    return topics_after(group, group.members, command.topics) != group.topics


def _answer(
    request: ShareGroupHeartbeatRequest, led: LedCoordinator, group: ShareGroup
) -> ShareGroupHeartbeatResponse:
    response = ShareGroupHeartbeatResponse(
        member_id=request.member_id,
        member_epoch=group.epoch,
        heartbeat_interval_ms=led.share.setting(group.group_id, "share.heartbeat.interval.ms"),
    )
    is_full = request.subscribed_topic_names is not None
    if is_full or request.member_epoch != group.epoch:
        places = group.assignment.get(request.member_id, ())
        response.assignment = Assignment(
            [TopicPartitions(topic_id, indexes) for topic_id, indexes in _by_topic(places).items()]
        )
    return response


def _by_topic(places: tuple[Place, ...]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for topic_id, index in places:
        found.setdefault(topic_id, []).append(index)
    return found


# --- ShareGroupDescribe --------------------------------------------------------------------------
def handle_share_group_describe(
    ctx: RequestContext, request: describe_wire.ShareGroupDescribeRequest
) -> describe_wire.ShareGroupDescribeResponse | InParts | Later:
    """Return state and members of each group."""
    if not share_groups_enabled(ctx):
        return fail_share_group_describe(request, ctx.api_version, ErrorCode.UNSUPPORTED_VERSION)

    def describe(target: describe_wire.DescribedGroup, machine: Coordinator) -> Members | None:
        if request.include_authorized_operations:
            target.authorized_operations = GROUP_OPERATIONS
        return _describe(target, machine)

    targets = described(describe_wire.DescribedGroup, request.group_ids)
    response = describe_wire.ShareGroupDescribeResponse(groups=targets)
    return describe_groups(ctx, response, targets, describe)


def fail_share_group_describe(
    request: describe_wire.ShareGroupDescribeRequest, _version: int, code: ErrorCode
) -> describe_wire.ShareGroupDescribeResponse:
    """Return `code` for each group."""
    return describe_wire.ShareGroupDescribeResponse(
        groups=described(describe_wire.DescribedGroup, request.group_ids, code)
    )


def _describe(target: describe_wire.DescribedGroup, machine: Coordinator) -> Members | None:
    kind = machine.kind_of(target.group_id)
    group = machine.share.groups.groups.get(target.group_id)
    if group is None:
        target.group_state = _DEAD if kind is None else ""
        target.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        target.error_message = (
            f"Group {target.group_id} not found."
            if kind is None
            else f"Group {target.group_id} is not a share group."
        )
        return None
    names = {topic.topic_id: topic.name for topic in group.topics.values()}
    target.group_state = group.state_name
    target.group_epoch = target.assignment_epoch = group.epoch
    target.assignor_name = ASSIGNOR
    members = list(group.members.values())
    places = [group.assignment.get(member.member_id, ()) for member in members]
    each = (
        (1 + len(some), _member(group, names, member, some))
        for member, some in zip(members, places, strict=True)
    )
    return Members(len(members) + sum(map(len, places)), each)


def _member(
    group: ShareGroup, names: dict[bytes, str], member: ShareMember, places: tuple[Place, ...]
) -> describe_wire.Member:
    return describe_wire.Member(
        member.member_id,
        member.rack_id or None,
        group.epoch,
        member.client_id,
        member.client_host,
        list(member.topic_names),
        describe_wire.Assignment(
            [
                describe_wire.TopicPartitions(topic_id, names[topic_id], indexes)
                for topic_id, indexes in _by_topic(places).items()
            ]
        ),
    )
