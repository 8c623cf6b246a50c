"""Initial users of a new cluster: a file of SCRAM credentials, as one server reads it.

Adding users requires a login, so the first ones come from a file. The file is
`security.first_users`; each line is

    MECHANISM USER ITERATIONS SALT STORED_KEY SERVER_KEY

with the last three in base64 and the user's name quoted as in a URL. No password can be derived
from it. It counts once: a cluster that ever had a user takes none of it, so that a removed user
does not come back.

Does not depend on how credentials are checked.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import urllib.parse
from collections.abc import Iterable
from pathlib import Path

from vdl.config.settings import ConfigError
from vdl.kafka.security.scram import HASHES, ITERATIONS_MIN, salted_password, verifier_of
from vdl.state.commands import ScramUpsert

_USERS_MAX = 1_000
_FIELDS = 6
_SALT_BYTES = 16


def read_first_users(path: Path) -> list[ScramUpsert]:
    """Read the file. Raises ConfigError, which contains nothing of the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or str(error)) from None
    return parse_users(path, data)


def parse_users(path: Path, data: bytes) -> list[ScramUpsert]:
    """Parse the contents of a file. Raises ConfigError, which contains nothing of the file."""
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(str(path), "", "is not a list of users; expected ASCII text") from None
    if len(lines) > _USERS_MAX:
        raise ConfigError(str(path), "", f"has more than {_USERS_MAX} users")
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            try:
                found.append(_parse(line.split()))
            except (ValueError, binascii.Error):
                raise ConfigError(
                    str(path), f"line {number}", "is not a user's credential"
                ) from None
    return found


def _parse(fields: list[str]) -> ScramUpsert:
    mechanism, user, iterations, *keys = fields
    if len(fields) != _FIELDS or mechanism not in HASHES:
        raise ValueError(mechanism)
    salt, stored_key, server_key = (base64.b64decode(key, validate=True) for key in keys)
    name = urllib.parse.unquote(user, errors="strict")
    return ScramUpsert(name, mechanism, int(iterations), salt, stored_key, server_key)


def first_users_text(users: Iterable[tuple[str, str]]) -> str:
    """Return the file for these users and passwords, for all mechanisms. Takes milliseconds for
    each."""
    head = "# Initial users of a new cluster. They are ignored once the cluster has users.\n"
    return head + users_text(users)


def users_text(users: Iterable[tuple[str, str]]) -> str:
    """Return the lines of these users."""
    lines = []
    for user, password in users:
        for mechanism in sorted(HASHES):
            salt = secrets.token_bytes(_SALT_BYTES)
            salted = salted_password(mechanism, password.encode(), salt, ITERATIONS_MIN)
            made = verifier_of(mechanism, salted, salt, ITERATIONS_MIN)
            keys = (made.salt, made.stored_key, made.server_key)
            encoded = " ".join(base64.b64encode(key).decode() for key in keys)
            name = urllib.parse.quote(user, safe="")
            lines.append(f"{mechanism} {name} {made.iterations} {encoded}")
    return "\n".join(lines) + "\n"
