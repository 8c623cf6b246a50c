"""`vdl member`: the servers of a cluster, over their admin services."""

from __future__ import annotations

import dataclasses

import click

from ids import ServerId
from rpc.admin import Member, MemberChange
from vdl.commands.changes.member_changes import (
    add_server,
    change_server,
    find_server,
    has_joined,
    is_gone,
    list_servers,
    wait_for,
)
from vdl.commands.cluster.admin_requests import connection_options
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import emit, json_option, say, table
from vdl.config.values import parse_address


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def member() -> None:
    """Show, add and remove the servers of a cluster.

    A lost server is started again under its id with an empty data directory, and the cluster
    replaces its replicas. One of the servers that formed the cluster needs no command; one that was
    added waits until it is added again.
    """


@member.command(name="list")
@json_option
@connection_options()
def list_members(*, as_json: bool, connection: Connection) -> None:
    """Show all servers: those that wait to be added, too, and what keeps one that leaves."""
    members = list_servers(connection)
    document = {"members": [dataclasses.asdict(one) for one in members]}
    columns = (
        ">server", "state", "votes", "connected", "address", "directory", "rack", ">replicas",
        ">leading", "blocked by",
    )  # fmt: skip
    emit(as_json, document, lambda: table(columns, map(_row, members)))


@member.command()
@click.argument("server", type=click.IntRange(1), metavar="ID")
@click.option("--peer", required=True, metavar="HOST:PORT", help="Its address for other servers.")
@click.option("--wait/--no-wait", default=True, help="Wait until it serves clients.")
@json_option
@connection_options()
def add(*, server: int, peer: str, wait: bool, as_json: bool, connection: Connection) -> None:
    """Add a server that was started with the addresses of this cluster's servers, and waits.

    Partitions are not moved to it: new ones are placed on it, `vdl balance` moves others.
    """
    try:
        address = parse_address(peer)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}", param_hint="--peer") from None
    add_server(connection, ServerId(server), address)
    if wait:
        wait_for(connection, server, "joins", has_joined)
    _report(connection, server, as_json=as_json)


@member.command()
@click.argument("server", type=click.IntRange(1), metavar="ID")
@click.option("--wait/--no-wait", default=True, help="Wait until it is removed.")
@json_option
@connection_options()
def remove(*, server: int, wait: bool, as_json: bool, connection: Connection) -> None:
    """Move all partitions and votes away from a server, then remove it from the cluster.

    It goes on when this command is interrupted; `vdl member restore` ends it. The server may be
    stopped once it is removed.
    """
    change_server(connection, MemberChange.REMOVE, ServerId(server))
    if wait:
        wait_for(connection, server, "leaves", is_gone)
    _report(connection, server, as_json=as_json)


@member.command()
@click.argument("server", type=click.IntRange(1), metavar="ID")
@json_option
@connection_options()
def restore(*, server: int, as_json: bool, connection: Connection) -> None:
    """Take a server back that leaves. Moves that have begun go on, and no others begin."""
    change_server(connection, MemberChange.RESTORE, ServerId(server))
    _report(connection, server, as_json=as_json)


# --- output ---------------------------------------------------------------------------------------
def _report(connection: Connection, server: int, *, as_json: bool) -> None:
    one = find_server(connection, server)
    standing = "not in the cluster" if one is None else one.standing
    emit(
        as_json,
        {"server_id": server, "member": None if one is None else dataclasses.asdict(one)},
        lambda: say(f"server {server}: {standing}"),
    )


def _row(one: Member) -> tuple[object, ...]:
    blocked = f"{one.blocking}: {one.reason}" if one.blocking else one.reason or None
    return (
        one.server_id,
        one.standing,
        "yes" if one.is_voter else "no",
        "yes" if one.is_connected else "no",
        one.address or None,
        one.directory_id or None,
        one.rack or None,
        one.replicas,
        one.leading,
        blocked,
    )
