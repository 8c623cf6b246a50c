"""Carry-over: a journal file that replaces the newest ones, for a disk without space for all.

While a disk is full, votes and notes continue, and the files they are written to cannot be released
while an older one is needed, because the journal is a chain. But their contents are small: the
newest state of each log, which fits in a header, and a few entries. So a new file repeats them and
stands for those files.

Does not depend on how files are made and written.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ids import LogId
from segments.journal.marks import marks_before
from segments.log.log import Batch, DiskLog


def carry_over(
    logs: Mapping[LogId, DiskLog],
    live: Sequence[int],
    inside: Container[int],
    batch: Batch,
    bytes_max: int,
) -> int:
    """Stage again the needed contents of the newest journal files, after the batch's own records.

    Takes as many files as fit in `bytes_max`, and gives the batch the marks of a file that stands
    for them. Return the sequence of the oldest of these files; 0 if there is none. `live` are all
    files, ascending; `inside` are those that cannot be the oldest, because they hold the rest of a
    batch that begins in the file before.
    """
    whole = [logs[log_id] for log_id in sorted(logs) if not logs[log_id].is_written_off]
    chosen = 0
    for sequence in reversed(live):
        if needed_bytes(logs, sequence) > bytes_max:
            break
        if sequence not in inside:
            chosen = sequence
    if chosen:
        batch.marks = marks_before(logs, chosen)
        for log in whole:
            log.carry_over(chosen, batch)
    return chosen


def needed_bytes(logs: Mapping[LogId, DiskLog], sequence: int) -> int:
    """Return the bytes of data for which the journal files from `sequence` on are still needed."""
    return sum(log.carried_bytes(sequence) for log in logs.values() if not log.is_written_off)
