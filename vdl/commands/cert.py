"""`vdl cert`: a certificate authority and the certificates of a replica set."""

from __future__ import annotations

import re
from pathlib import Path

import click

from rpc.tls_context import CLUSTER_NAME_DEFAULT
from vdl.commands.output import emit, json_option
from vdl.commands.servers.certificates import (
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
    help="Folder of the certificates. An existing authority in it is reused.",
)  # fmt: skip


@click.group(invoke_without_command=True)
@_FOLDER
@click.option("--nodes", type=click.IntRange(0, 99), default=3, show_default=True,
              help="Number of servers. Their ids begin with 1.")  # fmt: skip
@click.option(
    "--host", "hosts", multiple=True, metavar="[ID=]HOST",
    help="Name or address that clients use for server ID, or for all servers. May be repeated.",
)  # fmt: skip
@click.option("--client", "clients", multiple=True, metavar="NAME",
              help="Name of a client that gets a certificate. May be repeated.")  # fmt: skip
@click.option(
    "--cluster", default=CLUSTER_NAME_DEFAULT, show_default=True,
    help="Cluster name in the certificates: the `tls.cluster` of the servers.",
)  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3_650), default=CERTIFICATE_DAYS,
              show_default=True, help="Days for which the certificates are valid.")  # fmt: skip
@click.option("--renew", is_flag=True, help="Replace existing certificates.")
@json_option
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
    as_json: bool,
) -> None:
    """Make an authority and certificates for a replica set.

    Running servers load renewed certificates. No restart is needed.
    """
    if ctx.invoked_subcommand is not None:
        return
    for name in (cluster, *clients):
        if not _NAME.fullmatch(name):
            raise click.BadParameter(
                f"{name!r} is not a valid name: expected 1 to 64 letters, digits, '.', '_' and '-'"
            )
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
    lines = [f"{file}, {file.with_suffix('.key')}" for file in made]
    lines.append(f"signed by {out / 'ca.pem'}; keep {out / 'ca.key'} away from the servers")
    data = {
        "made": [{"certificate": str(file), "key": str(file.with_suffix(".key"))} for file in made],
        "ca": str(out / "ca.pem"),
        "ca_key": str(out / "ca.key"),
    }
    emit(as_json, data, lambda: click.echo("\n".join(lines)))


@cert.command(name="revoke")
@click.argument("names", nargs=-1)
@click.option("--serial", "serials", multiple=True, metavar="HEX",
              help="Serial number of a certificate without a file. May be repeated.")  # fmt: skip
@_FOLDER
@click.option("--days", type=click.IntRange(1, CRL_DAYS), default=CRL_DAYS, show_default=True,
              help="Days for which the list is valid. After that all connections are refused."
              )  # fmt: skip
@json_option
def revoke_some(
    *, names: tuple[str, ...], serials: tuple[str, ...], out: Path, days: int, as_json: bool
) -> None:
    """Revoke certificates, such as "client-alice" or "server-2".

    Writes the revocation list of the authority, crl.pem. Copy it to all servers (`tls.crl`).
    Running servers load it. Without a NAME the list is only renewed, with a later end.
    """
    if not (out / "ca.key").exists():
        raise click.ClickException(
            f"{out / 'ca.key'} does not exist; the revocation list must be signed with it"
        )
    try:
        authority = open_authority(out, CLUSTER_NAME_DEFAULT)
        numbers = [serial_of(out, authority, name.removesuffix(".pem")) for name in names]
        numbers += [_serial(text) for text in serials]
        file, count = revoke(out, authority, numbers, days)
    except CertificateError as error:
        raise click.ClickException(str(error)) from error
    said = f"{file}: {count} revoked; copy it to all servers (tls.crl)"
    emit(as_json, {"list": str(file), "revoked": count}, lambda: click.echo(said))


def _serial(text: str) -> int:
    try:
        number = int(text.replace(":", ""), 16)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 159:
        raise click.BadParameter(f"{text!r} is not a serial number: expected hexadecimal digits")
    return number


def _host_of(server_id: int, host: str) -> str:
    """Return the host, if it is this server's; empty otherwise."""
    number, is_one, name = host.partition("=")
    if not is_one:
        return host
    return name if number == str(server_id) else ""
