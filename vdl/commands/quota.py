"""`vdl quota`: quotas of clients, over Kafka's own APIs (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vdl.commands.admin_requests import check, connection_options, with_client
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
@connection_options()
def set_quotas(
    *,
    quotas: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    bootstrap: str,
    config: Path | None,
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
    _alter(_entity(user, client_id, ip), changes, bootstrap, config)


@quota.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_whose
@connection_options()
def remove(
    *,
    names: tuple[str, ...],
    user: str | None,
    client_id: str | None,
    ip: str | None,
    bootstrap: str,
    config: Path | None,
) -> None:
    """Remove quotas of a user, a client id or an address."""
    changes = [OpData(name, remove=True) for name in names]
    _alter(_entity(user, client_id, ip), changes, bootstrap, config)


@quota.command(name="list")
@connection_options()
def list_quotas(*, bootstrap: str, config: Path | None) -> None:
    """List all quotas."""
    everything = DescribeClientQuotasRequest()
    answer = with_client(bootstrap, config, lambda client: client.request(DESCRIBE, everything))
    check(answer.error_code, answer.error_message)
    lines = [
        " ".join(f"{part.entity_type} {part.entity_name or _DEFAULT}" for part in entry.entity)
        + ": "
        + ", ".join(f"{value.key}={value.value:g}" for value in entry.values)
        for entry in answer.entries or ()
    ]
    for line in sorted(lines):
        click.echo(line)


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
    entity: list[EntityData], changes: list[OpData], bootstrap: str, config: Path | None
) -> None:
    request = AlterClientQuotasRequest([EntryData(entity, changes)])
    answer = with_client(bootstrap, config, lambda client: client.request(ALTER, request))
    for entry in answer.entries:
        check(entry.error_code, entry.error_message)
