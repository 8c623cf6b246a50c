"""Shared parts of commands that use Kafka's admin APIs: addresses, login and errors.

Does not depend on any one API.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from vdl.commands.bootstrap_option import addresses, client_settings
from vdl.errors import ERRORS_BY_CODE, ErrorCode
from vdl.kafka.client import KafkaClient, Unreachable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def connection_options(
    *, config_required: bool = False
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator that adds `--bootstrap` and `--config`."""

    def add(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        function = click.option(
            "--config", type=click.Path(path_type=Path), required=config_required, metavar="FILE",
            help=(
                "File with client properties for the login, such as client.properties of `vdl "
                "up --secure`."
            ),
        )(function)  # fmt: skip
        return click.option(
            "--bootstrap", default="127.0.0.1:9092", show_default=True,
            help="Kafka addresses of one or more servers, separated by commas.",
        )(function)  # fmt: skip

    return add


def with_client(
    bootstrap: str, config: Path | None, use: Callable[[KafkaClient], Result]
) -> Result:
    """Return the result of `use` with the first server that answers. Raises
    click.ClickException."""
    settings = client_settings(config)
    problems = []
    for address in addresses(bootstrap):
        try:
            with KafkaClient(address.host, address.port, settings=settings) as client:
                return use(client)
        except Unreachable as error:
            problems.append(str(error))
    raise click.ClickException("; ".join(problems))


def check(code: int, message: str | None) -> None:
    """Raise click.ClickException for a request that a server refused."""
    if code:
        error = ERRORS_BY_CODE.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
        raise click.ClickException(f"{error.name}: {message}" if message else error.name)
