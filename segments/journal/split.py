"""Cutting a batch that no journal file takes whole into blocks.

Each part begins a file, whose header says the state of each log behind that part: the process may
die before the next one, and the file may be the oldest of the journal one day.

Must not know: files.
"""

from __future__ import annotations

from dataclasses import replace

from segments.format.block import (
    BLOCK_HEADER_BYTES,
    ENTRY,
    FLUSHED,
    FRAMED,
    HARD,
    INSTALL,
    MARK_VOID,
    RECORD_BYTES,
    RESET,
    SEQUENCE_MASK,
    STATE_RECORD,
    TRIM,
    TRUNCATE,
    Mark,
    padded,
)
from segments.format.frame import base_offset_of
from segments.log.log import Batch


def block_bytes(batch: Batch) -> int:
    """What the block of a batch takes in a file."""
    return padded(BLOCK_HEADER_BYTES + len(batch.records) * RECORD_BYTES + batch.bytes)


def split(batch: Batch, room: int) -> tuple[Batch, Batch]:
    """Cut a batch into a first part of at most `room` bytes, but one record, and the rest; each
    knows its marks."""
    assert batch.marks is not None, batch.token
    first = Batch(batch.token)
    rest = Batch(batch.token)
    left = room - BLOCK_HEADER_BYTES
    frames = 0
    count = 0
    for record in batch.records:
        size = RECORD_BYTES + (frame := _frame_bytes(record))
        if count and size > left:
            break
        left -= size
        frames += frame
        count += 1
    assert count < len(batch.records), (count, room)
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
    rest.entries = batch.entries
    assert rest.records, (room, len(batch.records), batch.bytes)
    return first, rest


def marks_behind(before: dict[int, Mark], batch: Batch) -> dict[int, Mark]:
    """The state of each log, by id, behind a batch or a first part of one, from that before it."""
    marks = {log_id: replace(mark) for log_id, mark in before.items()}
    buffers = iter(batch.buffers)
    buffer = memoryview(b"")
    at = 0
    for record in batch.records:
        next_offset = 0
        if size := _frame_bytes(record):
            while at >= len(buffer):
                at -= len(buffer)
                buffer = next(buffers)
            if record[8] == INSTALL:
                next_offset = base_offset_of(buffer, at)
            at += size
        _advance(marks[int.from_bytes(record[:4], "little")], record, next_offset)
    return marks


def _advance(mark: Mark, record: bytes, next_offset: int) -> None:
    _, sequence, kind, term, index, value = STATE_RECORD.unpack(record)
    mark.sequence = (sequence + 1) & SEQUENCE_MASK
    if kind == ENTRY:
        mark.last_index = max(mark.last_index, index)  # one that was there is only repeated
    elif kind == HARD:
        mark.term, mark.vote, mark.commit = term, value, index
    elif kind == TRUNCATE:
        mark.last_index = index - 1
    elif kind in {RESET, INSTALL}:
        offset = next_offset if kind == INSTALL else value
        mark.first_index, mark.prev_term, mark.start_offset = index, term, offset
        mark.last_index = mark.flushed_index = mark.commit = index - 1
        mark.flushed_offset = offset
        mark.flags |= MARK_VOID
    elif kind == FLUSHED:
        mark.flushed_index, mark.flushed_offset = index, value
        mark.flags &= ~MARK_VOID
    elif kind == TRIM:
        mark.first_index, mark.prev_term, mark.start_offset = index, term, value


def _frame_bytes(record: bytes) -> int:
    """Length of the frame that a record's block carries for it."""
    return int.from_bytes(record[24:28], "little") if record[8] in FRAMED else 0
