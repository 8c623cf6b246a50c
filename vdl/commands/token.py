"""`vdl token`: delegation tokens, over Kafka's own APIs (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from typing import Any

import click

from vdl.commands.cluster.admin_requests import check, connection_options, with_client
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import emit, json_option, say
from vdl.config.values import DAY_MS, duration
from vdl.kafka.client import KafkaClient
from vdl.kafka.security.principal import USER
from vdl.kafka.wire.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
)
from vdl.kafka.wire.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from vdl.kafka.wire.expire_delegation_token import ExpireDelegationTokenRequest
from vdl.kafka.wire.renew_delegation_token import RenewDelegationTokenRequest

CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
_AT_ONCE, _AS_CONFIGURED = -1, -1
"""A negative period of ExpireDelegationToken, and of the others."""
_parse_period = duration(1, 3_650 * DAY_MS)


def _period(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return the milliseconds of an option such as "12h"."""
    del ctx, option
    if text is None:
        return None
    try:
        period_ms = _parse_period(text)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}") from None
    assert isinstance(period_ms, int), period_ms
    return period_ms


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def token() -> None:
    """Manage delegation tokens. A client with a token logs in as its owner, until it expires.

    A user who logged in with a token cannot make tokens. The servers' files need
    `security.delegation_token_key`.
    """


@token.command()
@click.option("--owner", default="", metavar="PRINCIPAL",
              help='Owner such as "User:bob". By default the user who logs in.')  # fmt: skip
@click.option("--renewer", "renewers", multiple=True, metavar="PRINCIPAL",
              help="Principal that may renew the token. May be repeated.")  # fmt: skip
@click.option("--max-lifetime", "lifetime_ms", callback=_period, metavar="TIME",
              help='Maximum lifetime such as "3d". By default that of the servers.')  # fmt: skip
@json_option
@connection_options(login_required=True)
def create(
    *,
    owner: str,
    renewers: tuple[str, ...],
    lifetime_ms: int | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Make a token, and print it with its secret.

    A client logs in by SCRAM. Its user name is the id, its password the secret. It must set
    tokenauth=true.
    """
    kind, name = _principal(owner) if owner else (None, None)
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[CreatableRenewers(*_principal(one)) for one in renewers],
        max_lifetime_ms=_AS_CONFIGURED if lifetime_ms is None else lifetime_ms,
    )
    made = with_client(connection, lambda client: client.request(CREATE, request))
    check(made.error_code, None)
    secret = base64.b64encode(made.hmac).decode()
    data = {
        "id": made.token_id,
        "secret": secret,
        "owner": f"{made.principal_type}:{made.principal_name}",
        "expires_ms": made.expiry_timestamp_ms,
        "maximum_lifetime_ends_ms": made.max_timestamp_ms,
    }
    lines = (
        f"id {made.token_id}",
        f"secret {secret}",
        f"owner {data['owner']}",
        f"expires {_time(made.expiry_timestamp_ms)}",
        f"maximum lifetime ends {_time(made.max_timestamp_ms)}",
    )
    emit(as_json, data, lambda: say("\n".join(lines)))


@token.command()
@click.argument("token_id")
@click.option("--for", "period_ms", callback=_period, metavar="TIME",
              help='Time from now such as "12h". By default that of the servers.')  # fmt: skip
@json_option
@connection_options(login_required=True)
def renew(*, token_id: str, period_ms: int | None, as_json: bool, connection: Connection) -> None:
    """Extend a token. Its owner and its renewers may do this."""
    period = _AS_CONFIGURED if period_ms is None else period_ms
    _alter(
        connection,
        token_id,
        RENEW,
        lambda secret: RenewDelegationTokenRequest(secret, period),
        as_json=as_json,
    )


@token.command()
@click.argument("token_id")
@click.option("--in", "period_ms", callback=_period, metavar="TIME",
              help='Time from now such as "1h". By default it expires at once.')  # fmt: skip
@json_option
@connection_options(login_required=True)
def expire(*, token_id: str, period_ms: int | None, as_json: bool, connection: Connection) -> None:
    """Expire a token. Connections that logged in with it are closed."""
    period = _AT_ONCE if period_ms is None else period_ms
    _alter(
        connection,
        token_id,
        EXPIRE,
        lambda secret: ExpireDelegationTokenRequest(secret, period),
        as_json=as_json,
    )


@token.command()
@click.option("--owner", "owners", multiple=True, metavar="PRINCIPAL",
              help="List only tokens of this owner. May be repeated.")  # fmt: skip
@json_option
@connection_options(login_required=True)
def describe(*, owners: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """List the tokens that the user may see, without their secrets."""
    wanted = [DescribeDelegationTokenOwner(*_principal(one)) for one in owners] or None
    found = with_client(connection, lambda client: _described(client, wanted))
    tokens = [
        {
            "id": one.token_id,
            "owner": f"{one.principal_type}:{one.principal_name}",
            "expires_ms": one.expiry_timestamp,
            "maximum_lifetime_ends_ms": one.max_timestamp,
            "renewers": [f"{who.principal_type}:{who.principal_name}" for who in one.renewers],
        }
        for one in sorted(found, key=lambda one: (one.expiry_timestamp, one.token_id))
    ]
    emit(as_json, {"tokens": tokens}, lambda: _show(tokens))


def _show(tokens: list[dict[str, Any]]) -> None:
    for one in tokens:
        renewers = ", ".join(one["renewers"])
        say(
            f"{one['id']}: owner {one['owner']}, expires {_time(one['expires_ms'])},"
            f" maximum lifetime ends {_time(one['maximum_lifetime_ends_ms'])}"
            + (f", renewers {renewers}" if renewers else "")
        )


def _alter(
    connection: Connection,
    token_id: str,
    key: int,
    request: Callable[[bytes], Any],
    *,
    as_json: bool,
) -> None:
    """Renew or expire a token by its id. Kafka names a token by its secret, which is looked up so
    that it is no command line argument."""

    def send(client: KafkaClient) -> Any:
        secrets = [one.hmac for one in _described(client, None) if one.token_id == token_id]
        if not secrets:
            raise click.ClickException(f"{token_id}: no such token, or this user may not see it")
        return client.request(key, request(secrets[0]))

    answer = with_client(connection, send)
    check(answer.error_code, None)
    ends_ms = answer.expiry_timestamp_ms
    emit(
        as_json,
        {"id": token_id, "expires_ms": ends_ms},
        lambda: say(f"expires {_time(ends_ms)}"),
    )


def _described(client: KafkaClient, owners: list[DescribeDelegationTokenOwner] | None) -> Any:
    answer = client.request(DESCRIBE, DescribeDelegationTokenRequest(owners=owners))
    check(answer.error_code, None)
    return answer.tokens


def _principal(text: str) -> tuple[str, str]:
    kind, separator, name = text.partition(":")
    if not separator or kind != USER or not name:
        raise click.BadParameter(
            f'{text!r} is not a principal; expected a name such as "User:alice"'
        )
    return kind, name


def _time(ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC):%F %T}Z"
