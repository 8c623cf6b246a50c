"""The page cache as a measurement wants it: without its data files, or in all of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEFT_FREE_KB = 512 << 10
_READ_BYTES = 4 << 20


def forget(directory: Path) -> None:
    """Have the system drop the pages of all files below `directory`, as somebody meets them who
    comes a day later; those not yet written stay."""
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


@contextmanager
def memory_in_use() -> Iterator[None]:
    """Fill free memory with cached pages, as on a machine that has been up for a while.

    The host of a virtual machine may take back what is free; a page's first use then costs many
    times what its later ones do, and a new file is made of such pages.
    """
    with tempfile.TemporaryFile() as hole:
        hole.truncate(_free_kb() << 10)
        buffer = bytearray(_READ_BYTES)
        while _free_kb() > _LEFT_FREE_KB and hole.readinto(buffer):
            pass
        yield


def _free_kb() -> int:
    """Memory that nothing uses, not even as a cache."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemFree":
            return int(value.split()[0])
    raise OSError("/proc/meminfo has no MemFree")
