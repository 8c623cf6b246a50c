"""`vdl profile`: named clusters, as contexts of kubectl and profiles of rpk are."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from vdl.commands.cluster.connection import complete_profile
from vdl.commands.cluster.profiles import (
    PASSWORD,
    Profile,
    ProfileError,
    Profiles,
    is_secret,
    profiles_file,
    read_profiles,
    write_profiles,
)
from vdl.commands.output import emit, fail, json_option, table

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HIDDEN = "(hidden)"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def profile() -> None:
    """Name clusters, and choose one for the commands that follow.

    Profiles are in $XDG_CONFIG_HOME/vdl/profiles.toml. --profile and VDL_PROFILE choose another one
    for a single command.
    """


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except ProfileError as error:
        fail(str(error))


@profile.command()
@click.argument("name")
@click.option("--bootstrap", required=True, metavar="HOST:PORT,...", help="Addresses of servers.")
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              metavar="FILE", help="Client properties; the file stays where it is.")  # fmt: skip
@click.option("--set", "properties", multiple=True, metavar="KEY=VALUE",
              help="A client property such as security.protocol=SSL; no password.")  # fmt: skip
@click.option("--password-stdin", is_flag=True,
              help="Read sasl.password from the input or a prompt, and keep it.")  # fmt: skip
@click.option("--password-file", type=click.Path(path_type=Path), metavar="FILE",
              help="A file whose first line is sasl.password, read at each use.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace a profile of this name.")
@click.option("--use", "is_used", is_flag=True, help="Make it the current one, too.")
def create(
    *,
    name: str,
    bootstrap: str,
    config: Path | None,
    properties: tuple[str, ...],
    password_stdin: bool,
    password_file: Path | None,
    replace: bool,
    is_used: bool,
) -> None:
    """Create a profile. The first one becomes the current one."""
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} is no name of letters, digits, '.', '_' and '-'")
    if config is not None and (properties or password_stdin or password_file):
        raise click.UsageError("--config has the login: give it or --set and a password, not both")
    if password_stdin and password_file is not None:
        raise click.UsageError("expected either --password-stdin or --password-file")
    given = _given(properties)
    if password_stdin:
        given[PASSWORD] = _password()
    made = Profile(
        bootstrap,
        str(config.resolve()) if config else "",
        str(password_file.resolve()) if password_file else "",
        given,
    )
    with _in_words():
        path = profiles_file()
        profiles = read_profiles(path)
        if name in profiles.by_name and not replace:
            fail(f"{name}: there is such a profile; --replace replaces it")
        profiles.by_name[name] = made
        if is_used or not profiles.current:
            profiles.current = name
        write_profiles(path, profiles)


def _given(texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            # The text is not shown: it may be a password.
            raise click.UsageError("--set: expected KEY=VALUE")
        if is_secret(key):
            # Arguments are seen by every user of the machine, and kept by the shell.
            ways = "--password-stdin, --password-file or " if key == PASSWORD else ""
            raise click.UsageError(f"{key} is no argument: use {ways}--config")
        found[key] = value
    return found


def _password() -> str:
    if sys.stdin.isatty():
        found = click.prompt("password", hide_input=True, err=True)
    else:
        found = sys.stdin.readline().rstrip("\r\n")
    if not found:
        raise click.UsageError("the password is empty")
    return str(found)


@profile.command(name="list")
@json_option
def list_profiles(*, as_json: bool) -> None:
    """List profiles; * marks the current one."""
    with _in_words():
        profiles = read_profiles(profiles_file())
    names = sorted(profiles.by_name)
    data = [_shown(profiles, name) for name in names]
    rows = [
        ["*" if one["current"] else "", one["name"], one["bootstrap"], one["security"]]
        for one in data
    ]
    emit(as_json, {"profiles": data}, lambda: table(["", "name", "bootstrap", "security"], rows))


@profile.command()
@click.argument("name", shell_complete=complete_profile)
def use(*, name: str) -> None:
    """Make a profile the current one."""
    with _in_words():
        path = profiles_file()
        profiles = read_profiles(path)
        profiles.get(name)
        write_profiles(path, dataclasses.replace(profiles, current=name))


@profile.command()
@click.argument("name", default="", shell_complete=complete_profile)
@json_option
def show(*, name: str, as_json: bool) -> None:
    """Show a profile, or the current one. Passwords are hidden."""
    with _in_words():
        profiles = read_profiles(profiles_file())
        name = name or profiles.current
        if not name:
            fail("no profile is the current one")
        profiles.get(name)
    data = _shown(profiles, name)
    rows = [[key, value] for key, value in data.items() if key != "properties"]
    rows += [[key, value] for key, value in data["properties"].items()]
    emit(as_json, data, lambda: table(["key", "value"], rows))


@profile.command()
@click.argument("name", shell_complete=complete_profile)
def delete(*, name: str) -> None:
    """Delete a profile. If it is the current one, none is current."""
    with _in_words():
        path = profiles_file()
        profiles = read_profiles(path)
        profiles.get(name)
        del profiles.by_name[name]
        if profiles.current == name:
            profiles.current = ""
        write_profiles(path, profiles)


def _shown(profiles: Profiles, name: str) -> dict[str, Any]:
    one = profiles.by_name[name]
    properties = {
        key: _HIDDEN if is_secret(key) else value for key, value in sorted(one.properties.items())
    }
    security = one.config or one.properties.get("security.protocol", "PLAINTEXT")
    return {
        "name": name,
        "current": profiles.current == name,
        "bootstrap": one.bootstrap,
        "security": security,
        "config": one.config or None,
        "password_file": one.password_file or None,
        "properties": properties,
    }
