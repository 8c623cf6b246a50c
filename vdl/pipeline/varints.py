"""Zigzag varints, many at once: of an array of places, the values there and what comes behind.

Most are of one or two bytes, so a byte is looked at of all of them until none has another.

Must not know: records, Arrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vdl.pipeline.errors import UndecodableBatch

BYTES_MAX = 10
Ints = Any
"""A numpy array of int64."""


def varints(data: Any, at: Ints) -> tuple[Ints, Ints]:
    """(zigzag values, positions after them) of varints at `at` in an array of bytes. Those that are
    cut off read the last byte, which is to be below 128. Raises UndecodableBatch."""
    byte = data.take(at)
    value = byte.astype(np.int64)
    at = at + 1
    shift = 7
    while (more := byte > 127).any():
        if shift >= 7 * BYTES_MAX:
            raise UndecodableBatch("a varint is too long")
        byte = data.take(at, mode="clip")
        # What is behind the end of the others must neither be added nor go on.
        byte *= more
        # The bit that said "more" is taken away where it was added.
        value += (byte.astype(np.int64) - more) << shift
        at += more
        shift += 7
    return (value >> 1) ^ -(value & 1), at
