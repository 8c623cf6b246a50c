"""Marks: the state of each log in the header of a journal file.

A header's marks give the state after the file's first block. If a batch is split over several
files, they cover only the parts so far: `marks_behind` derives that from the batch's records.

Does not depend on files or blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ids import LogId, Offset
from segments.format.block import (
    CLEAR,
    ENTRY,
    FLUSHED,
    FRAMED,
    HARD,
    INSTALL,
    MARK_VOID,
    PLACED,
    RESET,
    SEQUENCE_MASK,
    STATE_RECORD,
    TRIM,
    TRUNCATE,
    Mark,
)
from segments.format.frame import base_offset_of
from segments.log.log import Batch, DiskLog


def marks_of(logs: Mapping[LogId, DiskLog]) -> list[Mark]:
    """Return the state of every log as staged now, by log id."""
    return [logs[log_id].mark() for log_id in sorted(logs)]


def marks_before(logs: Mapping[LogId, DiskLog], sequence: int) -> list[Mark]:
    """Return the marks of a file that stands for those from `sequence` on, by log id."""
    return [logs[log_id].mark_before(sequence) for log_id in sorted(logs)]


def marks_behind(before: dict[LogId, Mark], batch: Batch) -> dict[LogId, Mark]:
    """Return the state of each log, by id, after a batch or a first part of one.

    `before` is the state before it.
    """
    marks = {log_id: replace(mark) for log_id, mark in before.items()}
    buffers = iter(batch.buffers)
    buffer = memoryview(b"")
    at = 0
    for record in batch.records:
        next_offset = Offset(0)
        if size := frame_bytes(record):
            while at >= len(buffer):
                at -= len(buffer)
                buffer = next(buffers)
            if record[8] == INSTALL:
                next_offset = base_offset_of(buffer, at)
            at += size
        _advance(marks[LogId(int.from_bytes(record[:4], "little"))], record, next_offset)
    return marks


def _advance(mark: Mark, record: bytes, next_offset: Offset) -> None:
    _, sequence, kind, term, index, value = STATE_RECORD.unpack(record)
    mark.sequence = (sequence + 1) & SEQUENCE_MASK
    kind &= 0xFF
    if kind in {ENTRY, PLACED}:
        mark.last_index = max(mark.last_index, index)  # an existing entry is only repeated
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
    elif kind in {TRIM, CLEAR}:
        mark.first_index, mark.prev_term, mark.start_offset = index, term, value
        if kind == CLEAR:
            mark.flushed_index, mark.flushed_offset = index - 1, value
            mark.flags |= MARK_VOID


def frame_bytes(record: bytes) -> int:
    """Return the length of the frame that a record's block carries for it."""
    return int.from_bytes(record[24:28], "little") if record[8] in FRAMED else 0
