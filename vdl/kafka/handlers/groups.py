"""Consumer groups of the classic protocol: finding the coordinator, membership, administration.

FindCoordinator (key 10) v0–6: v1 key types, v4 several keys (KIP-699). Groups and transactions:
    there are no coordinators of share groups here, and requesting one is an invalid request, as for
    any key type that a broker does not know.
JoinGroup (11) v0–9: v1 rebalance timeout (KIP-62), v4 member id required (KIP-394), v5 static
    members (KIP-345), v7 protocol type (KIP-559), v8 reason (KIP-800), v9 skip assignment
    (KIP-814).
SyncGroup (14) v0–5, Heartbeat (12) v0–4, LeaveGroup (13) v0–5: v3 several members (KIP-345).
DescribeGroups (15) v0–6: v6 has an error for a missing group (KIP-1043).
ListGroups (16) v0–5: v4 by state (KIP-518), v5 by type (KIP-848).
DeleteGroups (42) v0–3: v3 error messages.

A client that must look for the coordinator again finds it through FindCoordinator. This server
names itself only after a quorum confirmed its leadership.

Does not depend on how groups are stored, or on their timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.answer import Gathering, InParts, Later, Place, Response, pages
from vdl.kafka.context import RequestContext
from vdl.kafka.groups.group_coordinator import GroupCoordinator
from vdl.kafka.groups.live_group import Joined, Synced
from vdl.kafka.lookup import endpoint
from vdl.kafka.parts import PART_ELEMENTS
from vdl.kafka.wire import delete_groups as delete_wire
from vdl.kafka.wire import describe_groups as describe_wire
from vdl.kafka.wire import find_coordinator as find_wire
from vdl.kafka.wire import heartbeat as heartbeat_wire
from vdl.kafka.wire import join_group as join_wire
from vdl.kafka.wire import leave_group as leave_wire
from vdl.kafka.wire import list_groups as list_wire
from vdl.kafka.wire import sync_group as sync_wire
from vdl.state import commands
from vdl.state.consumer_group import ConsumerGroup, GroupState
from vdl.state.consumer_groups import GroupsDeleted, LeaveAnswer
from vdl.state.coordinator import Coordinator
from vdl.state.group_kinds import GroupKind
from vdl.state.modern.migration import CONSUMER_PROTOCOL, protocol_of

GROUP_KEY = 0
"""FindCoordinator's key type for consumer groups."""
TRANSACTION_KEY = 1
"""FindCoordinator's key type for transactional ids."""
NO_TRANSACTIONS = "not all servers of the cluster support transactions yet; retry when they do"

SHARE_PROTOCOL = "share"
GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Bit field of the operations that are allowed on a group: read, delete, describe, and describe and
alter its configs (KIP-430)."""

_DELETION_REFUSED = {
    ErrorCode.GROUP_ID_NOT_FOUND: "Group {} not found.",
    ErrorCode.NON_EMPTY_GROUP: "Group {} is not empty.",
}

_STATE_CHARS_MAX = 100
_STATE_NAMES = {
    GroupState.EMPTY: "Empty",
    GroupState.PREPARING_REBALANCE: "PreparingRebalance",
    GroupState.COMPLETING_REBALANCE: "CompletingRebalance",
    GroupState.STABLE: "Stable",
}


def group_coordinator(ctx: RequestContext) -> GroupCoordinator:
    """Return this server's group coordinator."""
    groups = ctx.server.groups
    assert groups is not None, "a server has one before it takes requests"
    return groups


# --- FindCoordinator -----------------------------------------------------------------------------


def handle_find_coordinator(
    ctx: RequestContext, request: find_wire.FindCoordinatorRequest
) -> find_wire.FindCoordinatorResponse | Later:
    """Return the coordinator of each key. KIP-699 for several."""
    parts = Gathering(find_wire.FindCoordinatorResponse())
    if ctx.api_version < 4:
        parts.response.node_id = parts.response.port = -1
        _find(ctx, request.key_type, request.key, parts.response, parts)
        return parts.result()
    for key in request.coordinator_keys:
        coordinator = find_wire.Coordinator(key=key, node_id=-1, port=-1)
        parts.response.coordinators.append(coordinator)
        _find(ctx, request.key_type, key, coordinator, parts)
    return parts.result()


