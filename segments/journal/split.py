"""Splitting a batch that does not fit in a journal file into blocks.

Each part begins a file, whose header has the state of each log after that part: the process may die
before the next part, and the file may later be the oldest of the journal.

Does not depend on files.
"""

from __future__ import annotations

from dataclasses import replace

from segments.format.block import BLOCK_HEADER_BYTES, DETAIL, PLACED, RECORD_BYTES, padded
from segments.journal.marks import frame_bytes, marks_behind
from segments.log.log import Batch

_KIND_AT = 8
"""Position of the kind in a record."""


def block_bytes(batch: Batch) -> int:
    """Return the size of a batch's block in a file."""
    return padded(BLOCK_HEADER_BYTES + len(batch.records) * RECORD_BYTES + batch.bytes)


def split(batch: Batch, room: int) -> tuple[Batch, Batch]:
    """Split a batch into a first part of at most `room` bytes and the rest; each gets its marks.

    The first part has at least one record.
    """
    assert batch.marks is not None, batch.token
    first = Batch(batch.token)
    rest = Batch(batch.token)
    left = room - BLOCK_HEADER_BYTES
    frames = 0
    count = 0
    for record in batch.records:
        size = RECORD_BYTES + (frame := frame_bytes(record))
        if count and size > left:
            break
        left -= size
        frames += frame
        count += 1
    assert count < len(batch.records), (count, room)
    count = _before_run(batch.records, count)
    first.records, rest.records = batch.records[:count], batch.records[count:]
    taken = 0
    for buffer in batch.buffers:
        cut = min(len(buffer), frames - taken)
        taken += cut
        if cut:
            first.buffers.append(buffer[:cut])
        if cut < len(buffer):
            rest.buffers.append(buffer[cut:])
    first.bytes, rest.bytes = frames, batch.bytes - frames
    first.needs_proof = rest.needs_proof = batch.needs_proof
    first.sequence = rest.sequence = batch.sequence
    rest.marks = batch.marks
    rest.before = marks_behind(batch.before, first)
    first.marks = [
        replace(rest.before[mark.log_id], applied=mark.applied)
        if mark.log_id in rest.before
        else mark
        for mark in batch.marks
    ]
    rest.spans = batch.spans
    rest.installs = batch.installs
    first.payloads = batch.payloads  # needed if this part is found durable
    rest.placed = batch.placed
    rest.rewound = batch.rewound
    rest.entries = batch.entries
    assert rest.records, (room, len(batch.records), batch.bytes)
    return first, rest


def _before_run(records: list[bytes], count: int) -> int:
    """Return the number of records at which to split, at most `count`.

    Records of placed entries depend on the PLACE before them: once the first file is released,
    nothing else gives their position. A run longer than a file is split nevertheless. When its
    first file may be released, segments are known to hold the whole run, unless a start came
    between.
    """
    begin = count
    while begin and records[begin][_KIND_AT] in (DETAIL, PLACED):
        begin -= 1
    return begin or count
