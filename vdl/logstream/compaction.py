"""Cutting the front of logs.

In a group of commands what counts is what they did, and checkpoints hold that. So its log is cut
behind the last checkpoint, but for a rest that lets a follower that was away for a while catch up
without a snapshot. A group whose state is larger than a snapshot may be keeps its log whole.

A partition's log is cut where its records were deleted, also never beyond the last checkpoint: a
restart must find the state of everything that it cannot replay. Where that is may take the disk to
find.

Must not know: when it is asked, what commands do, why records were deleted.
"""

from __future__ import annotations

from collections.abc import Callable

import segments.api as storage
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


def find_deleted(
    group: Group, *, log_start_offset: int, done: Callable[[int | storage.StorageError], None]
) -> bool:
    """Find the first entry with a record at or behind `log_start_offset`, the log's end if there is
    none; False, and `done` is not called, when there is nothing to remove."""
    log = group.log
    covered = log.applied_index
    if log_start_offset <= log.log_start_offset or covered < log.first_index or log.installed_state:
        return False
    if log_start_offset < log.next_offset:
        group.store.index_of_offset(log, log_start_offset, done)
    else:
        done(log.last_index + 1)
    return True


def trim_records(group: Group, *, first_index: int) -> bool:
    """Stage the removal of entries below `first_index`, as far as the state after them is stored;
    False when there is nothing to remove."""
    log = group.log
    first = min(first_index, log.applied_index + 1)
    if first <= log.first_index or log.installed_state:
        return False
    group.store.trim_log(log, first_index=first)
    return True
