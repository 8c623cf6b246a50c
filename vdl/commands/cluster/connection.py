"""Which cluster a command connects to, and with which client properties.

An option decides alone where it connects: no variable adds to `--profile`, `--bootstrap`, or a
`--config` with `bootstrap.servers`. Without such an option it is `VDL_BOOTSTRAP` or `VDL_PROFILE`;
both at once are refused, as they may name two clusters. Without these it is the current profile,
and without one 127.0.0.1:9092.

The login is that of `--config`, or else the profile's. A profile's password belongs to its own
cluster: it goes to the profile's addresses alone, unless `--profile` and `--bootstrap` are given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from vdl.commands.cluster.profiles import Profile, ProfileError, profiles_file, read_profiles
from vdl.kafka.security.client_settings import ClientSettingsError, read_properties

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
BOOTSTRAP_SERVERS = "bootstrap.servers"
TIMEOUT_SECONDS = 10.0
"""Longest wait for one answer of a server, unless `--timeout` says another one."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses with commas between them, and the client's properties as they are written.

    `source` names where the properties are from, for errors; their relative paths are below
    `folder`. `profile` is empty if none is used.
    """

    bootstrap: str = BOOTSTRAP_DEFAULT
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    source: str = "the defaults"
    folder: Path = Path()
    profile: str = ""
    timeout_seconds: float = TIMEOUT_SECONDS
    """Longest wait for one answer of a server."""


def timeout_option(function: Function) -> Function:
    """Add `--timeout`, for `resolve`; not to a command with an own option of that name."""
    taken = {name for one in getattr(function, "__click_params__", ()) for name in one.opts}
    if "--timeout" in taken:
        return function
    return click.option(
        "--timeout", type=click.FloatRange(min=0.1), metavar="SECONDS",
        help=f"Longest wait for one answer of a server; {TIMEOUT_SECONDS:g}.",
    )(function)  # fmt: skip


def resolve(
    *,
    profile: str | None,
    bootstrap: str | None,
    config: Path | None,
    timeout: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Connection:
    """Return what options, environment and profiles amount to. Raises click.UsageError."""
    for option, text in (("--profile", profile), ("--bootstrap", bootstrap)):
        if text is not None and not text.strip():
            # An unset variable of a script must not lead to another cluster.
            raise click.UsageError(f"{option} is empty")
    try:
        given = read_properties(config) if config is not None else {}
        if profile is None and bootstrap is None and not given.get(BOOTSTRAP_SERVERS):
            profile, bootstrap = _of_variables(environment)
        is_current_wanted = bootstrap is None and not given.get(BOOTSTRAP_SERVERS)
        name, found = _profile(profile, environment, is_current_wanted=is_current_wanted)
        if config is not None:
            properties = given
            source, folder = str(config), config.resolve().parent
        elif found.config:
            own = Path(found.config).expanduser()
            properties = read_properties(own)
            source, folder = str(own), own.resolve().parent
        else:
            properties = found.client_properties()
            source, folder = (f"profile {name}" if name else "the defaults"), Path.cwd()
    except (ProfileError, ClientSettingsError) as error:
        raise click.UsageError(str(error)) from None
    addresses = (
        bootstrap
        or given.get(BOOTSTRAP_SERVERS)
        or found.bootstrap
        or properties.get(BOOTSTRAP_SERVERS)
        or BOOTSTRAP_DEFAULT
    )
    wait = TIMEOUT_SECONDS if timeout is None else timeout
    return Connection(addresses, properties, source, folder, name, wait)


def _of_variables(environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the profile or the addresses of variables. Raises click.UsageError for both."""
    profile = environment.get("VDL_PROFILE") or None
    bootstrap = environment.get("VDL_BOOTSTRAP") or None
    if profile is not None and bootstrap is not None:
        raise click.UsageError(
            "VDL_PROFILE and VDL_BOOTSTRAP are both set: unset one, or give --profile or"
            " --bootstrap"
        )
    return profile, bootstrap


def _profile(
    name: str | None, environment: Mapping[str, str], *, is_current_wanted: bool
) -> tuple[str, Profile]:
    """Return the profile to use and its name; an empty one if none is."""
    if name is None and not is_current_wanted:
        return "", Profile()
    profiles = read_profiles(profiles_file(environment))
    name = name or profiles.current
    return (name, profiles.get(name)) if name else ("", Profile())


def complete_profile(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of profiles that a shell may offer."""
    del ctx, parameter
    try:
        names = read_profiles(profiles_file()).by_name
    except ProfileError:
        return []
    return [name for name in sorted(names) if name.startswith(incomplete)]
