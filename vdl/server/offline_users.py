"""Users that an operator adds without logging in: a file in a server's data directory.

If the last administrator is lost, no user can add another one. A user of the machine who may write
to a server's data directory may do all that the server does. So `vdl user add --offline DIR` writes
credentials there (`first_users.py` has their form), and the server adds them to the cluster at its
next start. The file must belong to the server's own user and be inaccessible to all others.

It counts once: it is removed before its users are added. If a server ends in between, no user is
added, and the operator tries again; users that are removed or changed later do not come back. A
file older than a day is refused: otherwise a copy of the directory would add the user again.

Does not depend on how credentials are checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vdl.config.settings import ConfigError
from vdl.server.first_users import parse_users
from vdl.state.commands import ScramUpsert

NAME = ".added_users"
"""A name that the store ignores."""
_BYTES_MAX = 1 << 20
_AGE_SECONDS_MAX = 86_400


def take_added_users(directory: Path, now_seconds: float) -> list[ScramUpsert]:
    """Return the users of the file and remove it; none without a file. `now_seconds`: of the wall
    clock. Raises ConfigError, which contains nothing of the file; the file then stays."""
    path = directory / NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or str(error)) from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _BYTES_MAX:
            raise ConfigError(str(path), "", "is not a list of users")
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                str(path), "", "may have been written by another user than the server's; remove it"
            )
        if now_seconds - found.st_mtime > _AGE_SECONDS_MAX:
            raise ConfigError(str(path), "", "is older than a day; remove it")
        data = os.read(file, _BYTES_MAX)
    finally:
        os.close(file)
    users = parse_users(path, data)
    try:
        path.unlink()
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(str(path), "", error.strerror or str(error)) from None
    return users
