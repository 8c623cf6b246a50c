"""Selection of names by patterns, and consent to a plan.

A NAME with `*`, `?` or `[` is a glob; no topic and few groups have such names. `--regex` matches a
whole name. What a pattern selects is shown before anything is done.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterable, Sequence

import click

from vdl.commands.output import fail

_GLOB = re.compile(r"[*?\[]")


def is_pattern(text: str) -> bool:
    """Return True for a glob."""
    return _GLOB.search(text) is not None


def select(
    names: Iterable[str], wanted: Sequence[str], regex: str | None, *, kind: str
) -> list[str]:
    """Return the names that are wanted, sorted. Raises click.ClickException for a name that is not
    there, and for no names at all; click.UsageError for a bad pattern."""
    known = sorted(names)
    found: set[str] = set()
    for text in wanted:
        if not is_pattern(text):
            if text not in known:
                fail(f"{text}: no such {kind}")
            found.add(text)
        else:
            found.update(fnmatch.filter(known, text))
    if regex is not None:
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise click.UsageError(f"--regex: {error}") from None
        found.update(name for name in known if pattern.fullmatch(name))
    if not found and (wanted or regex is not None):
        fail(f"no {kind} matches {' '.join(wanted) or regex}")
    return sorted(found)


def consent(question: str, *, is_given: bool) -> None:
    """Ask at a terminal. Raises click.Abort for a no, click.UsageError where there is none to ask.

    `is_given`: `--yes` is there.
    """
    if is_given:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nothing is done without --yes, as the input is no terminal")
    if not click.confirm(question, err=True):
        raise click.Abort


def key_values(texts: Iterable[str]) -> dict[str, str]:
    """Return the settings of KEY=VALUE texts. Raises click.UsageError."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise click.UsageError(f"{text!r} is no KEY=VALUE")
        found[key] = value
    return found
