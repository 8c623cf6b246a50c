"""Profiles: named clusters, in `$XDG_CONFIG_HOME/vdl/profiles.toml` (`~/.config` without it).

```
current = "prod"

[profiles.prod]
bootstrap = "kafka-1:9092,kafka-2:9092"
config = "/etc/vdl/client.properties"      # security, as `--config`; or else the next two
password_file = "/run/secrets/kafka"       # its first line is sasl.password

[profiles.prod.properties]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "alice"
```
The file has mode 0600: a profile may hold a password. Written with tomli-w, read with tomllib.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSWORD = "sasl.password"  # noqa: S105 - the name of a property
_SECRET = re.compile(
    r"passw|passphrase|secret|jaas|credential|user\.info|oauthbearer\.config|\.key(\.|$)",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"\.(location|file)$", re.IGNORECASE)
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class ProfileError(Exception):
    """A file or a profile that cannot be used. Never contains a secret value."""


def is_secret(name: str) -> bool:
    """Return True for a property whose value is no argument and is never printed.

    Properties of clients to come count by their names, too: one that is hidden without need does
    less harm than a password that is shown. The path of a file is none.
    """
    return _SECRET.search(name) is not None and _NO_SECRET.search(name) is None


@dataclass(frozen=True, slots=True)
class Profile:
    """A cluster: addresses, and how to log in. `properties` are a client's, by name."""

    bootstrap: str = ""
    config: str = ""
    password_file: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def as_table(self) -> dict[str, Any]:
        """Return the TOML table, without what is empty."""
        table: dict[str, Any] = {
            name: value
            for name in ("bootstrap", "config", "password_file")
            if (value := getattr(self, name))
        }
        if self.properties:
            table["properties"] = dict(sorted(self.properties.items()))
        return table

    def client_properties(self) -> dict[str, str]:
        """Return the properties, with the password from its file. Raises ProfileError."""
        properties = dict(self.properties)
        if self.password_file:
            properties[PASSWORD] = first_line(Path(self.password_file))
        return properties


@dataclass(slots=True)
class Profiles:
    """All profiles by name, and the name of the current one; empty if there is none."""

    current: str = ""
    by_name: dict[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """Return a profile. Raises ProfileError."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ProfileError(f"{name!r}: no such profile; there is {known}")
        return self.by_name[name]


def profiles_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file."""
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")) / ".config"
    return Path(base).expanduser() / "vdl" / "profiles.toml"


def read_profiles(path: Path) -> Profiles:
    """Read the file; no file is no profiles. Raises ProfileError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = tomllib.load(file)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from None
    tables = content.get("profiles", {})
    current = content.get("current", "")
    if not isinstance(tables, dict) or not isinstance(current, str):
        raise ProfileError(f"{path}: expected current = NAME and tables [profiles.NAME]")
    found = Profiles(current, {name: _profile(path, name, one) for name, one in tables.items()})
    if mode & _OPEN_TO_OTHERS and any(
        is_secret(name) for one in found.by_name.values() for name in one.properties
    ):
        raise ProfileError(f"{path}: holds a password and is open to others; chmod 600 {path}")
    return found


def _profile(path: Path, name: str, table: object) -> Profile:
    texts = {"bootstrap", "config", "password_file"}
    if not isinstance(table, dict) or not set(table) <= {*texts, "properties"}:
        raise ProfileError(
            f"{path}: profile {name!r}: expected {', '.join(sorted(texts))}, properties"
        )
    properties = table.get("properties", {})
    if not isinstance(properties, dict) or not all(
        isinstance(value, str) for value in properties.values()
    ):
        raise ProfileError(f"{path}: profile {name!r}: properties are texts by name")
    if not all(isinstance(table.get(text, ""), str) for text in texts):
        raise ProfileError(f"{path}: profile {name!r}: {', '.join(sorted(texts))} are texts")
    return Profile(properties=properties, **{text: table.get(text, "") for text in texts})


def write_profiles(path: Path, profiles: Profiles) -> None:
    """Replace the file, with mode 0600. Raises ProfileError."""
    try:
        import tomli_w
    except ModuleNotFoundError:
        raise ProfileError("this needs tomli-w: pip install 'vdl-log[cli]'") from None
    content: dict[str, Any] = {"current": profiles.current} if profiles.current else {}
    content["profiles"] = {
        name: profile.as_table() for name, profile in sorted(profiles.by_name.items())
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A temporary file has mode 0600 from the start.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".profiles-")
        with os.fdopen(handle, "wb") as file:
            tomli_w.dump(content, file)
        Path(name).replace(path)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None


def first_line(path: Path) -> str:
    """Return the first line of a file with a password. Raises ProfileError."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from None
    line = text.partition("\n")[0].rstrip("\r")
    if not line:
        raise ProfileError(f"{path}: its first line is empty")
    return line
