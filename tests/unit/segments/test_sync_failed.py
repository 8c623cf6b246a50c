"""A failed sync is never a full disk, whatever error the system gives for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from segments.fs import RealFileSystem, SyncFailed, is_disk_full


def refuse(*arguments: Any) -> int:
    raise OSError(errno.ENOSPC, "a thin volume has no more blocks")


@pytest.mark.parametrize("kind", ["sync", "directory", "durable write"])
def test_sync_that_fails_for_want_of_room_is_fatal(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel marks the pages clean: another sync would succeed over lost data."""
    fs = RealFileSystem()
    file = fs.open(str(tmp_path / "f"), create=True)
    for name in ("fdatasync", "fsync", "pwritev"):
        monkeypatch.setattr(os, name, refuse)
    calls = {
        "sync": file.sync,
        "directory": lambda: fs.sync_directory(str(tmp_path)),
        "durable write": lambda: file.pwrite([b"x"], 0, durable=True),
    }
    with pytest.raises(SyncFailed) as caught:
        calls[kind]()
    assert not is_disk_full(caught.value)
    monkeypatch.undo()
    file.close()


def test_write_that_finds_no_room_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was accepted, so nothing is lost."""
    file = RealFileSystem().open(str(tmp_path / "f"), create=True)
    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(OSError, match="no more blocks") as caught:
        file.pwrite([b"x"], 0)
    assert is_disk_full(caught.value)
    monkeypatch.undo()
    file.close()
