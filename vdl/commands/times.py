"""Times and periods in options of commands."""

from __future__ import annotations

import datetime
import re

import click

from vdl.config.values import parse_duration_ms

_MS = re.compile(r"@([0-9]{1,15})")


def parse_time_ms(text: str) -> int:
    """Return milliseconds since 1970 of "2026-11-30T08:00:00Z", or of "@" and milliseconds.

    A time without a zone is UTC, as in Kafka's tools. Raises ValueError.
    """
    if match := _MS.fullmatch(text):
        return int(match[1])
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f'{text!r} is no time such as "2026-11-30T08:00:00Z" or "@1764489600000"'
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return round(found.timestamp() * 1_000)


def show_time(ms: int) -> str:
    """Return a time as text that `parse_time_ms` takes."""
    found = datetime.datetime.fromtimestamp(ms / 1_000, datetime.UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_option(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return the milliseconds of an option with a time."""
    del ctx, option
    try:
        return None if text is None else parse_time_ms(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from None


def period_option(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return the milliseconds of an option with a period such as "90s"."""
    del ctx, option
    try:
        return None if text is None else parse_duration_ms(text)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}") from None
