"""Users that an operator adds in a data directory: accepted once, and only from the operator."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from vdl.config.settings import ConfigError
from vdl.server.first_users import users_text
from vdl.server.offline_users import NAME, take_added_users

USERS = users_text([("admin", "a-password-nobody-guesses")])


def left(directory: Path, text: str = USERS, mode: int = 0o600) -> Path:
    path = directory / NAME
    path.write_text(text)
    path.chmod(mode)
    return path


def test_users_that_were_added_count_once(tmp_path: Path) -> None:
    """Users changed or removed later do not return with a start."""
    path = left(tmp_path)
    assert {one.user for one in take_added_users(tmp_path, time.time())} == {"admin"}
    assert not path.exists()
    assert take_added_users(tmp_path, time.time()) == []


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602])
def test_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    """A refused file stays in place for inspection, and its contents are not logged."""
    path = left(tmp_path, mode=mode)
    with pytest.raises(ConfigError) as caught:
        take_added_users(tmp_path, time.time())
    assert "others" in str(caught.value)
    assert USERS.split()[3] not in str(caught.value)
    assert path.exists()


def test_file_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(ConfigError, match="another user"):
        take_added_users(tmp_path, time.time())


def test_file_of_long_ago_is_refused(tmp_path: Path) -> None:
    """An old file is refused.

    It came with a copy of the directory, and users removed since do not return.
    """
    written = left(tmp_path).stat().st_mtime
    with pytest.raises(ConfigError, match="day"):
        take_added_users(tmp_path, written + 86_401)
    assert len(take_added_users(tmp_path, written + 86_399)) > 0


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A symbolic link, a pipe without a writer, and a file that is no list of users."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(USERS)
    elsewhere.chmod(0o600)
    (tmp_path / NAME).symlink_to(elsewhere)
    with pytest.raises(ConfigError):
        take_added_users(tmp_path, time.time())
    (tmp_path / NAME).unlink()
    os.mkfifo(tmp_path / NAME, 0o600)
    with pytest.raises(ConfigError):
        take_added_users(tmp_path, time.time())
    (tmp_path / NAME).unlink()
    path = left(tmp_path, text="no users\n")
    with pytest.raises(ConfigError):
        take_added_users(tmp_path, time.time())
    assert path.exists()
