"""`vdl acl`: access control lists, over Kafka's own APIs (KIP-11, KIP-290)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from vdl.commands.cluster.admin_requests import check, connection_options, with_client
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import emit, json_option, say
from vdl.commands.terminal_text import visible_line
from vdl.kafka.wire.create_acls import AclCreation, CreateAclsRequest
from vdl.kafka.wire.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from vdl.kafka.wire.describe_acls import DescribeAclsRequest
from vdl.state.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
)

DESCRIBE, CREATE, DELETE = 29, 30, 31
_RESOURCES = {
    "topic": AclResource.TOPIC,
    "group": AclResource.GROUP,
    "cluster": AclResource.CLUSTER,
    "transactional-id": AclResource.TRANSACTIONAL_ID,
    "delegation-token": AclResource.DELEGATION_TOKEN,
    "user": AclResource.USER,
}
_NAMES = {resource: name for name, resource in _RESOURCES.items()}
_OPERATIONS = [one.name.lower().replace("_", "-") for one in AclOperation if one > 1]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def acl() -> None:
    """Manage access control lists."""


def _what(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a resource, a principal and operations."""
    options = (
        click.argument("resource", type=click.Choice(list(_RESOURCES))),
        click.argument("name", default=""),
        click.option("--prefix", is_flag=True, help="Apply to all names that begin with NAME."),
        click.option(
            "--principal", default="",
            help='Principal such as "User:alice". "User:*" means every user.',
        ),
        click.option(
            "--host", default="", help="Address of the clients. Every address if it is not given."
        ),
        click.option(
            "--operation", "operations", multiple=True, type=click.Choice(_OPERATIONS),
            help="Operation. May be repeated.",
        ),
        click.option("--deny", is_flag=True, help="Deny instead of allow."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@acl.command()
@_what
@json_option
@connection_options()
def add(
    *,
    resource: str,
    name: str,
    prefix: bool,
    principal: str,
    host: str,
    operations: tuple[str, ...],
    deny: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Allow or deny a principal operations on the RESOURCE with this NAME ("*" for all names)."""
    if not principal or not operations:
        raise click.UsageError("--principal and --operation are required")
    creations = [
        AclCreation(
            _RESOURCES[resource],
            _name_of(resource, name),
            AclPattern.PREFIXED if prefix else AclPattern.LITERAL,
            principal,
            host or "*",
            _operation(operation),
            AclPermission.DENY if deny else AclPermission.ALLOW,
        )
        for operation in operations
    ]
    answer = with_client(
        connection, lambda client: client.request(CREATE, CreateAclsRequest(creations))
    )
    for result in answer.results:
        check(result.error_code, result.error_message)
    made = [
        _as_json(one, one.resource_type, one.resource_pattern_type, one.resource_name)
        for one in creations
    ]
    emit(as_json, {"acls": made}, lambda: None)


@acl.command()
@_what
@json_option
@connection_options()
def remove(
    *,
    resource: str,
    name: str,
    prefix: bool,
    principal: str,
    host: str,
    operations: tuple[str, ...],
    deny: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Remove the bindings of a NAME that match the options, and print them."""
    wanted = [
        DeleteAclsFilter(
            _RESOURCES[resource],
            _name_of(resource, name),
            AclPattern.PREFIXED if prefix else AclPattern.LITERAL,
            principal or None,
            host or None,
            operation,
            AclPermission.DENY if deny else AclPermission.ANY,
        )
        for operation in [_operation(one) for one in operations] or [AclOperation.ANY]
    ]
    answer = with_client(
        connection, lambda client: client.request(DELETE, DeleteAclsRequest(wanted))
    )
    for result in answer.filter_results:
        check(result.error_code, result.error_message)
    removed = [
        _as_json(one, one.resource_type, one.pattern_type, one.resource_name)
        for result in answer.filter_results
        for one in result.matching_acls
    ]
    _emit(removed, as_json=as_json)


@acl.command(name="list")
@click.option("--principal", default=None, help="List only the bindings of this principal.")
@json_option
@connection_options()
def list_acls(*, principal: str | None, as_json: bool, connection: Connection) -> None:
    """List all bindings, ordered by resource."""
    everything = DescribeAclsRequest(1, None, 1, principal, None, 1, 1)
    answer = with_client(connection, lambda client: client.request(DESCRIBE, everything))
    check(answer.error_code, answer.error_message)
    resources = sorted(
        answer.resources, key=lambda one: (one.resource_type, one.resource_name, one.pattern_type)
    )
    found = [
        _as_json(one, resource.resource_type, resource.pattern_type, resource.resource_name)
        for resource in resources
        for one in sorted(resource.acls, key=lambda one: (one.principal, one.host, one.operation))
    ]
    _emit(found, as_json=as_json)


def _name_of(resource: str, name: str) -> str:
    if resource == "cluster":
        return CLUSTER_NAME
    if not name:
        raise click.UsageError("NAME is required for this kind of resource")
    return name


def _operation(text: str) -> AclOperation:
    return AclOperation[text.upper().replace("-", "_")]


def _as_json(one: Any, resource: int, pattern: int, name: str) -> dict[str, str]:
    """Return the object of docs/cli.md."""
    return {
        "principal": one.principal,
        "permission": "deny" if one.permission_type == AclPermission.DENY else "allow",
        "operation": AclOperation(one.operation).name.lower().replace("_", "-"),
        "resource": _NAMES.get(AclResource(resource), str(resource)),
        "name": name,
        "pattern": "prefixed" if pattern == AclPattern.PREFIXED else "literal",
        "host": one.host,
    }


def _emit(found: list[dict[str, str]], *, as_json: bool) -> None:
    lines = [_line(one) for one in found]
    emit(as_json, {"acls": found}, lambda: say("\n".join(map(visible_line, lines)), nl=bool(lines)))


def _line(one: dict[str, str]) -> str:
    what = f"{one['resource']} {one['name']}" + ("..." if one["pattern"] == "prefixed" else "")
    verb = "denied" if one["permission"] == "deny" else "allowed"
    where = "" if one["host"] == "*" else f" from {one['host']}"
    return f"{one['principal']} is {verb} {one['operation']} on {what}{where}"
