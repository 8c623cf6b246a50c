"""`vdl quota`: quotas of clients, over Kafka's own APIs (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from vdl.commands.cluster.admin_requests import check, connection_options, with_client
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import emit, json_option, say
from vdl.commands.terminal_text import visible_line
from vdl.kafka.wire.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from vdl.kafka.wire.describe_client_quotas import DescribeClientQuotasRequest
from vdl.state.quotas import CLIENT_ID, IP, USER

DESCRIBE, ALTER = 48, 49
_DEFAULT = "*"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def quota() -> None:
    """Manage client quotas. They apply to each server separately."""


def _whose(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in ("--user", "--client-id", "--ip"):
        function = click.option(
            option,
            default=None,
            help='Name, or "*" for the default of all without quotas of their own.',
        )(function)
    return function


@quota.command(name="set")
@click.argument("quotas", nargs=-1, required=True, metavar="NAME=NUMBER...")
@_whose
@json_option
@connection_options()
def set_quotas(
    *,
    quotas: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Set quotas of a user, a client id or an address.

    Names: producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate. For
    addresses: connection_creation_rate.
    """
    changes = []
    for text in quotas:
        name, separator, value = text.partition("=")
        try:
            changes.append(OpData(name, float(value)))
        except ValueError:
            separator = ""
        if not separator:
            raise click.UsageError(f"expected NAME=NUMBER, found {text!r}")
    _alter(_entity(user, client_id, ip), changes, connection, as_json=as_json)


@quota.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_whose
@json_option
@connection_options()
def remove(
    *,
    names: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Remove quotas of a user, a client id or an address."""
    changes = [OpData(name, remove=True) for name in names]
    _alter(_entity(user, client_id, ip), changes, connection, as_json=as_json)


@quota.command(name="list")
@json_option
@connection_options()
def list_quotas(*, as_json: bool, connection: Connection) -> None:
    """List all quotas."""
    everything = DescribeClientQuotasRequest()
    answer = with_client(connection, lambda client: client.request(DESCRIBE, everything))
    check(answer.error_code, answer.error_message)
    found = [
        {
            "entity": {part.entity_type: part.entity_name for part in entry.entity},
            "quotas": {value.key: value.value for value in entry.values},
        }
        for entry in answer.entries or ()
    ]
    found.sort(key=_line)
    lines = "\n".join(visible_line(_line(one)) for one in found)
    emit(as_json, {"quotas": found}, lambda: say(lines, nl=bool(lines)))


def _line(entry: dict[str, dict[str, Any]]) -> str:
    whose = " ".join(f"{kind} {name or _DEFAULT}" for kind, name in entry["entity"].items())
    return f"{whose}: " + ", ".join(f"{key}={value:g}" for key, value in entry["quotas"].items())


def _entity(user: str | None, client_id: str | None, ip: str | None) -> list[EntityData]:
    names = {USER: user, CLIENT_ID: client_id, IP: ip}
    entity = [
        EntityData(kind, None if name == _DEFAULT else name)
        for kind, name in names.items()
        if name is not None
    ]
    if not entity:
        raise click.UsageError("--user, --client-id or --ip is required")
    return entity


def _alter(
    entity: list[EntityData], changes: list[OpData], connection: Connection, *, as_json: bool
) -> None:
    request = AlterClientQuotasRequest([EntryData(entity, changes)])
    answer = with_client(connection, lambda client: client.request(ALTER, request))
    for entry in answer.entries:
        check(entry.error_code, entry.error_message)
    data = {
        "entity": {part.entity_type: part.entity_name for part in entity},
        "quotas": {one.key: None if one.remove else one.value for one in changes},
    }
    emit(as_json, data, lambda: None)
