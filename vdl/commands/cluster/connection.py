"""Which cluster a command connects to, and with which client properties.

Of the addresses the first that is given counts: `--bootstrap`, `VDL_BOOTSTRAP`, `bootstrap.servers`
of `--config`, the profile, 127.0.0.1:9092. The profile is `--profile`, `VDL_PROFILE`, or the
current one. The login is that of `--config`, or else the profile's.

The current profile is left aside if addresses are given without a profile: its password belongs to
its own cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from vdl.commands.cluster.profiles import Profile, ProfileError, profiles_file, read_profiles
from vdl.kafka.security.client_settings import ClientSettingsError, read_properties

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
BOOTSTRAP_SERVERS = "bootstrap.servers"


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


def resolve(
    *,
    profile: str | None,
    bootstrap: str | None,
    config: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> Connection:
    """Return what options, environment and profiles amount to. Raises click.UsageError."""
    profile = profile or environment.get("VDL_PROFILE") or None
    bootstrap = bootstrap or environment.get("VDL_BOOTSTRAP") or None
    try:
        name, found = _profile(profile, environment, is_current_wanted=bootstrap is None)
        if config is None and found.config:
            config = Path(found.config).expanduser()
        if config is not None:
            properties = read_properties(config)
            source, folder = str(config), config.resolve().parent
        else:
            properties = found.client_properties()
            source, folder = (f"profile {name}" if name else "the defaults"), Path.cwd()
    except (ProfileError, ClientSettingsError) as error:
        raise click.UsageError(str(error)) from None
    addresses = bootstrap or properties.get(BOOTSTRAP_SERVERS) or found.bootstrap
    return Connection(addresses or BOOTSTRAP_DEFAULT, properties, source, folder, name)


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
