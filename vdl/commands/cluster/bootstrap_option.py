"""Options of commands that connect to a cluster: addresses, and a file with client settings."""

from __future__ import annotations

from pathlib import Path

import click

from vdl.config.values import Address, parse_address
from vdl.kafka.security.client_settings import (
    ClientSettings,
    ClientSettingsError,
    read_client_settings,
)


def addresses(bootstrap: str) -> list[Address]:
    """Return the addresses of a list with commas. Raises click.BadParameter."""
    try:
        found = [parse_address(text.strip()) for text in bootstrap.split(",") if text.strip()]
    except ValueError as error:
        raise click.BadParameter(f"expected {error}", param_hint="--bootstrap") from None
    if not found:
        raise click.BadParameter(
            'expected one or more addresses such as "127.0.0.1:9092"', param_hint="--bootstrap"
        )
    return found


def client_settings(config: Path | None) -> ClientSettings:
    """Return the settings of the file; without one, unsecured ones. Raises click.BadParameter."""
    if config is None:
        return ClientSettings()
    try:
        return read_client_settings(config)
    except ClientSettingsError as error:
        raise click.BadParameter(str(error), param_hint="--config") from None