def _find(
    ctx: RequestContext,
    key_type: int,
    key: str,
    found: find_wire.FindCoordinatorResponse | find_wire.Coordinator,
    parts: Gathering[find_wire.FindCoordinatorResponse],
) -> None:
    """Fill in the coordinator of a key. This server names itself only after a quorum round."""
    transactions = ctx.server.transactions
    if key_type == TRANSACTION_KEY and (transactions is None or not transactions.is_available):
        # The one error that all clients treat as final at once, in every state.
        found.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        found.error_message = NO_TRANSACTIONS
        return
    if key_type not in (GROUP_KEY, TRANSACTION_KEY):
        found.error_code = ErrorCode.INVALID_REQUEST
        found.error_message = f"coordinators of key type {key_type} are not supported"
        return
    host = ctx.server.host
    number = host.coordinator_group(key)
    server_id, _ = host.leader_of(number)
    parts.expect()

    def tell(current: bool) -> None:
        address = endpoint(ctx, server_id) if current else None
        if address is None:
            found.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            found.error_message = "the coordinator is currently unknown; retry"
        else:
            found.node_id = server_id
            found.host, found.port = address
        parts.arrived()

    if server_id != host.server_id:
        tell(server_id >= 0)
        return
    state_group = host.state_group(number)
    assert state_group is not None, number
    deadline_ns = ctx.server.clock.now_ns() + ctx.server.config.read_timeout_ms * MS
    state_group.read_index(deadline_ns=deadline_ns, done=tell)


def fail_find_coordinator(
    request: find_wire.FindCoordinatorRequest, version: int, code: ErrorCode
) -> find_wire.FindCoordinatorResponse:
    """Return `code` for each key."""
    if version >= 4:
        return find_wire.FindCoordinatorResponse(
            coordinators=[
                find_wire.Coordinator(key=key, node_id=-1, port=-1, error_code=code)
                for key in request.coordinator_keys
            ]
        )
    return find_wire.FindCoordinatorResponse(error_code=code, node_id=-1, port=-1)


# --- membership ----------------------------------------------------------------------------------


def handle_join_group(
    ctx: RequestContext, request: join_wire.JoinGroupRequest
) -> Later | join_wire.JoinGroupResponse:
    """Join a member. Answered when the generation is set, at most the rebalance timeout later."""
    version = ctx.api_version

    def respond(joined: Joined) -> join_wire.JoinGroupResponse:
        return _join_response(joined, version)

    config = ctx.server.config
    low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not request.group_id:
        return respond(Joined(ErrorCode.INVALID_GROUP_ID, request.member_id))
    if not low <= request.session_timeout_ms <= high:
        return respond(Joined(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id))
    if _size(protocol.metadata for protocol in request.protocols) > config.message_max_bytes:
        return respond(Joined(ErrorCode.MESSAGE_TOO_LARGE, request.member_id))
    groups = group_coordinator(ctx)
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if version < 1 or rebalance_timeout_ms < 0:
        rebalance_timeout_ms = request.session_timeout_ms
    new_member_id = ""
    if not request.member_id:
        new_member_id = groups.new_member_id(ctx.client_id, request.group_instance_id)
    command = commands.JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=new_member_id,
        group_instance_id=request.group_instance_id,
        client_id=ctx.client_id,
        client_host=f"/{ctx.connection.peer_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=[
            commands.Protocol(protocol.name, bytes(protocol.metadata))
            for protocol in request.protocols
        ],
        # A static member is known by its instance id.
        known_member_id_required=version >= 4 and request.group_instance_id is None,
        members_max=config.group_max_size,
        hold_first_rebalance=groups.holds_first_rebalance(),
    )
    later = Later()
    groups.join(ctx.asker, command, later, respond)
    return later


def fail_join_group(
    request: join_wire.JoinGroupRequest, version: int, code: ErrorCode
) -> join_wire.JoinGroupResponse:
    """Return `code` for the request."""
    return _join_response(Joined(code, request.member_id), version)


def _join_response(joined: Joined, version: int) -> join_wire.JoinGroupResponse:
    group = joined.group
    if joined.member is not None:
        # In a group of the newer protocol only the coordinator assigns partitions.
        return join_wire.JoinGroupResponse(
            generation_id=joined.member.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=protocol_of(joined.member),
            member_id=joined.member_id,
        )
    if group is None:
        return join_wire.JoinGroupResponse(
            error_code=joined.error,
            member_id=joined.member_id,
            protocol_name=None if version >= 7 else "",
        )
    leader = group.leader or ""
    skips = False
    if joined.leader_before is not None:
        # A static member returned to a group that did not rebalance. If it leads, it must not
        # assign again. For older clients the former leader is named instead (KIP-814).
        if version >= 9:
            skips = leader == joined.member_id
        else:
            leader = joined.leader_before
    return join_wire.JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader,
        skip_assignment=skips,
        member_id=joined.member_id,
        members=_subscriptions(group) if leader == joined.member_id else [],
    )


