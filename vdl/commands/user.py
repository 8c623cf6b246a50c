"""`vdl user`: users of a cluster and their passwords, over Kafka's own APIs (KIP-554), or in a data
directory if no user is left who may add one."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import click

from vdl.commands.cluster.admin_requests import (
    check,
    connection_options,
    require_login,
    with_client,
)
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import emit, json_option, say
from vdl.commands.servers.certificates import CertificateError, write_private
from vdl.commands.terminal_text import visible_line
from vdl.kafka.client import KafkaClient
from vdl.kafka.security.protocol import SCRAM_SHA_256, SCRAM_SHA_512
from vdl.kafka.security.scram import ITERATIONS_MIN, salted_password
from vdl.kafka.wire.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from vdl.kafka.wire.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from vdl.server.first_users import users_text
from vdl.server.offline_users import NAME as OFFLINE_USERS

DESCRIBE, ALTER = 50, 51
NUMBERS = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}
_NAMES = {number: name for name, number in NUMBERS.items()}
_SALT_BYTES = 16
_PASSWORD_BYTES = 18


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def user() -> None:
    """Add, remove and list users who log in with a password."""


@user.command()
@click.argument("name")
@click.option(
    "--offline", type=click.Path(path_type=Path, file_okay=False, exists=True), metavar="DIR",
    help="Data directory of a server. The user is added when that server starts next.",
)  # fmt: skip
@json_option
@connection_options()
def add(*, name: str, offline: Path | None, as_json: bool, connection: Connection) -> None:
    """Add a user, or change the password of one.

    The password is the first line of standard input. If that is a terminal, a random password is
    made and printed. If no administrator can log in any more, use --offline.
    """
    if offline is None:
        require_login(connection)
    elif connection.properties and not connection.profile:
        raise click.UsageError("expected either --config or --offline, not both")
    is_random = sys.stdin.isatty()
    if is_random:
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        if not as_json:
            say(password)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password is empty")
    if offline is not None:
        _add_offline(offline, name, password)
        said = "The user will be added when the server starts."
        emit(as_json, _added(name, password, is_random), lambda: say(said))
        return
    upserts = []
    for mechanism, number in NUMBERS.items():
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = salted_password(mechanism, password.encode(), salt, ITERATIONS_MIN)
        upserts.append(ScramCredentialUpsertion(name, number, ITERATIONS_MIN, salt, salted))
    _alter(connection, AlterUserScramCredentialsRequest(upsertions=upserts))
    emit(as_json, _added(name, password, is_random), lambda: None)


def _added(name: str, password: str, is_random: bool) -> dict[str, str | None]:
    """Return the object of docs/cli.md: with a password only if it is not known yet."""
    return {"user": name, "password": password if is_random else None}


@user.command()
@click.argument("name")
@json_option
@connection_options(login_required=True)
def remove(*, name: str, as_json: bool, connection: Connection) -> None:
    """Remove a user. Its connections are closed."""

    def delete(client: KafkaClient) -> None:
        asked = DescribeUserScramCredentialsRequest(users=[UserName(name)])
        (found,) = client.request(DESCRIBE, asked).results
        check(found.error_code, found.error_message)
        deletions = [
            ScramCredentialDeletion(name, info.mechanism) for info in found.credential_infos
        ]
        request = AlterUserScramCredentialsRequest(deletions=deletions)
        for result in client.request(ALTER, request).results:
            check(result.error_code, result.error_message)

    with_client(connection, delete)
    emit(as_json, {"removed": name}, lambda: None)


@user.command(name="list")
@json_option
@connection_options(login_required=True)
def list_users(*, as_json: bool, connection: Connection) -> None:
    """List users and their mechanisms."""
    asked = DescribeUserScramCredentialsRequest(users=None)
    answer = with_client(connection, lambda client: client.request(DESCRIBE, asked))
    check(answer.error_code, answer.error_message)
    users = [
        {
            "user": result.user,
            "credentials": [
                {
                    "mechanism": _NAMES.get(info.mechanism, str(info.mechanism)),
                    "iterations": info.iterations,
                }
                for info in result.credential_infos
            ],
        }
        for result in answer.results
    ]
    emit(as_json, {"users": users}, lambda: _show(users))


def _show(users: list[dict[str, Any]]) -> None:
    for one in users:
        kinds = ", ".join(
            f"{found['mechanism']} ({found['iterations']} iterations)"
            for found in one["credentials"]
        )
        say(f"{visible_line(one['user'])}: {kinds}")


def _add_offline(directory: Path, name: str, password: str) -> None:
    """Write the user to a file for the directory's server, with the directory's owner."""
    file = directory / OFFLINE_USERS
    if not (directory / "identity").exists():
        raise click.ClickException(f"{directory} is not a data directory")
    if file.exists():
        raise click.ClickException(
            f"{file} exists already; start its server first, which adds the user and removes "
            "the file"
        )
    try:
        found = directory.stat()
        users = users_text([(name, password)]).encode()
        write_private(file, users, owner=(found.st_uid, found.st_gid))
    except (CertificateError, OSError) as error:
        raise click.ClickException(f"{file}: {error}") from error


def _alter(connection: Connection, request: AlterUserScramCredentialsRequest) -> None:
    def send(client: KafkaClient) -> None:
        for result in client.request(ALTER, request).results:
            check(result.error_code, result.error_message)

    with_client(connection, send)
