"""Positions of the records in batches, which are known only from the lengths of earlier records.

They are guessed and the guess is proved. A record's attributes are a zero byte, and so is the last
byte of a record without headers; between both lies the next one's length, of one to three bytes. A
record may begin where two zeros are that far apart. If each of these places is where the previous
one ends, the first is where the first batch begins, each batch begins at one, and the last ends
where the last batch does, then they are the records: there is only one such chain. Numpy finds all
of that without looking at single records.

Values may hold such zeros, too, so a place at which none of the others ends is dropped first, as is
one whose length does not fill the gap. If there still is no such chain, as with headers or records
of a mebibyte, lengths are walked.

Does not depend on the contents of records, or on Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vdl.pipeline.errors import UndecodableBatch
from vdl.pipeline.varints import BYTES_MAX, Ints, varints

_LENGTH_BYTES_MAX = 3
"""Longest length field of a record that is found by its zeros."""


def record_bodies(
    data: Any, buffer: bytearray, sizes: Sequence[int], counts: Sequence[int]
) -> tuple[Ints, Ints]:
    """Return (position after the length, end) of each record in `buffer`.

    `data`: the buffer's bytes for numpy. It holds batches of `sizes` bytes, end to end from the
    start, with `counts` records.

    A negative length shows as an end that precedes the position. Raises UndecodableBatch.
    """
    edges: Ints = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=edges[1:])
    found = _guess(data, edges, counts)
    if found is not None:
        return found
    length, at = varints(data, _walk(buffer, edges, counts))
    return at, at + length


def _guess(data: Any, edges: Ints, counts: Sequence[int]) -> tuple[Ints, Ints] | None:
    """Return the positions as above if zeros determine them, else None."""
    stop, total = int(edges[-1]), sum(counts)
    zeros: Ints = np.flatnonzero(data[:stop] == 0)
    if not len(zeros) or 0 in counts:
        return None
    # No record precedes the first one.
    apart = np.diff(zeros, prepend=-1)
    near = (apart > 1) & (apart <= 1 + _LENGTH_BYTES_MAX)
    attributes = zeros.compress(near)
    starts = attributes - apart.compress(near) + 1
    length, at = varints(data, starts)
    ends = at + length
    if len(starts) > total:
        fits = (at == attributes) & (ends > at) & (ends <= stop)
        is_end: Any = np.zeros(stop + 1, bool)
        is_end[0] = True
        is_end[ends.compress(fits)] = True
        kept = fits & is_end.take(starts)
        starts, at, ends = starts.compress(kept), at.compress(kept), ends.compress(kept)
    if len(starts) != total:
        return None
    firsts: Ints = np.zeros(len(counts), np.int64)
    np.cumsum(counts[:-1], out=firsts[1:])
    is_chain = (
        (starts.take(firsts) == edges[:-1]).all()
        and (ends[:-1] == starts[1:]).all()
        and ends[-1] == stop
    )
    return (at, ends) if is_chain else None


def _walk(buffer: bytearray, edges: Ints, counts: Sequence[int]) -> Ints:
    """Return the start of each record, walked one after the other.

    All lie within their batches if the last one's end does, since none begins before the previous
    one.
    """
    starts: list[int] = []
    append = starts.append
    for first, stop, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts, strict=True):
        position = first
        try:
            for _ in range(count):
                append(position)
                byte = buffer[position]
                if byte < 128:
                    position += 1 + (byte >> 1)
                elif (second := buffer[position + 1]) < 128:
                    position += 2 + ((byte & 0x7F | second << 7) >> 1)
                else:
                    position = _behind(buffer, position)
        except IndexError:
            raise UndecodableBatch("a batch's records: record length") from None
        if position != stop:
            raise UndecodableBatch("a batch's records: their length is not that of the batch")
    return np.array(starts, np.int64)


def _behind(buffer: bytearray, position: int) -> int:
    """Return the end of a record of any length that begins at `position`. Raises IndexError."""
    length = 0
    for n in range(BYTES_MAX):
        byte = buffer[position + n]
        length |= (byte & 0x7F) << 7 * n
        if byte < 128:
            return position + n + 1 + (length >> 1)
    raise UndecodableBatch("a batch's records: record length")
