"""A journal file that takes the place of the newest ones, for a disk that has no room for all.

Votes and notes come for as long as a disk is full, and the files they are written to cannot go
while an older one is needed: the journal is a chain. But what they say is little: the newest state
of each log, for which a header has room, and a few entries. So a new file says it again, and stands
for them.

Must not know: how files are made and written.
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
    """Choose as many of the newest journal files as have at most `bytes_max` that is still needed,
    stage that behind the batch, and give the batch the marks of a file that stands for them. The
    sequence of the oldest of them; 0 when there is none. `live` are all files, ascending; `inside`
    those that cannot be the oldest, because they hold the rest of what begins in the one before."""
    whole = [logs[log_id] for log_id in sorted(logs) if not logs[log_id].is_lost]
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
    """What the journal files from `sequence` on are still needed for."""
    return sum(log.carried_bytes(sequence) for log in logs.values() if not log.is_lost)
