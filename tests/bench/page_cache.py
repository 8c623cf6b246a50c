"""The page cache as a measurement needs it: without its data files, or filling all memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LEFT_FREE_KB = 512 << 10
_READ_BYTES = 4 << 20
_STEP_BYTES = 256 << 20
_FUTILE_STEPS_MAX = 4
"""Limit on consecutive steps in which the system frees cached pages as fast as they are filled."""


def forget(directory: Path, *, changed_since: float = 0.0) -> None:
    """Drop the cached pages of all files below `directory`, as if they had not been used for a day.

    Pages not yet written stay. Files last changed before `changed_since` (seconds since the epoch)
    are left alone.
    """
    # `os.walk` skips folders that are removed meanwhile, which `Path.rglob` does not.
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                file = os.open(Path(folder) / name, os.O_RDONLY)
            except FileNotFoundError:
                continue  # removed meanwhile
            try:
                if os.fstat(file).st_mtime >= changed_since:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


@contextmanager
def memory_in_use() -> Iterator[Callable[[], None]]:
    """Yield a function that fills free memory with cached pages, as on a long-running machine.

    Called again, it fills the memory that has become free since. The host of a virtual machine may
    take back free pages; a page's first use then costs many times as much as later ones, and a new
    file consists of such pages. Filling costs as much, so the pages are kept until the end.
    """
    size = _kb("MemTotal") << 10
    with tempfile.TemporaryFile() as hole:
        hole.truncate(size)
        buffer = bytearray(_READ_BYTES)

        def fill() -> None:
            free, futile = _kb("MemFree"), 0
            while free > _LEFT_FREE_KB and futile < _FUTILE_STEPS_MAX:
                for _ in range(_STEP_BYTES // _READ_BYTES):
                    if not hole.readinto(buffer):
                        hole.seek(0)
                before, free = free, _kb("MemFree")
                futile = 0 if before - free > (_STEP_BYTES >> 10) // 2 else futile + 1

        yield fill


def _kb(name: str) -> int:
    """Return a value of /proc/meminfo in kB. MemFree excludes caches."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        found, _, value = line.partition(":")
        if found == name:
            return int(value.split()[0])
    raise OSError(f"/proc/meminfo has no {name}")