def _subscriptions(group: ConsumerGroup) -> list[join_wire.JoinGroupResponseMember]:
    """Return the subscriptions by which the leader assigns partitions."""
    return [
        join_wire.JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    ]


def handle_sync_group(
    ctx: RequestContext, request: sync_wire.SyncGroupRequest
) -> Later | sync_wire.SyncGroupResponse:
    """Return a member's assignment. Answered when the leader has sent the assignments."""
    if not request.group_id:
        return _sync_response(Synced(ErrorCode.INVALID_GROUP_ID))
    if ctx.api_version >= 5 and not (request.protocol_type and request.protocol_name):
        # KIP-559: from v5 on both are required.
        return _sync_response(Synced(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    size = _size(assignment.assignment for assignment in request.assignments)
    if size > ctx.server.config.message_max_bytes:
        return _sync_response(Synced(ErrorCode.MESSAGE_TOO_LARGE))
    command = commands.SyncGroup(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=[
            (assignment.member_id, bytes(assignment.assignment))
            for assignment in request.assignments
        ],
    )
    later = Later()
    group_coordinator(ctx).sync(ctx.asker, command, later, _sync_response)
    return later


def _sync_response(synced: Synced) -> sync_wire.SyncGroupResponse:
    if synced.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        # Clients do not expect that code here. With this one they rejoin later.
        return sync_wire.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    if synced.member is not None:
        return sync_wire.SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=protocol_of(synced.member),
            assignment=synced.assignment,
        )
    if synced.group is None:
        return sync_wire.SyncGroupResponse(error_code=synced.error)
    return sync_wire.SyncGroupResponse(
        protocol_type=synced.group.protocol_type,
        protocol_name=synced.group.protocol_name,
        assignment=synced.assignment,
    )


def handle_heartbeat(
    ctx: RequestContext, request: heartbeat_wire.HeartbeatRequest
) -> heartbeat_wire.HeartbeatResponse:
    """Record a heartbeat. While the coordinator is loading, every member passes."""
    if not request.group_id:
        return heartbeat_wire.HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    error = group_coordinator(ctx).heartbeat(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
    )
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        error = ErrorCode.NONE
    return heartbeat_wire.HeartbeatResponse(error_code=error)


def handle_leave_group(
    ctx: RequestContext, request: leave_wire.LeaveGroupRequest
) -> Later | leave_wire.LeaveGroupResponse:
    """Remove members: one until v2, several with an error each from v3."""
    if not request.group_id:
        return leave_wire.LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if ctx.api_version < 3:
        leaving = [commands.LeavingMember(request.member_id)]
    else:
        leaving = [
            commands.LeavingMember(member.member_id, member.group_instance_id)
            for member in request.members
        ]
    later = Later()

    def done(error: ErrorCode, answer: LeaveAnswer | None) -> None:
        response = leave_wire.LeaveGroupResponse(error_code=error)
        if answer is not None and ctx.api_version < 3:
            response.error_code = answer.errors[0]
        elif answer is not None:
            response.members = [
                leave_wire.MemberResponse(member.member_id, member.group_instance_id, code)
                for member, code in zip(leaving, answer.errors, strict=True)
            ]
        later.complete(response)

    command = commands.LeaveGroup(request.group_id, leaving)
    group_coordinator(ctx).propose(request.group_id, command, later.step(done))
    return later


def _size(parts: Iterable[bytes | memoryview]) -> int:
    """Return the bytes that a request would replicate; their limit is that of a batch."""
    return sum(map(len, parts))


# --- administration ------------------------------------------------------------------------------


class _Described(Protocol):
    """Entry of one group in the answer to a Describe request, of any kind."""

    group_id: str
    error_code: int
    members: Any


Description = TypeVar("Description", bound=_Described)


def described(
    kind: Callable[..., Description], group_ids: Iterable[str], code: ErrorCode = ErrorCode.NONE
) -> list[Description]:
    """Return an entry for each group, with `code`.

    A group without a name gets INVALID_GROUP_ID, as the newer kinds (KIP-848, KIP-932) require.
    """
    unnamed = code or ErrorCode.INVALID_GROUP_ID
    return [
        kind(group_id=group_id, error_code=code if group_id else unnamed) for group_id in group_ids
    ]


class Members(NamedTuple):
    """Members of a group, to be described."""

    weight: int
    """Number of them and of what is assigned to them."""
    each: Iterable[tuple[int, Any]]
    """The weight and the description of each, made when its turn comes."""


def describe_groups(
    ctx: RequestContext,
    response: Response,
    targets: Sequence[Description],
    describe: Callable[[Description, Coordinator], Members | None],
) -> Response | InParts | Later:
    """Return the answer, with each group described after a quorum confirmed its coordinator.

    A group that cannot be described gets an error; one that already has an error is left as it is.
    A group that is repeated too often gets INVALID_REQUEST. A large group is described in parts.
    """
    groups, repeats = group_coordinator(ctx), ctx.repeats("group")
    parts: Gathering[Response | InParts] = Gathering(response)
    large: list[tuple[Description, Members]] = []

    def read(target: Description, error: ErrorCode, machine: Coordinator | None) -> None:
        if machine is None:
            target.error_code = error
        elif (members := describe(target, machine)) is not None:
            if members.weight > PART_ELEMENTS:
                large.append((target, members))
                described = partial(_pages_of_members, response, large)
                parts.response = InParts(ctx, "groups.members", described)
            else:
                target.members = [member for _, member in members.each]
        parts.arrived()

    for target in targets:
        if target.error_code != ErrorCode.NONE:
            continue
        if repeats.refuses(target.group_id):
            target.error_code = ErrorCode.INVALID_REQUEST
            continue
        parts.expect()
        groups.read(target.group_id, parts.later.step(partial(read, target)))
    return parts.result()


def _pages_of_members(
    first: Any, large: Sequence[tuple[Any, Members]], size: Callable[[], int]
) -> Iterator[tuple[Place, Any]]:
    """Yield `first` without large groups, then these."""
    kind = type(first)
    first.groups = [one for one in first.groups if all(one is not target for target, _ in large)]
    yield (), first
    for number, (target, members) in enumerate(large):
        some: list[Any] = []
        left = size()
        for weight, member in members.each:
            some.append(member)
            left -= weight
            if left <= 0:
                yield (number,), kind(groups=[replace(target, members=some)])
                some, left = [], size()
        yield (number,), kind(groups=[replace(target, members=some)])


def handle_describe_groups(
    ctx: RequestContext, request: describe_wire.DescribeGroupsRequest
) -> describe_wire.DescribeGroupsResponse | InParts | Later:
    """Return state and members of each group."""

    def describe(target: describe_wire.DescribedGroup, machine: Coordinator) -> Members | None:
        kind = machine.kind_of(target.group_id)
        if request.include_authorized_operations:
            target.authorized_operations = GROUP_OPERATIONS
        return _describe(target, machine.group(target.group_id), kind, ctx.api_version)

    targets = [describe_wire.DescribedGroup(group_id=group_id) for group_id in request.groups]
    response = describe_wire.DescribeGroupsResponse(groups=targets)
    return describe_groups(ctx, response, targets, describe)


def fail_describe_groups(
    request: describe_wire.DescribeGroupsRequest, _version: int, code: ErrorCode
) -> describe_wire.DescribeGroupsResponse:
    """Return `code` for each group."""
    return describe_wire.DescribeGroupsResponse(
        groups=[
            describe_wire.DescribedGroup(error_code=code, group_id=group)
            for group in request.groups
        ]
    )


def _describe(
    target: describe_wire.DescribedGroup,
    group: ConsumerGroup | None,
    kind: GroupKind | None,
    version: int,
) -> Members | None:
    if group is None:
        target.group_state = "Dead"
        if version >= 6:
            target.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            what = "not found" if kind is None else "is not a classic group"
            target.error_message = f"Group {target.group_id} {what}."
        return None
    target.group_state = _STATE_NAMES[group.state]
    target.protocol_type = group.protocol_type
    # Subscriptions and assignments are consistent only once the generation is complete.
    stable = group.state is GroupState.STABLE
    protocol = group.protocol_name
    if stable:
        target.protocol_data = protocol or ""
    # As they are now: the next generation changes them before the last part is made.
    members = [
        (member, member.metadata(protocol), member.assignment) if stable else (member, b"", b"")
        for member in group.members.values()
    ]
    return Members(
        len(members),
        (
            (
                1,
                describe_wire.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=metadata,
                    member_assignment=assignment,
                ),
            )
            for member, metadata, assignment in members
        ),
    )


