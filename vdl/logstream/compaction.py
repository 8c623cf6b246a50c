"""Keeping the logs of command groups short.

What counts in such a group is what its commands did, and checkpoints hold that. So the log is cut
behind the last checkpoint, but for a rest that lets a follower that was away for a while catch up
without a snapshot. A group whose state is larger than a snapshot may be keeps its log whole.

Must not know: when it is asked, what commands do.
"""

from __future__ import annotations

from vdl.logstream.group import Group
from vdl.logstream.snapshots import SNAPSHOT_BYTES_MAX


def trim_commands(group: Group, *, entries_kept: int) -> bool:
    """Stage the removal of what nobody needs any more; False when there is nothing to remove, or
    too little to be worth it."""
    log = group.log
    first = log.applied_index + 1 - entries_kept
    if group.owner.entries_are_state or first - log.first_index < entries_kept:
        return False
    if sum(len(key) + len(value) for key, value in group.owner.items()) > SNAPSHOT_BYTES_MAX // 2:
        return False
    group.store.trim_log(log, first_index=first)
    return True
