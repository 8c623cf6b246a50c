"""Searches in index files of which many are gone."""

from __future__ import annotations

from pathlib import Path

from ids import GroupId, Index, LogId
from segments.io.fs import RealFile, RealFileSystem
from segments.log.index_files import IndexFiles

INDEX_ENTRIES = 1 << 10
TRIMMED_FILES = 200


class CountingFileSystem(RealFileSystem):
    """A file system that counts the files which are opened."""

    opens = 0

    def open(self, path: str, *, create: bool = False) -> RealFile:
        self.opens += 1
        return super().open(path, create=create)


def test_search_passes_over_a_missing_file_at_once(tmp_path: Path) -> None:
    """A start after a trim of billions of entries may search all of them."""
    fs = CountingFileSystem()
    files = IndexFiles(fs, str(tmp_path), LogId(1), GroupId(9), INDEX_ENTRIES)
    assert files.good_before(Index(1), Index(TRIMMED_FILES * INDEX_ENTRIES)) is None
    assert fs.opens <= TRIMMED_FILES + 1
