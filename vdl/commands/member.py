"""`vdl member`: the servers of a cluster, over their admin services."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ids import ServerId
from rpc.admin import Member, MemberChange, MemberChanged
from vdl.commands.checks.admin_calls import call_servers
from vdl.commands.cluster.admin_requests import connection_options
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import emit, fail, json_option, progress, say, table
from vdl.config.values import Address, parse_address

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

_POLL_SECONDS = 0.5
_MEMBER, _LEAVING = "member", "leaving"


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
    members = _members(connection)
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

    Partitions are not moved to it: new ones are placed on it, others are reassigned by
    kafka-reassign-partitions.
    """
    try:
        address = parse_address(peer)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}", param_hint="--peer") from None
    _add(connection, ServerId(server), address)
    if wait:
        _wait_for(connection, server, "joins", _has_joined)
    _report(connection, server, as_json=as_json)


@member.command()
@click.argument("server", type=click.IntRange(1), metavar="ID")
@click.option("--wait/--no-wait", default=True, help="Wait until it is removed.")
@json_option
@connection_options()
def remove(*, server: int, wait: bool, as_json: bool, connection: Connection) -> None:
    """Move all partitions away from an added server, then remove it from the cluster.

    It goes on when this command is interrupted; `vdl member restore` ends it. The server may be
    stopped once it is removed.
    """
    _change(connection, MemberChange.REMOVE, ServerId(server))
    if wait:
        _wait_for(connection, server, "leaves", _stays_no_more)
    _report(connection, server, as_json=as_json)


@member.command()
@click.argument("server", type=click.IntRange(1), metavar="ID")
@json_option
@connection_options()
def restore(*, server: int, as_json: bool, connection: Connection) -> None:
    """Take a server back that leaves. Moves that have begun go on, and no others begin."""
    _change(connection, MemberChange.RESTORE, ServerId(server))
    _report(connection, server, as_json=as_json)


# --- requests -------------------------------------------------------------------------------------
def _members(connection: Connection) -> list[Member]:
    return call_servers(connection, lambda client: client.members())


def _find(connection: Connection, server: int) -> Member | None:
    return next((one for one in _members(connection) if one.server_id == server), None)


def _add(connection: Connection, server: ServerId, address: Address) -> None:
    """Add a server over one that it is connected to. Raises click.ClickException."""

    def call(client: AdminClient) -> MemberChanged | None:
        if not any(one.server_id == server and one.is_connected for one in client.members()):
            return None  # it may wait at another server
        return client.change_member(MemberChange.ADD, server, host=address.host, port=address.port)

    missing = (
        f"server {server} is connected to no server of the cluster: start it with their addresses, "
        "and wait until it logs waiting_to_be_added"
    )
    _check(call_servers(connection, call, otherwise=missing))


def _change(connection: Connection, change: MemberChange, server: ServerId) -> None:
    _check(call_servers(connection, lambda client: client.change_member(change, server)))


def _check(result: MemberChanged) -> None:
    if result.error:
        fail(result.message)


# --- output ---------------------------------------------------------------------------------------
def _wait_for(
    connection: Connection, server: int, does: str, is_over: Callable[[Member | None], bool]
) -> None:
    """Show how far a server is until `is_over`; its replicas and what blocks are shown.

    Without a terminal, what it waits for is a line on standard error once it has not changed
    between two looks.
    """
    is_terminal, told, last = sys.stderr.isatty(), "", ""
    with progress(f"server {server} {does}", None) as bar:
        while not is_over(one := _find(connection, server)):
            waits = "" if one is None else _waits(one)
            if waits:
                bar.label(waits)
            if waits == last != told and not is_terminal:
                say(f"server {server} {does}: {waits}", err=True)
                told = waits
            last = waits
            time.sleep(_POLL_SECONDS)


def _waits(one: Member) -> str:
    """Return what a server waits for, as far as that is known."""
    if one.blocking:
        return f"{one.replicas} partitions left; {one.blocking}: {one.reason}"
    return one.reason


def _report(connection: Connection, server: int, *, as_json: bool) -> None:
    one = _find(connection, server)
    standing = "not in the cluster" if one is None else one.standing
    emit(
        as_json,
        {"server_id": server, "member": None if one is None else dataclasses.asdict(one)},
        lambda: say(f"server {server}: {standing}"),
    )


def _has_joined(one: Member | None) -> bool:
    return one is not None and one.standing == _MEMBER


def _stays_no_more(one: Member | None) -> bool:
    return one is None or one.standing != _LEAVING


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
