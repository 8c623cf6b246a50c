"""A failed sync is never a full disk, whatever error the system returns for it."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from segments.io import fs as file_system
from segments.io.fs import RealFileSystem, SyncFailed, is_disk_full


def refuse(*arguments: Any) -> int:
    raise OSError(errno.ENOSPC, "a thin volume has no more blocks")


def refuse_in_c(*arguments: Any) -> int:
    ctypes.set_errno(errno.ENOSPC)
    return -1


@pytest.mark.parametrize(
    "kind", ["sync", "directory", "durable write", "write back", "begin write back"]
)
def test_sync_that_fails_for_want_of_room_is_fatal(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel marks the pages clean: another sync would succeed over lost data."""
    fs = RealFileSystem()
    file = fs.open(str(tmp_path / "f"), create=True)
    for name in ("fdatasync", "fsync", "pwritev"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(file_system, "_sync_file_range", refuse_in_c)
    calls = {
        "sync": file.sync,
        "directory": lambda: fs.sync_directory(str(tmp_path)),
        "durable write": lambda: file.pwrite([b"x"], 0, durable=True),
        "write back": lambda: file.write_back(1, 0),
        "begin write back": lambda: file.begin_write_back(1, 0),
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


@pytest.mark.parametrize("offered", [True, False])
def test_system_that_cannot_write_back_syncs(
    *, offered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some sandboxes' kernels lack the call, some C libraries do not offer it.

    Where nothing waits for it, the sync that follows does all the work.
    """
    synced: list[int] = []

    def unknown(*arguments: Any) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(file_system, "_sync_file_range", unknown if offered else None)
    file = RealFileSystem().open(str(tmp_path / "f"), create=True)
    file.begin_write_back(1, 0)
    assert synced == []
    file.write_back(1, 0)
    assert len(synced) == 1
    file.close()
