"""Shared parts of commands that use Kafka's admin APIs: addresses, login and errors.

Does not depend on any one API.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from vdl.commands.cluster.bootstrap_option import addresses
from vdl.commands.cluster.client_properties import librdkafka_properties
from vdl.commands.cluster.connection import (
    Connection,
    complete_profile,
    resolve,
    timeout_option,
)
from vdl.errors import ERRORS_BY_CODE, ErrorCode
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import (
    KNOWN,
    SECURING,
    ClientSettings,
    ClientSettingsError,
    check_names,
    parse_client_settings,
)

_OWN = "vdl."
"""Beginning of the names of properties that no other client knows."""

Result = TypeVar("Result")


def connection_options(
    *, login_required: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--profile`, `--bootstrap`, `--config` and `--timeout`.

    The command gets `connection: Connection`. `login_required`: one with a file or a profile that
    secures it.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @connection_parameters
        @functools.wraps(function)
        def command(
            *arguments: Any,
            profile: str | None,
            bootstrap: str | None,
            config: Path | None,
            timeout: float | None,
            **more: Any,
        ) -> Any:
            found = resolve(profile=profile, bootstrap=bootstrap, config=config, timeout=timeout)
            if login_required:
                require_login(found)
            return function(*arguments, connection=found, **more)

        return command

    return add


def connection_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--profile`, `--bootstrap`, `--config` and `--timeout`, for `resolve`."""
    function = timeout_option(function)
    for option in (
        click.option("--config", type=click.Path(path_type=Path), metavar="FILE",
                     help="Properties with which to log in; see `vdl up --secure`."),
        click.option("--bootstrap", metavar="HOST:PORT,...",
                     help="Kafka addresses of some servers; 127.0.0.1:9092."),
        click.option("--profile", metavar="NAME", shell_complete=complete_profile,
                     help="A profile of `vdl profile`; the current one."),
    ):  # fmt: skip
        function = option(function)
    return function


def require_login(connection: Connection) -> None:
    """Raise click.UsageError if nothing secures the connection."""
    if not connection.properties:
        raise click.UsageError("expected --config, or a profile with a login")


def own_client_settings(
    properties: Mapping[str, str], source: object, folder: Path
) -> ClientSettings:
    """Return the settings of VDL's own client from librdkafka's properties.

    Raises ClientSettingsError for a kind of login that it does not know.
    """
    securing = {name for name in properties if name.startswith(SECURING)}
    if unknown := sorted(securing - KNOWN):
        raise ClientSettingsError(
            source, f"{', '.join(unknown)}: not known to VDL's own client; known are PEM files and"
            " names with passwords",
        )  # fmt: skip
    return parse_client_settings(properties, source, folder)


def admin_settings(where: Connection) -> ClientSettings:
    """Return how connections to Kafka and admin ports are secured. Raises ClientSettingsError.

    The file may serve clients in Java, too, as that of `vdl up --secure` does.
    """
    translated = librdkafka_properties(where.properties, where.source, where.folder)
    own = {name: text for name, text in where.properties.items() if name.startswith(_OWN)}
    return own_client_settings({**translated, **own}, where.source, where.folder)


def _settings(where: Connection) -> ClientSettings:
    """Return how the connection is secured. Raises click.BadParameter."""
    try:
        check_names(where.properties, where.source)
        translated = librdkafka_properties(where.properties, where.source, where.folder)
        return own_client_settings(translated, where.source, where.folder)
    except ClientSettingsError as error:
        raise click.BadParameter(str(error), param_hint="--config") from None


def with_client(
    connection: Connection,
    use: Callable[[KafkaClient], Result],
    *,
    timeout_seconds: float = 0.0,
) -> Result:
    """Return the result of `use` with the first server that answers. `timeout_seconds`: least wait
    for one answer. Raises click.ClickException."""
    timeout_seconds = max(timeout_seconds, connection.timeout_seconds)
    settings = _settings(connection)
    problems = []
    for address in addresses(connection.bootstrap):
        try:
            with KafkaClient(
                address.host, address.port, settings=settings, timeout_seconds=timeout_seconds
            ) as client:
                return use(client)
        except (Unreachable, ClientSettingsError) as error:
            problems.append(str(error))
    raise click.ClickException("; ".join(problems))


def check(code: int, message: str | None) -> None:
    """Raise click.ClickException for a request that a server refused."""
    if code:
        raise click.ClickException(words(code, message))


def words(code: int, message: str | None) -> str:
    """Return an error of the protocol as one line."""
    error = ERRORS_BY_CODE.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
    return f"{error.name}: {message}" if message else error.name
