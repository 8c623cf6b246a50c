"""Data files as somebody meets them who comes a day later: not in the page cache."""

from __future__ import annotations

import os
from pathlib import Path


def forget(directory: Path) -> None:
    """Have the system drop the pages of all files below `directory`; those not yet written stay."""
    for path in sorted(directory.rglob("*")):
        if not path.is_file():
            continue
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # retired meanwhile
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
