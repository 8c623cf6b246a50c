"""DescribeAcls (key 29), CreateAcls (30), DeleteAcls (31): permissions, decided by the catalog.

v1 patterns of names (KIP-290), v2 flexible, v3 users as resources (KIP-373). As with Kafka, they
are refused with SECURITY_DISABLED if there is no authorizer: bindings that are not enforced would
give a false impression.

Filters of DeleteAcls that leave the resource open make every server scan all bindings, so one
command has few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address

from vdl.errors import ErrorCode
from vdl.kafka.answer import Gathering, InParts, Later, Place, pages_of_lists
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.wire.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from vdl.kafka.wire.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from vdl.kafka.wire.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.acls import ANY_NAME, AclPermission, complaint_about, filter_complaint, is_scan
from vdl.state.commands import AclBinding, AclFilter, CreateAcls, DeleteAcls

_TIMEOUT_MS = 30_000
"""Timeout of these requests, which have none of their own."""
BINDINGS_PER_COMMAND = 1_000
SCANS_PER_COMMAND = 4
"""Filters of one command that scan all bindings: about 10 ms each if there are many."""
_DISABLED = "No Authorizer is configured."
_TOO_MANY = "the ACL bindings of the cluster have reached their maximum size; remove some first"


def handle_describe_acls(
    ctx: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse | InParts:
    """Return the bindings that a filter selects, by resource."""
    if ctx.server.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED,
            error_message="No Authorizer is configured on the broker",
        )
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if complaint := filter_complaint(wanted):
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=complaint)
    return InParts(ctx, "resources.acls", partial(_described, ctx, wanted))


def _described(
    ctx: RequestContext, wanted: AclFilter, size: Callable[[], int]
) -> Iterator[tuple[Place, DescribeAclsResponse]]:
    """Yield the resources and their bindings in parts."""

    def page(resources: list[DescribeAclsResource]) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_message=None, resources=resources)

    by_pattern: dict[tuple[int, str, int], list[AclBinding]] = {}
    left = size()
    for binding in ctx.server.host.catalog.acls.matching(wanted):
        if left <= 0:
            yield (), page([])
            left = size()
        left -= 1
        pattern = binding.resource_type, binding.name, binding.pattern_type
        by_pattern.setdefault(pattern, []).append(binding)
    items = (
        (DescribeAclsResource(*pattern), map(_description, bindings))
        for pattern, bindings in by_pattern.items()
    )
    yield from pages_of_lists(page, "acls", items, size)
    yield (), page([])


def _description(binding: AclBinding) -> AclDescription:
    return AclDescription(binding.principal, binding.host, binding.operation, binding.permission)


def handle_create_acls(
    ctx: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse | Later:
    """Create bindings; each has its own answer."""
    if ctx.server.authorizer is None:
        return _creation_failed(request, ErrorCode.SECURITY_DISABLED, _DISABLED)
    parts = Gathering(CreateAclsResponse())
    wanted: list[tuple[AclBinding, AclCreationResult]] = []
    for asked in request.creations:
        result = AclCreationResult(error_message=None)
        parts.response.results.append(result)
        binding = AclBinding(
            asked.resource_type,
            asked.resource_name,
            asked.resource_pattern_type,
            asked.principal,
            asked.host,
            asked.operation,
            asked.permission_type,
        )
        if complaint := complaint_about(binding) or _complaint_about_host(binding):
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, complaint
        else:
            wanted.append((binding, result))
    for start in range(0, len(wanted), BINDINGS_PER_COMMAND):
        some = wanted[start : start + BINDINGS_PER_COMMAND]
        parts.expect()
        ctx.server.host.propose_catalog(
            CreateAcls([binding for binding, _ in some]),
            deadline_ns=ctx.deadline_ns(_TIMEOUT_MS),
            done=partial(_created, parts, [result for _, result in some]),
        )
    return parts.result()


def _complaint_about_host(binding: AclBinding) -> str:
    """Return the reason why the host of a DENY binding would match no client; otherwise empty.

    Hosts are compared as addresses, so a name or a network matches no client, and such a binding
    would let in clients that it should keep out. For ALLOW it is accepted, as in Kafka.
    """
    if binding.permission != AclPermission.DENY or binding.host == ANY_NAME:
        return ""
    try:
        ip_address(binding.host)
    except ValueError:
        return (
            "the host of a DENY binding must be one address or *; names and networks would "
            "match no client"
        )
    return ""


def _created(
    parts: Gathering[CreateAclsResponse], results: list[AclCreationResult], outcome: Outcome
) -> None:
    def fill() -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            for error, result in zip(outcome.result.errors, results, strict=True):
                result.error_code = error
                if error is ErrorCode.POLICY_VIOLATION:
                    result.error_message = _TOO_MANY
        else:
            for result in results:
                result.error_code, result.error_message = undecided(outcome)
        parts.arrived()

    parts.later.run(fill)


def fail_create_acls(
    request: CreateAclsRequest, _version: int, code: ErrorCode
) -> CreateAclsResponse:
    """Return `code` for each binding."""
    return _creation_failed(request, code, None)


def _creation_failed(
    request: CreateAclsRequest, code: ErrorCode, message: str | None
) -> CreateAclsResponse:
    return CreateAclsResponse(results=[AclCreationResult(code, message) for _ in request.creations])


def handle_delete_acls(
    ctx: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse | Later:
    """Delete bindings; each filter has its own answer, the bindings it removed."""
    if ctx.server.authorizer is None:
        return _deletion_failed(request, ErrorCode.SECURITY_DISABLED, _DISABLED)
    parts = Gathering(DeleteAclsResponse())
    some: list[tuple[AclFilter, DeleteAclsFilterResult]] = []
    scans = 0
    for asked in request.filters:
        result = DeleteAclsFilterResult(error_message=None)
        parts.response.filter_results.append(result)
        wanted = AclFilter(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )
        if complaint := filter_complaint(wanted):
            result.error_code, result.error_message = ErrorCode.INVALID_REQUEST, complaint
            continue
        scans += is_scan(wanted)
        if scans > SCANS_PER_COMMAND or len(some) >= BINDINGS_PER_COMMAND:
            _propose_deletion(ctx, parts, some)
            some, scans = [], int(is_scan(wanted))
        some.append((wanted, result))
    if some:
        _propose_deletion(ctx, parts, some)
    return parts.result()


def _propose_deletion(
    ctx: RequestContext,
    parts: Gathering[DeleteAclsResponse],
    wanted: list[tuple[AclFilter, DeleteAclsFilterResult]],
) -> None:
    parts.expect()
    ctx.server.host.propose_catalog(
        DeleteAcls([one for one, _ in wanted]),
        deadline_ns=ctx.deadline_ns(_TIMEOUT_MS),
        done=partial(_deleted, parts, [result for _, result in wanted]),
    )


def _deleted(
    parts: Gathering[DeleteAclsResponse], results: list[DeleteAclsFilterResult], outcome: Outcome
) -> None:
    def fill() -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            for bindings, result in zip(outcome.result.deleted, results, strict=True):
                result.matching_acls = [_match(binding) for binding in bindings]
        else:
            for result in results:
                result.error_code, result.error_message = undecided(outcome)
        parts.arrived()

    parts.later.run(fill)


def _match(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def fail_delete_acls(
    request: DeleteAclsRequest, _version: int, code: ErrorCode
) -> DeleteAclsResponse:
    """Return `code` for each filter."""
    return _deletion_failed(request, code, None)


def _deletion_failed(
    request: DeleteAclsRequest, code: ErrorCode, message: str | None
) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[DeleteAclsFilterResult(code, message) for _ in request.filters]
    )
