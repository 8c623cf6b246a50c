"""Log compaction in the sense of Raft: cutting the front of logs.

In a group of commands the state counts, and checkpoints hold it. So its log is cut behind the last
checkpoint, except for a remainder that lets a follower that was away for a while catch up without a
snapshot. A group whose state is larger than half of the snapshot limit keeps its whole log. The
size is known from the last encoding (`snapshot_cache.py`): the other half is a margin for its error
and for growth. A coordinator whose positions have a bound of their own needs no margin: it is
bounded so that its snapshots always fit.

A partition's log is cut where its records were deleted, also never beyond the last checkpoint: a
restart must find the state of everything that it cannot replay. Finding that place may need the
disk.

Does not depend on what commands do, or on why records were deleted.
"""

from __future__ import annotations

from collections.abc import Callable

import segments.api as storage
from ids import Index, Offset
from vdl.logstream.group.group import Group
from vdl.logstream.group.snapshots import SNAPSHOT_BYTES_MAX


def trim_commands(group: Group, *, entries_kept: int) -> bool:
    """Stage the removal of commands that are not needed any more. Use: once a second.

    Return False if there is nothing to remove, or too little.
    """
    group.snapshots.cache.forget_unused(group.tick)
    log = group.log
    first = log.applied_index + 1 - entries_kept
    length = first - log.first_index
    if length < entries_kept or log.installed_state:
        return False
    if group.snapshots.in_parts:
        group.store.trim_log(log, first_index=first)
        return True
    length_refused = group.trim_refused - log.first_index
    # The state may be smaller than estimated: entries must not be kept for ever because of that.
    is_twice_as_long = 0 < length_refused <= length // 2
    limit = SNAPSHOT_BYTES_MAX // 2
    size = group.snapshots.expected_bytes(limit=limit, anew=is_twice_as_long)
    if size is None:
        return False
    if size > limit:
        if length_refused <= 0 or is_twice_as_long:
            group.trim_refused = first
        return False
    group.store.trim_log(log, first_index=first)
    return True


def find_deleted(
    group: Group, *, log_start_offset: Offset, done: Callable[[Index | storage.StorageError], None]
) -> bool:
    """Find the first entry with a record at or behind `log_start_offset`.

    The log's end if there is none. Return False, without calling `done`, if nothing can be removed.
    """
    log = group.log
    if log.applied_index < log.first_index or log.installed_state:
        return False
    if log_start_offset < log.next_offset:
        group.store.index_of_offset(log, log_start_offset, done)
    else:
        done(log.last_index + 1)
    return True


def trim_records(group: Group, *, first_index: Index) -> bool:
    """Stage the removal of entries below `first_index`, as far as the state after them is stored.

    Return False if there is nothing to remove.
    """
    log = group.log
    first = min(first_index, log.applied_index + 1)
    if first <= log.first_index or log.installed_state:
        return False
    group.store.trim_log(log, first_index=first)
    return True
