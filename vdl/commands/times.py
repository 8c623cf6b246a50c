"""Times and periods in options of commands."""

from __future__ import annotations

import datetime
import re

import click

from vdl.config.values import parse_duration_ms

SECONDS_DIGITS_MAX = 11
"""`@` and more digits are milliseconds: seconds of 12 digits are in the year 5138."""
TIME_MS_MAX = 253_402_300_799_999
"""End of the year 9999."""
_SINCE_1970 = re.compile(r"@([0-9]{1,15})")


def parse_time_ms(text: str) -> int:
    """Return milliseconds since 1970 of "2026-11-30T08:00:00Z", or of "@" and a number.

    The number is seconds to `SECONDS_DIGITS_MAX` digits, milliseconds above. A time without a zone
    is UTC, as in Kafka's tools. Raises ValueError.
    """
    if match := _SINCE_1970.fullmatch(text):
        number = int(match[1])
        found_ms = number * 1_000 if len(match[1]) <= SECONDS_DIGITS_MAX else number
    else:
        try:
            found = datetime.datetime.fromisoformat(text.removeprefix("@"))
        except ValueError:
            raise ValueError(
                f'{text!r} is no time such as "2026-11-30T08:00:00Z" or "@1764489600"'
            ) from None
        if found.tzinfo is None:
            found = found.replace(tzinfo=datetime.UTC)
        found_ms = round(found.timestamp() * 1_000)
    if not 0 <= found_ms <= TIME_MS_MAX:
        raise ValueError(f"{text}: not between the years 1970 and 9999")
    return found_ms


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
