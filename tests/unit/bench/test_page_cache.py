"""Choice of the files to drop from the page cache, also of files in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.page_cache import forget


def test_forget_of_changed_files_leaves_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data written by earlier rows keeps its pages: the memory would become free."""
    (tmp_path / "folder").mkdir()
    for name, changed in (("old", 1_000.0), ("folder/new", 3_000.0)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (changed, changed))
    dropped: list[str] = []

    def advise(file: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        dropped.append(Path(f"/proc/self/fd/{file}").readlink().name)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    forget(tmp_path, changed_since=2_000.0)
    assert dropped == ["new"]
    forget(tmp_path)
    assert sorted(dropped) == ["new", "new", "old"]
