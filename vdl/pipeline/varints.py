"""Vectorized decoding of zigzag varints at an array of positions.

Most have one or two bytes, so one byte of each is decoded at a time until none continues.

Does not depend on records or Arrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vdl.pipeline.errors import UndecodableBatch

BYTES_MAX = 10
Ints = Any
"""A numpy array of int64."""


def varints(data: Any, at: Ints) -> tuple[Ints, Ints]:
    """Return (zigzag values, positions after them) of varints at `at` in an array of bytes.

    Truncated ones read the last byte, which must be below 128. Raises UndecodableBatch.
    """
    byte = data.take(at)
    value = byte.astype(np.int64)
    at = at + 1
    shift = 7
    while (more := byte > 127).any():
        if shift >= 7 * BYTES_MAX:
            raise UndecodableBatch("a varint is too long")
        byte = data.take(at, mode="clip")
        # Bytes after a finished varint must neither be added nor continue it.
        byte *= more
        # The continuation bit is subtracted where it was added.
        value += (byte.astype(np.int64) - more) << shift
        at += more
        shift += 7
    return (value >> 1) ^ -(value & 1), at