def handle_list_groups(
    ctx: RequestContext, request: list_wire.ListGroupsRequest
) -> InParts | Later:
    """List the groups that this server coordinates; a client queries every server.

    They may be hundreds of thousands, so the answer is made in parts.
    """
    groups = group_coordinator(ctx)
    machines: list[Coordinator] = []
    first = list_wire.ListGroupsResponse()
    wanted = _wanted(request, machines)
    parts = Gathering(InParts(ctx, "groups", partial(pages, first, "groups", wanted)))

    def read(error: ErrorCode, machine: Coordinator | None) -> None:
        if machine is not None:
            machines.append(machine)
        elif error is ErrorCode.NOT_COORDINATOR:
            # The coordinator moved during the read. Clients of ListGroups do not look up
            # coordinators: they retry upon codes 14 and 15 only, and treat 16 as final.
            first.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            first.error_code = error
        parts.arrived()

    for led in groups.all_here():
        parts.expect()
        if isinstance(led, ErrorCode):
            read(led, None)
        else:
            groups.read_led(led, parts.later.step(read))
    return parts.result()


def _wanted(
    request: list_wire.ListGroupsRequest, machines: Iterable[Coordinator]
) -> Iterator[list_wire.ListedGroup | None]:
    """Yield each group that is wanted; None for another."""
    # Names of megabytes are those of no state, and take long to convert.
    by_state, by_type = bool(request.states_filter), bool(request.types_filter)
    states = {name.lower() for name in request.states_filter if len(name) <= _STATE_CHARS_MAX}
    types = {name.lower() for name in request.types_filter if len(name) <= _STATE_CHARS_MAX}
    for machine in machines:
        for listed in _listed(machine):
            is_wanted = (not by_state or listed.group_state.lower() in states) and (
                not by_type or listed.group_type in types
            )
            yield listed if is_wanted else None


