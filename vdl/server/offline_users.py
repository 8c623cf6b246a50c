"""Users that an operator adds without logging in: a file in a server's data directory.

Where the last administrator is lost, nobody can add another one. Whoever may write to a server's
data directory may do all that the server does, so `vdl user add --offline DIR` leaves credentials
there (`first_users.py` has their form), and the server has them added to the cluster when it starts
next. The file must be the server's own user's, and nobody else may read or write it.

It counts once: it is removed before anybody is added. A server that ends in between has added
nobody, and the operator tries again; what is removed or changed later does not come back. One that
is older than a day is refused: a copy of the directory would add the user again.

Must not know: how credentials are checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vdl.config.settings import ConfigError
from vdl.server.first_users import parse_users
from vdl.state.commands import ScramUpsert

NAME = ".added_users"
"""A name that the store takes for nobody's."""
_BYTES_MAX = 1 << 20
_AGE_SECONDS_MAX = 86_400


def take_added_users(directory: Path, now_seconds: float) -> list[ScramUpsert]:
    """Return the users of the file, which is removed; none without a file. `now_seconds`: of the
    wall clock. Raises ConfigError, which has nothing of the file in it, and leaves it where it
    is."""
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
            raise ConfigError(str(path), "", "is no list of users")
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                str(path), "", "others than the server's own user may have written it"
            )
        if now_seconds - found.st_mtime > _AGE_SECONDS_MAX:
            raise ConfigError(str(path), "", "is older than a day: remove it")
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
