"""Flips of one bit in a server's file, as on ageing disks.

A flip hits written data: zeros that are not yet overwritten belong to no entry. It is written
through the file system, so that a running server sees it with its next read from the file; its
memory is unchanged.

Does not depend on what the bytes mean, or which of them matter.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
PAGES_TRIED = 64

KINDS = ("journal", "segment", "index", "meta")
_PATTERNS = {
    "journal": "journal/*.journal",
    "segment": "logs/*/*.log",
    "index": "logs/*/*.index",
    "meta": "meta/data.mdb",
}


@dataclass(frozen=True, slots=True)
class Flip:
    """Position of the flipped bit."""

    path: Path
    position: int
    bit: int

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name} byte {self.position} bit {self.bit}"


def flip(store: Path, kind: str, rng: random.Random) -> Flip | None:
    """Flip one bit in one file of the kind, larger files more often.

    Return None when there is none.
    """
    paths = sorted(store.glob(_PATTERNS[kind]))
    sizes = [path.stat().st_size for path in paths]
    if not sum(sizes):
        return None
    (path,) = rng.choices(paths, sizes)
    descriptor = os.open(path, os.O_RDWR)
    try:
        position = _written_position(descriptor, rng)
        (byte,) = os.pread(descriptor, 1, position)
        bit = rng.randrange(8)
        os.pwrite(descriptor, bytes([byte ^ 1 << bit]), position)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Flip(path, position, bit)


def _written_position(descriptor: int, rng: random.Random) -> int:
    """Return a position on a page that is not all zeros, if a few attempts find one."""
    size = os.fstat(descriptor).st_size
    position = 0
    for _ in range(PAGES_TRIED):
        position = rng.randrange(size)
        page = os.pread(descriptor, PAGE_BYTES, position - position % PAGE_BYTES)
        written = [at for at, byte in enumerate(page) if byte]
        if written:
            # Up to the last non-zero byte: zeros before it are data as well.
            return position - position % PAGE_BYTES + rng.randrange(written[-1] + 1)
    return position
