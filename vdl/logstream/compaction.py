"""Cutting the front of logs.

In a group of commands what counts is what they did, and checkpoints hold that. So its log is cut
behind the last checkpoint, but for a rest that lets a follower that was away for a while catch up
without a snapshot. A group whose state is larger than a snapshot may be keeps its log whole.

A partition's log is cut where its records were deleted, also never beyond the last checkpoint: a
restart must find the state of everything that it cannot replay.

Must not know: when it is asked, what commands do, why records were deleted.
"""

from __future__ import annotations

from vdl.logstream.group import Group
from vdl.logstream.snapshots import SNAPSHOT_BYTES_MAX


def trim_commands(group: Group, *, entries_kept: int) -> bool:
    """Stage the removal of commands nobody needs any more; False when there is nothing to remove,
    or too little to be worth it."""
    log = group.log
    first = log.applied_index + 1 - entries_kept
    if first - max(log.first_index, group.trim_refused) < entries_kept or log.installed_state:
        return False
    if group.snapshot_bytes() > SNAPSHOT_BYTES_MAX // 2:
        # To find out is work for the whole loop: not again before as much has been added.
        group.trim_refused = first
        return False
    group.store.trim_log(log, first_index=first)
    return True


def trim_records(group: Group, *, log_start_offset: int) -> bool:
    """Stage the removal of entries all of whose records are below `log_start_offset`; False when
    there is nothing to remove."""
    log = group.log
    covered = log.applied_index
    if log_start_offset <= log.log_start_offset or covered < log.first_index or log.installed_state:
        return False
    if log_start_offset < log.offset_after(covered):
        first = log.index_of(log_start_offset)
    else:
        first = covered + 1
    if first <= log.first_index:
        return False
    group.store.trim_log(log, first_index=first)
    return True
