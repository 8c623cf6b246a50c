"""Changes of a cluster's servers, requested over their admin services, and the wait for their end.

Does not depend on how a result is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ids import ServerId
from rpc.admin import Member, MemberChange, MemberChanged
from vdl.commands.checks.admin_calls import call_servers
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import fail, progress, say
from vdl.config.values import Address

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

POLL_SECONDS = 0.5
MEMBER, LEAVING = "member", "leaving"


def list_servers(connection: Connection) -> list[Member]:
    """Return all servers, those that wait to be added too. Raises click.ClickException."""
    return call_servers(connection, lambda client: client.members())


def find_server(connection: Connection, server: int) -> Member | None:
    """Return one server; None if the cluster does not know it. Raises click.ClickException."""
    return next((one for one in list_servers(connection) if one.server_id == server), None)


def add_server(connection: Connection, server: ServerId, address: Address) -> None:
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


def change_server(connection: Connection, change: MemberChange, server: ServerId) -> None:
    """Begin to remove a server, or take it back. Raises click.ClickException."""
    _check(call_servers(connection, lambda client: client.change_member(change, server)))


def _check(result: MemberChanged) -> None:
    if result.error:
        fail(result.message)


def wait_for(
    connection: Connection, server: int, does: str, is_over: Callable[[Member | None], bool]
) -> None:
    """Show how far a server is until `is_over`; its replicas and what blocks are shown.

    Without a terminal, what it waits for is a line on standard error once it has not changed
    between two looks.
    """
    is_terminal, told, last = sys.stderr.isatty(), "", ""
    with progress(f"server {server} {does}", None) as bar:
        while not is_over(one := find_server(connection, server)):
            waits = "" if one is None else _waits(one)
            if waits:
                bar.label(waits)
            if waits == last != told and not is_terminal:
                say(f"server {server} {does}: {waits}", err=True)
                told = waits
            last = waits
            time.sleep(POLL_SECONDS)


def _waits(one: Member) -> str:
    """Return what a server waits for, as far as that is known."""
    if one.blocking:
        return f"{one.replicas} partitions left; {one.blocking}: {one.reason}"
    return one.reason


def has_joined(one: Member | None) -> bool:
    """Return True if a server serves clients."""
    return one is not None and one.standing == MEMBER


def is_gone(one: Member | None) -> bool:
    """Return True if a server leaves no more: it was removed, or taken back."""
    return one is None or one.standing != LEAVING