def _listed(machine: Coordinator) -> Iterator[list_wire.ListedGroup]:
    """Yield the groups that a coordinator has now, each as it is when its turn comes."""
    classic, consumer = machine.groups.groups, machine.consumer.groups
    shares = machine.share.groups.groups
    for group_id in [*classic, *consumer, *shares]:
        if (group := classic.get(group_id)) is not None:
            yield list_wire.ListedGroup(
                group_id=group_id,
                protocol_type=group.protocol_type,
                group_state=_STATE_NAMES[group.state],
                group_type=GroupKind.CLASSIC,
            )
        elif (modern := consumer.get(group_id)) is not None:
            yield list_wire.ListedGroup(
                group_id=group_id,
                protocol_type=CONSUMER_PROTOCOL,
                group_state=modern.state.value,
                group_type=GroupKind.CONSUMER,
            )
        elif (share := shares.get(group_id)) is not None:
            yield list_wire.ListedGroup(
                group_id=group_id,
                protocol_type=SHARE_PROTOCOL,
                group_state=share.state_name,
                group_type=GroupKind.SHARE,
            )


def handle_delete_groups(
    ctx: RequestContext, request: delete_wire.DeleteGroupsRequest
) -> delete_wire.DeleteGroupsResponse | Later:
    """Delete groups without members, and their offsets (KIP-229)."""
    groups = group_coordinator(ctx)
    parts = Gathering(delete_wire.DeleteGroupsResponse())

    def done(
        target: delete_wire.DeletableGroupResult, error: ErrorCode, answer: GroupsDeleted | None
    ) -> None:
        code = error if answer is None else answer.errors[0]
        target.error_code = code
        if code in _DELETION_REFUSED:
            target.error_message = _DELETION_REFUSED[code].format(target.group_id)
        parts.arrived()

    for group_id in request.groups_names:
        target = delete_wire.DeletableGroupResult(group_id)
        parts.response.results.append(target)
        parts.expect()
        command = commands.DeleteGroups([group_id])
        groups.propose(group_id, command, parts.later.step(partial(done, target)))
    return parts.result()


def fail_delete_groups(
    request: delete_wire.DeleteGroupsRequest, _version: int, code: ErrorCode
) -> delete_wire.DeleteGroupsResponse:
    """Return `code` for each group."""
    return delete_wire.DeleteGroupsResponse(
        results=[
            delete_wire.DeletableGroupResult(group_id=group, error_code=code)
            for group in request.groups_names
        ]
    )
