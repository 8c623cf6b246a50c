"""`vdl cert`: a certificate authority and the certificates of a replica set."""

from __future__ import annotations

import re
from pathlib import Path

import click

from rpc.tls_context import CLUSTER_NAME_DEFAULT
from vdl.commands.certificates import (
    CERTIFICATE_DAYS,
    CRL_DAYS,
    CertificateError,
    open_authority,
    revoke,
    serial_of,
    write_admin,
    write_client,
    write_server,
)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


_FOLDER = click.option(
    "--out", type=click.Path(path_type=Path), default="tls", show_default=True,
    help="Folder to write to; an authority that is in it already is used again.",
)  # fmt: skip


@click.group(invoke_without_command=True)
@_FOLDER
@click.option("--nodes", type=click.IntRange(0, 99), default=3, show_default=True,
              help="How many servers, from 1 on.")  # fmt: skip
@click.option(
    "--host", "hosts", multiple=True, metavar="[ID=]HOST",
    help="A name or address by which clients know a server, or all of them; may be repeated.",
)  # fmt: skip
@click.option("--client", "clients", multiple=True, metavar="NAME",
              help="A client that shows a certificate; may be repeated.")  # fmt: skip
@click.option(
    "--cluster", default=CLUSTER_NAME_DEFAULT, show_default=True,
    help="What the certificates call the set: `tls.cluster` of its servers.",
)  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3_650), default=CERTIFICATE_DAYS,
              show_default=True, help="How long certificates hold.")  # fmt: skip
@click.option("--renew", is_flag=True, help="Make those anew that are there.")
@click.pass_context
def cert(
    ctx: click.Context,
    *,
    out: Path,
    nodes: int,
    hosts: tuple[str, ...],
    clients: tuple[str, ...],
    cluster: str,
    days: int,
    renew: bool,
) -> None:
    """Make an authority and certificates for a replica set.

    Running servers take up certificates that are renewed; nothing has to be started again.
    """
    if ctx.invoked_subcommand is not None:
        return
    for name in (cluster, *clients):
        if not _NAME.fullmatch(name):
            raise click.BadParameter(f"{name!r} is no name of letters, digits, '.', '_' and '-'")
    try:
        authority = open_authority(out, cluster)
        made = []
        for server_id in range(1, nodes + 1):
            if renew or not (out / f"server-{server_id}.pem").exists():
                own = [own for host in hosts if (own := _host_of(server_id, host))]
                made.append(write_server(out, authority, cluster, server_id, own, days))
        if renew or not (out / "admin.pem").exists():
            made.append(write_admin(out, authority, cluster, days))
        made += [
            write_client(out, authority, name, days)
            for name in clients
            if renew or not (out / f"client-{name}.pem").exists()
        ]
    except CertificateError as error:
        raise click.ClickException(str(error)) from error
    for file in made:
        click.echo(f"{file}, {file.with_suffix('.key')}")
    click.echo(f"signed by {out / 'ca.pem'}; keep {out / 'ca.key'} off the servers")


@cert.command(name="revoke")
@click.argument("names", nargs=-1)
@click.option("--serial", "serials", multiple=True, metavar="HEX",
              help="The serial number of a certificate that is no longer here.")  # fmt: skip
@_FOLDER
@click.option("--days", type=click.IntRange(1, CRL_DAYS), default=CRL_DAYS, show_default=True,
              help="How long the list holds. Once it ends nobody gets in.")  # fmt: skip
def revoke_some(*, names: tuple[str, ...], serials: tuple[str, ...], out: Path, days: int) -> None:
    """Revoke certificates, such as "client-alice" or "server-2".

    Writes the authority's list, crl.pem: give it to all servers as `tls.crl`. They take it up
    while they run. Without a NAME the list is only made anew, with a later end.
    """
    if not (out / "ca.key").exists():
        raise click.ClickException(f"{out / 'ca.key'}: the authority's key signs the list")
    try:
        authority = open_authority(out, CLUSTER_NAME_DEFAULT)
        numbers = [serial_of(out, authority, name.removesuffix(".pem")) for name in names]
        numbers += [_serial(text) for text in serials]
        file, count = revoke(out, authority, numbers, days)
    except CertificateError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{file}: {count} revoked; give it to all servers (tls.crl)")


def _serial(text: str) -> int:
    try:
        number = int(text.replace(":", ""), 16)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 159:
        raise click.BadParameter(f"{text!r} is no serial number")
    return number


def _host_of(server_id: int, host: str) -> str:
    """Return the host, if it is this server's; empty otherwise."""
    number, is_one, name = host.partition("=")
    if not is_one:
        return host
    return name if number == str(server_id) else ""
